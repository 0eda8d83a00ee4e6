"""Which run, step and piece of work an IO manager serves.

The only module that uses `step_context`, which Dagster's contexts do not document: it gives access to the tags of a
run and to data versions. Everything here also works without it, as in a unit test with `build_output_context`.
"""

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from floe_dagster_iceberg.models import snapshot_properties
from floe_dagster_iceberg.telemetry import Telemetry, attributes as attrs

_MOST_KEYS_SPELLED_OUT = 20
_RETRY_TAGS = frozenset({"dagster/retry_number", "dagster/is_resume_retry", "dagster/is_asset_resume_retry"})


@dataclass(frozen=True)
class RunIdentity:
    """The run and step of an output; `work_id` is the first run of a chain of retries."""

    run_id: str
    work_id: str
    step_key: str


def in_a_run(context: dg.OutputContext | dg.InputContext) -> bool:
    """Whether the context belongs to a run."""
    return _step_context(context) is not None


def load_run_identity(context: dg.OutputContext) -> RunIdentity:
    """The run and step of an output.

    Retries by Dagster and re-executions from failure continue the work of the run that failed. A re-execution of
    all steps is new work: its rows are written again.
    """
    step = _step_context(context)
    if step is None:
        # Without a run, every call is new work.
        return RunIdentity(run_id="no-run", work_id=uuid.uuid4().hex, step_key="no-step")
    run = step.dagster_run
    return RunIdentity(
        run_id=run.run_id, work_id=_first_attempt(step.instance, run, context.step_key), step_key=context.step_key
    )


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


def telemetry_of(context: dg.OutputContext | dg.InputContext) -> Telemetry:
    """Telemetry for a context; in a run, events appear in Dagster's log viewer."""
    return Telemetry() if _step_context(context) is None else telemetry_of_run()


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
    parts = (run.work_id, *output, *sorted(partition_keys))
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


def set_data_version(context: dg.OutputContext, asset_key: dg.AssetKey, version: str) -> None:
    """Set the asset's data version; does nothing outside a run."""
    step = _step_context(context)
    if step is not None:
        step.set_data_version(asset_key, dg.DataVersion(version))


def _step_context(context: dg.OutputContext | dg.InputContext) -> Any:
    try:
        return context.step_context
    except (AttributeError, dg.DagsterInvariantViolationError):
        return None
