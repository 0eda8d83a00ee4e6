"""Which run, step and piece of work an IO manager serves.

The only module that uses `step_context`, which Dagster's contexts do not document: it gives access to the tags of a
run and to data versions. Everything here also works without it, as in a unit test with `build_output_context`.
"""

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import dagster as dg

from floe_dagster_iceberg.models import snapshot_properties
from floe_dagster_iceberg.telemetry import Telemetry, attributes as attrs

StepContext: TypeAlias = dg.OutputContext | dg.InputContext | dg.AssetExecutionContext
"""What belongs to a step: its inputs and outputs, and the code of its asset."""

_MOST_KEYS_SPELLED_OUT = 20
_RETRY_TAGS = frozenset({"dagster/retry_number", "dagster/is_resume_retry", "dagster/is_asset_resume_retry"})


@dataclass(frozen=True)
class RunIdentity:
    """The run and step of an output; `work_id` is the first run of a chain of retries.

    `environment` keeps the runs of previews and production apart.
    """

    run_id: str
    work_id: str
    step_key: str
    environment: str | None = None


def in_a_run(context: dg.OutputContext | dg.InputContext) -> bool:
    """Whether the context belongs to a run."""
    return _step_context(context) is not None


def load_run_identity(context: dg.OutputContext, environment: str | None = None) -> RunIdentity:
    """The run and step of an output.

    Retries by Dagster and re-executions from failure continue the work of the run that failed. A re-execution of
    all steps is new work: its rows are written again.
    """
    step = _step_context(context)
    if step is None:
        # Without a run, every call is new work.
        return RunIdentity("no-run", uuid.uuid4().hex, "no-step", environment)
    run = step.dagster_run
    work_id = _first_attempt(step.instance, run, context.step_key)
    return RunIdentity(run.run_id, work_id, context.step_key, environment)


def find_written(context: dg.InputContext, environment: str | None = None) -> dict[str, frozenset[str]] | None:
    """Properties of the snapshot that a step of this run wrote for an input, or of the run whose output it reuses.

    None if no step did: outside a run, and for an asset that is not part of the run.
    """
    step, output = _step_context(context), context.upstream_output
    if step is None or output is None:
        return None
    # After a re-execution from failure, the output may be that of an earlier run.
    run = step.dagster_run if output.run_id == step.run_id else step.instance.get_run_by_id(output.run_id)
    if run is None:
        return None
    work_id = _first_attempt(step.instance, run, output.step_key)
    if not output.has_asset_key:
        identity = RunIdentity(run.run_id, work_id, output.step_key, environment)
        return {snapshot_properties.IDEMPOTENCY_KEY: frozenset({build_idempotency_key(output, identity, ())})}
    # Not by its key: an input may read other partitions than those that were written.
    return {
        snapshot_properties.RUN_ID: frozenset({run.run_id, work_id}),
        snapshot_properties.ASSET_KEY: frozenset({output.asset_key.to_user_string()}),
    }


def _first_attempt(instance: Any, run: dg.DagsterRun, step_key: str) -> str:
    """The run that started the work which this one continues; the run itself if it is new work."""
    while run.parent_run_id is not None:
        parent = instance.get_run_by_id(run.parent_run_id)
        if parent is None:
            # The parent was deleted; the root is the best guess for a retry.
            return (run.root_run_id or run.run_id) if _is_tagged_as_retry(run) else run.run_id
        if not _continues(instance, run, parent, step_key):
            break
        run = parent
    return run.run_id


def _continues(instance: Any, run: dg.DagsterRun, parent: dg.DagsterRun, step_key: str) -> bool:
    # Tags alone do not suffice: re-executing all steps of a retried run copies some of them.
    if parent.status is dg.DagsterRunStatus.SUCCESS:
        return False
    if _is_tagged_as_retry(run):
        return True
    # `ReexecutionOptions.from_failure` sets no tag, only the steps to execute.
    return run.step_keys_to_execute is not None and not _succeeded(instance, parent, step_key)


def _is_tagged_as_retry(run: dg.DagsterRun) -> bool:
    return not _RETRY_TAGS.isdisjoint(run.tags)


def _succeeded(instance: Any, run: dg.DagsterRun, step_key: str) -> bool:
    statistics = instance.get_run_step_stats(run.run_id, step_keys=[step_key])
    return any(step.status is not None and step.status.value == "SUCCESS" for step in statistics)


# Dagster's job for the button "Materialize" and for `dagster asset materialize`, and the tag of runs that an
# automation condition requests, which are in that job as well.
_IMPLICIT_JOB = "__ASSET_JOB"
_AUTOMATION_TAG = "dagster/from_automation_condition"


def is_started_by_click(run: dg.DagsterRun) -> bool:
    """Whether a run was started by "Materialize" or "Materialize all", and not by a job or an automation condition."""
    return run.job_name == _IMPLICIT_JOB and _AUTOMATION_TAG not in run.tags


def telemetry_of(context: dg.OutputContext | dg.InputContext) -> Telemetry:
    """Telemetry for a context; in a run, events appear in Dagster's log viewer."""
    return Telemetry(logger=None if _step_context(context) is None else dg.get_dagster_logger(attrs.SCOPE))


def telemetry_of_run() -> Telemetry:
    """Telemetry whose events appear in Dagster's log viewer; only for use within a run."""
    return Telemetry(logger=dg.get_dagster_logger(attrs.SCOPE))


def describe_asset_run(context: dg.AssetExecutionContext) -> dict[str, str]:
    """Span attributes of the asset and run of a context."""
    return {
        attrs.RUN_ID: context.run.run_id,
        attrs.STEP_KEY: context.get_step_execution_context().step.key,
        attrs.ASSET_KEY: context.asset_key.to_user_string(),
    }


def describe_run(context: dg.OutputContext | dg.InputContext) -> dict[str, str]:
    """Span attributes of the run, asset and partitions of an output or input."""
    attributes: dict[str, str] = {}
    if (step := _step_context(context)) is not None:
        attributes |= {attrs.RUN_ID: step.run_id, attrs.STEP_KEY: step.step.key}
    if context.has_asset_key:
        attributes[attrs.ASSET_KEY] = context.asset_key.to_user_string()
    if context.has_asset_partitions:
        attributes[attrs.PARTITION_KEY] = describe_keys(context.asset_partition_keys)
    return attributes


def build_idempotency_key(context: dg.OutputContext, run: RunIdentity, partition_keys: Sequence[str]) -> str:
    """A key that is the same for every attempt at an output, and different for every other output."""
    if context.has_asset_key:
        # Not by its step: a retry of a multi-asset may select fewer assets, which makes other steps.
        output = ["asset", context.asset_key.to_string()]
    else:
        output = ["op", run.step_key, context.name, context.mapping_key or ""]
    return _key_of(run.work_id, output, partition_keys, run.environment)


def _key_of(work_id: str, output: Sequence[str], partition_keys: Sequence[str], environment: str | None) -> str:
    parts = (work_id, *output, *sorted(partition_keys))
    if environment is not None:
        parts = ("environment", environment, *parts)
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()


def build_snapshot_properties(
    context: dg.OutputContext, run: RunIdentity, partition_keys: Sequence[str]
) -> dict[str, str]:
    """Snapshot properties that identify the run that wrote it."""
    properties = {snapshot_properties.RUN_ID: run.run_id, snapshot_properties.STEP_KEY: run.step_key}
    if context.has_asset_key:
        properties[snapshot_properties.ASSET_KEY] = context.asset_key.to_user_string()
    if partition_keys:
        properties[snapshot_properties.PARTITION_KEY] = describe_keys(partition_keys)
    if run.environment is not None:
        properties[snapshot_properties.ENVIRONMENT] = run.environment
    return properties


def describe_keys(keys: Sequence[str]) -> str:
    """Partition keys as text; long lists are abbreviated."""
    if len(keys) <= _MOST_KEYS_SPELLED_OUT:
        return ",".join(keys)
    return f"{keys[0]}...{keys[-1]} ({len(keys)} partitions)"


def keys_produced_by(context: dg.InputContext) -> frozenset[dg.AssetKey]:
    """The assets that the step of an input produces; an asset may read its own earlier partition."""
    step = _step_context(context)
    return frozenset() if step is None else frozenset(step.get_output_asset_keys())


def output_of(
    context: dg.AssetExecutionContext, asset_key: dg.AssetKey, metadata: Mapping[str, Any]
) -> tuple[dg.OutputContext, Any]:
    """The output of a step for an asset, as its IO manager will get it, and the IO manager."""
    from dagster._core.execution.plan.outputs import StepOutputHandle  # noqa: PLC0415, TID251 - no public name

    step = context.get_step_execution_context()
    handle = StepOutputHandle(step.step.key, output_name_of(context, asset_key))
    return step.get_output_context(handle, output_metadata=metadata), step.get_io_manager(handle)


def output_name_of(context: dg.AssetExecutionContext, asset_key: dg.AssetKey) -> str:
    """The name of the output of a step for an asset."""
    names: Mapping[str, dg.AssetKey] = context.assets_def.keys_by_output_name
    return next(name for name, key in names.items() if key == asset_key)


def set_data_version(context: dg.OutputContext, asset_key: dg.AssetKey, version: str) -> None:
    """Set the asset's data version; does nothing outside a run."""
    step = _step_context(context)
    if step is not None:
        step.set_data_version(asset_key, dg.DataVersion(version))


@dataclass(frozen=True)
class StepTarget:
    """An asset that the step of an input produces.

    Attributes:
        asset_key: Its key.
        metadata: The metadata of its definition.
        io_manager: What stores it; None if it returns nothing that could be stored.
        partitioned: Whether the run is for partitions of it.
        work_id: The first run of a chain of retries.
    """

    asset_key: dg.AssetKey
    metadata: Mapping[str, Any]
    io_manager: Any
    partitioned: bool
    work_id: str

    def idempotency_key(self, environment: str | None) -> str:
        """The key of its output in this run."""
        return _key_of(self.work_id, ["asset", self.asset_key.to_string()], (), environment)


def targets_of(context: StepContext) -> list[StepTarget]:
    """The assets that the step of an input produces; none of an op."""
    step = _step_context(context)
    definition = None if step is None else step.assets_def
    if definition is None:
        return []
    work_id = _first_attempt(step.instance, step.dagster_run, step.step.key)
    return [
        StepTarget(
            asset_key=key,
            metadata=definition.metadata_by_key[key],
            io_manager=_io_manager_of(step, step.op_def.output_def_named(name)),
            partitioned=step.has_asset_partitions_for_output(name),
            work_id=work_id,
        )
        for name, key in definition.keys_by_output_name.items()
        if key in definition.keys and name in step.selected_output_names
    ]


def _io_manager_of(step: Any, output: Any) -> Any:
    return None if output.dagster_type.is_nothing else getattr(step.resources, output.io_manager_key, None)


def latest_metadata(context: StepContext, asset_key: dg.AssetKey) -> Mapping[str, dg.MetadataValue]:
    """The metadata of an asset's latest materialization; empty without one."""
    step = _step_context(context)
    event = None if step is None else step.instance.get_latest_materialization_event(asset_key)
    materialization = None if event is None else event.asset_materialization
    return {} if materialization is None else materialization.metadata


def run_tag(context: StepContext, key: str) -> str | None:
    """A tag of the run; None without it."""
    step = _step_context(context)
    return None if step is None else step.dagster_run.tags.get(key)


def remembered_by_attempts(context: StepContext, name: str, value: str) -> str:
    """What the first attempt at the work of this run remembered under a name: this value, if this is the first."""
    step = _step_context(context)
    if step is None:
        return value
    work_id = _first_attempt(step.instance, step.dagster_run, step.step.key)
    key, known = f"iceberg/{step.step.key}/{name}", f"{work_id} "
    for run_id in dict.fromkeys((step.run_id, step.dagster_run.parent_run_id, work_id)):
        run = None if run_id is None else step.instance.get_run_by_id(run_id)
        # Dagster copies tags to runs that start over, too.
        if run is not None and (text := run.tags.get(key, "")).startswith(known):
            value = text.removeprefix(known)
            break
    step.instance.add_run_tags(step.run_id, {key: known + value})
    return value


_NOTES: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def notes_of_step(context: StepContext) -> dict[str, Any]:
    """What the inputs of a step leave for its outputs; they are loaded and stored by one process."""
    step = _step_context(context)
    return {} if step is None else _NOTES.setdefault(step, {})


def add_asset_metadata(
    context: StepContext,
    asset_key: dg.AssetKey,
    metadata: Mapping[str, object],
    partition_key: str | None = None,
) -> None:
    """Add metadata to the event of an asset that the step materializes, or of one partition of it.

    Does nothing outside a run.
    """
    step = _step_context(context)
    if step is not None:
        step.add_asset_metadata(metadata, asset_key=asset_key, partition_key=partition_key)


@dataclass(frozen=True)
class UpstreamAsset:
    """The definition of an asset that an asset depends on."""

    metadata: Mapping[str, Any]
    partitions_def: dg.PartitionsDefinition | None


def upstream_of(context: dg.AssetExecutionContext, asset_key: dg.AssetKey) -> UpstreamAsset | None:
    """The definition of an asset that the running asset depends on; None if it does not."""
    step = _step_context(context)
    if asset_key not in step.assets_def.keys_by_input_name.values():
        return None
    node = step.job_def.asset_layer.get(asset_key)
    return UpstreamAsset(node.metadata, node.partitions_def)


def partition_keys_of(
    context: StepContext, partitions_def: dg.PartitionsDefinition, *, ahead: timedelta = timedelta()
) -> Sequence[str]:
    """All keys of partitions, those that were added at run time included; time windows up to some time from now."""
    step = _step_context(context)
    return partitions_def.get_partition_keys(
        datetime.now(UTC) + ahead, dynamic_partitions_store=None if step is None else step.instance
    )


def _step_context(context: StepContext) -> Any:
    if isinstance(context, dg.AssetExecutionContext):
        return context.get_step_execution_context()
    try:
        return context.step_context
    except (AttributeError, dg.DagsterInvariantViolationError):
        return None
