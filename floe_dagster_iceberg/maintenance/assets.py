"""The maintenance assets. A materialization reports what was done to each table."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg

from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.failures import to_failure
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.maintenance.policy import PolicySources
from floe_dagster_iceberg.maintenance.report import build_metadata
from floe_dagster_iceberg.maintenance.runner import MaintenanceRun, TableOutcome
from floe_dagster_iceberg.maintenance.settings import MAINTENANCE_ASSETS, HealthConfig, MaintenanceConfig, OrphanConfig
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenanceStatus, snapshot_properties
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.run_identity import describe_asset_run, is_started_by_click, telemetry_of_run
from floe_dagster_iceberg.telemetry import attributes as attrs

Step = Callable[..., dg.MaterializeResult[None]]

GROUP: Final = "iceberg_maintenance"
# With a limit of one, no two operations run at the same time, and so never on one table.
MAINTENANCE_POOL: Final = GROUP
EVERY_TABLE_CHECK: Final = "every_table_succeeded"

_DESCRIPTIONS: Final = {
    MaintenanceOperation.TABLE_HEALTH: "Measures the files, snapshots and manifests of tables. Changes nothing.",
    MaintenanceOperation.RETENTION: "Deletes rows older than the retention of their table, if it has one.",
    MaintenanceOperation.COMPACTION: "Merges small data files and applies delete files. Rows stay the same.",
    MaintenanceOperation.SNAPSHOT_EXPIRY: "Expires old snapshots and deletes the files that only they reference.",
    MaintenanceOperation.MANIFESTS: "Merges manifests for faster scan planning. Data files stay the same.",
    MaintenanceOperation.ORPHAN_FILES: "Moves files that no snapshot references to quarantine and deletes them later.",
}
_RUN_OPTIONS: Final = (
    "The run config supports dry runs, table selection and both engines. 'Materialize' only plans; the asset's job "
    "does the work."
)


@dataclass(frozen=True)
class MaintenanceWiring:
    """What all maintenance definitions share.

    Attributes:
        sources: Where the maintenance policy comes from.
        iceberg_resource_key: Key of the `IcebergResource`.
        spark_resource_key: Key of the `IcebergSparkResource`; None when there is no Spark.
        op_tags: Tags of each asset's op, such as the size of its pod.
    """

    sources: PolicySources
    iceberg_resource_key: str = "iceberg"
    spark_resource_key: str | None = None
    op_tags: Mapping[MaintenanceOperation, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def resource_keys(self) -> set[str]:
        return {key for key in (self.iceberg_resource_key, self.spark_resource_key) if key is not None}

    def open_run(self, which: MaintenanceOperation, context: Any, sources: PolicySources) -> MaintenanceRun:
        """Open a run of one step; Spark is not started before it is used."""
        iceberg: IcebergResource = getattr(context.resources, self.iceberg_resource_key)
        if (environment := iceberg.environment_name) is not None and which is not MaintenanceOperation.TABLE_HEALTH:
            raise ValidationError(
                f"Maintenance changes tables for all their branches, and this is environment '{environment}'. Nothing "
                "was changed. Run it where IcebergResource has no environment."
            )
        spark = None if self.spark_resource_key is None else getattr(context.resources, self.spark_resource_key)
        manager = iceberg.table_manager
        maintenance = TableMaintenance(
            manager,
            spark=None if spark is None else lambda: spark.spark_session,
            progress=context.log.info,
            snapshot_properties={
                snapshot_properties.RUN_ID: context.run.run_id,
                snapshot_properties.ASSET_KEY: maintenance_key(which).to_user_string(),
            },
        )
        return MaintenanceRun(which, manager, maintenance, sources, context.log)


_found: ContextVar[list[MaintenanceWiring] | None] = ContextVar("floe_maintenance_wirings", default=None)


@contextmanager
def collect_wirings() -> Iterator[list[MaintenanceWiring]]:
    """Collect the wiring of maintenance definitions that are built meanwhile, such as those of an imported module.

    Definitions do not tell which policy was given for them.
    """
    wirings: list[MaintenanceWiring] = []
    token = _found.set(wirings)
    try:
        yield wirings
    finally:
        _found.reset(token)


def maintenance_key(which: MaintenanceOperation) -> dg.AssetKey:
    """Key of a maintenance asset."""
    return dg.AssetKey([GROUP, which.value])


def build_maintenance_assets(wiring: MaintenanceWiring) -> list[dg.AssetsDefinition]:
    """Build the assets. Materialized together they run one after the other, in the order of the enum."""
    if (wirings := _found.get()) is not None:
        wirings.append(wiring)
    followers = zip(MAINTENANCE_ASSETS, (None, *MAINTENANCE_ASSETS), strict=False)
    return [_build_asset(which, wiring, _build_step(which, wiring), after=previous) for which, previous in followers]


# Dagster does not recognize a result with checks if the annotation has a type parameter.
def _build_step(which: MaintenanceOperation, wiring: MaintenanceWiring) -> Step:
    def measure(context: dg.AssetExecutionContext, config: HealthConfig) -> dg.MaterializeResult:  # type: ignore[type-arg]
        return _run_step(which, wiring, context, config, lambda run: run.measure(config.health_tier))

    def operate(context: dg.AssetExecutionContext, config: MaintenanceConfig) -> dg.MaterializeResult:  # type: ignore[type-arg]
        return _run_step(which, wiring, context, config, MaintenanceRun.operate)

    def clear_or_restore(context: dg.AssetExecutionContext, config: OrphanConfig) -> dg.MaterializeResult:  # type: ignore[type-arg]
        work = MaintenanceRun.restore if config.restore else MaintenanceRun.operate
        return _run_step(which, wiring, context, config, work)

    own: dict[MaintenanceOperation, Step] = {
        MaintenanceOperation.TABLE_HEALTH: measure,
        MaintenanceOperation.ORPHAN_FILES: clear_or_restore,
    }
    return own.get(which, operate)


def _run_step(
    which: MaintenanceOperation,
    wiring: MaintenanceWiring,
    context: dg.AssetExecutionContext,
    config: MaintenanceConfig,
    work: Callable[[MaintenanceRun], list[TableOutcome]],
) -> dg.MaterializeResult[None]:
    started = time.perf_counter()
    attributes = {attrs.MAINTENANCE_ASSET: which.value, **describe_asset_run(context)}
    try:
        with telemetry_of_run().operation("run_maintenance", attributes) as operation:
            by_click = is_started_by_click(context.run) and which is not MaintenanceOperation.TABLE_HEALTH
            run = wiring.open_run(which, context, config.apply_to(wiring.sources, by_click=by_click))
            is_dry_by_click = by_click and config.dry_run is None and run.policy.policy.dry_run
            if is_dry_by_click:
                context.log.info("Dry run: 'Materialize' changes no table. %s", _how_to_run(which))
            outcomes = work(run)
            operation.set_attributes({attrs.TABLES: len(outcomes)})
    except FloeStorageError as error:
        # It concerns no single table, as an unreachable catalog does.
        raise to_failure(error) from error
    metadata = build_metadata(which, outcomes, run.policy, seconds=time.perf_counter() - started)
    if is_dry_by_click:
        metadata["iceberg/how_to_run"] = dg.MetadataValue.text(_how_to_run(which))
    return _conclude(which, outcomes, metadata, config)


def _how_to_run(which: MaintenanceOperation) -> str:
    return f"To run it, launch job {job_name(which)}, start its schedule, or set dry_run: false in the launchpad."


def job_name(which: MaintenanceOperation) -> str:
    """Name of the job that materializes a maintenance asset."""
    return f"{GROUP}_{which}_job"


def _build_asset(
    which: MaintenanceOperation, wiring: MaintenanceWiring, step: Step, *, after: MaintenanceOperation | None = None
) -> dg.AssetsDefinition:
    key = maintenance_key(which)
    return dg.asset(
        key=key,
        group_name=GROUP,
        # The engine that does the work, where that is certain; with 'auto' it is PyIceberg unless a table needs Spark.
        kinds={"iceberg"} | ({"spark"} if wiring.sources.resolve().policy.engine is MaintenanceEngine.SPARK else set()),
        description=f"{_DESCRIPTIONS[which]} {_RUN_OPTIONS}",
        required_resource_keys=wiring.resource_keys,
        op_tags=wiring.op_tags.get(which),
        check_specs=[dg.AssetCheckSpec(EVERY_TABLE_CHECK, asset=key, description="The last run failed for no table.")],
        deps=[] if after is None else [maintenance_key(after)],
        # Measuring tables conflicts with nothing.
        pool=None if which is MaintenanceOperation.TABLE_HEALTH else MAINTENANCE_POOL,
    )(step)


def _conclude(
    which: MaintenanceOperation,
    outcomes: Sequence[TableOutcome],
    metadata: Mapping[str, dg.MetadataValue],
    config: MaintenanceConfig,
) -> dg.MaterializeResult[None]:
    """A materialization; a failure if every table failed, or any with `fail_on_error`."""
    failed = [outcome for outcome in outcomes if outcome.status is MaintenanceStatus.FAILED]
    if failed and (config.fail_on_error or len(failed) == len(outcomes)):
        names = ", ".join(outcome.table for outcome in failed[:10])
        raise dg.Failure(
            f"{which} failed for {len(failed)} of {len(outcomes)} tables: {names}. {failed[0].note}", metadata=metadata
        )
    check = dg.AssetCheckResult(
        check_name=EVERY_TABLE_CHECK,
        passed=not failed,
        metadata={"iceberg/failed": [outcome.table for outcome in failed]},
    )
    # A constant data version keeps assets from becoming stale: only retention changes rows, and no asset reads those.
    return dg.MaterializeResult(metadata=metadata, check_results=[check], data_version=dg.DataVersion("maintained"))
