"""The maintenance assets: each materialization reports what was done to every table."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import dagster as dg

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.failures import to_failure
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.maintenance.policy import PolicySources
from floe_dagster_iceberg.maintenance.report import build_health_metadata, build_operation_metadata
from floe_dagster_iceberg.maintenance.runner import MaintenanceRun, TableOutcome
from floe_dagster_iceberg.maintenance.settings import MAINTENANCE_ASSETS, HealthConfig, MaintenanceConfig, OrphanConfig
from floe_dagster_iceberg.models import MaintenanceOperation, MaintenanceStatus, snapshot_properties
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.run_identity import describe_asset_run, telemetry_of_run
from floe_dagster_iceberg.telemetry import Operation, attributes as attrs

Step = Callable[..., dg.MaterializeResult[None]]

GROUP: Final = "iceberg_maintenance"
# Limited to one, it lets no two operations work at the same time, and so never on one table.
MAINTENANCE_POOL: Final = GROUP
EVERY_TABLE_CHECK: Final = "every_table_succeeded"

_DESCRIPTIONS: Final = {
    MaintenanceOperation.TABLE_HEALTH: "Measures the files, snapshots and manifests of tables. Changes nothing.",
    MaintenanceOperation.COMPACTION: "Merges small data files and applies delete files. Rows stay the same.",
    MaintenanceOperation.SNAPSHOT_EXPIRY: "Expires old snapshots and deletes the files that only they reference.",
    MaintenanceOperation.MANIFESTS: "Merges manifests for faster scan planning. Data files stay the same.",
    MaintenanceOperation.ORPHAN_FILES: "Moves files that no snapshot references to quarantine and deletes them later.",
}
_RUN_OPTIONS: Final = "The run config supports dry runs, table selection and both engines."


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
        """Keys of the resources that steps need."""
        return {key for key in (self.iceberg_resource_key, self.spark_resource_key) if key is not None}

    def open_run(self, which: MaintenanceOperation, context: Any, sources: PolicySources) -> MaintenanceRun:
        """Everything one step needs; Spark is not started before it is used."""
        iceberg: IcebergResource = getattr(context.resources, self.iceberg_resource_key)
        manager = iceberg.table_manager
        maintenance = TableMaintenance(
            manager,
            spark=self._spark(context),
            progress=context.log.info,
            snapshot_properties={
                snapshot_properties.RUN_ID: context.run.run_id,
                snapshot_properties.ASSET_KEY: maintenance_key(which).to_user_string(),
            },
        )
        return MaintenanceRun(which, manager, maintenance, sources, context.log)

    def _spark(self, context: Any) -> Callable[[], Any] | None:
        if self.spark_resource_key is None:
            return None
        resource = getattr(context.resources, self.spark_resource_key)
        return lambda: resource.spark_session


def maintenance_key(which: MaintenanceOperation) -> dg.AssetKey:
    """Key of a maintenance asset."""
    return dg.AssetKey([GROUP, which.value])


def build_maintenance_assets(wiring: MaintenanceWiring) -> list[dg.AssetsDefinition]:
    """The five assets. Materialized together they run one after the other, in a sensible order."""
    first, *others = MAINTENANCE_ASSETS
    assets = [_build_asset(first, wiring, _health_step(wiring))]
    for previous, which in zip((first, *others), others, strict=False):
        assets.append(_build_asset(which, wiring, _operation_step(which, wiring), after=previous))
    return assets


# Dagster does not know a result with checks by its annotation when that has a type parameter.
def _health_step(wiring: MaintenanceWiring) -> Step:
    which = MaintenanceOperation.TABLE_HEALTH

    def measure(context: dg.AssetExecutionContext, config: HealthConfig) -> dg.MaterializeResult:  # type: ignore[type-arg]
        started = time.perf_counter()
        with _whole_run(which, context) as operation:
            run = wiring.open_run(which, context, config.apply_to(wiring.sources))
            outcomes = run.measure(config.health_tier)
            operation.set_attributes({attrs.TABLES: len(outcomes)})
        metadata = build_health_metadata(outcomes, run.policy, seconds=time.perf_counter() - started)
        return _conclude(which, outcomes, metadata, config)

    return measure


def _operation_step(which: MaintenanceOperation, wiring: MaintenanceWiring) -> Step:
    if which is MaintenanceOperation.ORPHAN_FILES:
        return _orphan_step(wiring)

    def operate(context: dg.AssetExecutionContext, config: MaintenanceConfig) -> dg.MaterializeResult:  # type: ignore[type-arg]
        return _operate(which, wiring, context, config, MaintenanceRun.operate)

    return operate


def _orphan_step(wiring: MaintenanceWiring) -> Step:
    def clear_or_restore(context: dg.AssetExecutionContext, config: OrphanConfig) -> dg.MaterializeResult:  # type: ignore[type-arg]
        work = MaintenanceRun.restore if config.restore else MaintenanceRun.operate
        return _operate(MaintenanceOperation.ORPHAN_FILES, wiring, context, config, work)

    return clear_or_restore


def _operate(
    which: MaintenanceOperation,
    wiring: MaintenanceWiring,
    context: dg.AssetExecutionContext,
    config: MaintenanceConfig,
    work: Callable[[MaintenanceRun], list[TableOutcome]],
) -> dg.MaterializeResult[None]:
    started = time.perf_counter()
    with _whole_run(which, context) as operation:
        run = wiring.open_run(which, context, config.apply_to(wiring.sources))
        outcomes = work(run)
        operation.set_attributes({attrs.TABLES: len(outcomes)})
    metadata = build_operation_metadata(which, outcomes, run.policy, seconds=time.perf_counter() - started)
    return _conclude(which, outcomes, metadata, config)


@contextmanager
def _whole_run(which: MaintenanceOperation, context: dg.AssetExecutionContext) -> Iterator[Operation]:
    """The span of a run. Errors that concern no single table, such as an unreachable catalog, fail the run."""
    attributes = {attrs.MAINTENANCE_ASSET: which.value, **describe_asset_run(context)}
    try:
        with telemetry_of_run().operation("run_maintenance", attributes) as operation:
            yield operation
    except FloeStorageError as error:
        raise to_failure(error) from error


def _build_asset(
    which: MaintenanceOperation, wiring: MaintenanceWiring, step: Step, *, after: MaintenanceOperation | None = None
) -> dg.AssetsDefinition:
    key = maintenance_key(which)
    return dg.asset(
        key=key,
        group_name=GROUP,
        kinds={"iceberg"} | ({"spark"} if wiring.spark_resource_key else set()),
        description=f"{_DESCRIPTIONS[which]} {_RUN_OPTIONS}",
        required_resource_keys=wiring.resource_keys,
        op_tags=wiring.op_tags.get(which),
        check_specs=[dg.AssetCheckSpec(EVERY_TABLE_CHECK, asset=key, description="The last run failed for no table.")],
        deps=[] if after is None else [maintenance_key(after)],
        # Measuring a table gets in the way of nothing.
        pool=None if which is MaintenanceOperation.TABLE_HEALTH else MAINTENANCE_POOL,
    )(step)


def _conclude(
    which: MaintenanceOperation,
    outcomes: Sequence[TableOutcome],
    metadata: Mapping[str, dg.MetadataValue],
    config: MaintenanceConfig,
) -> dg.MaterializeResult[None]:
    """A materialization, or a failure when no table succeeded or the run is to fail for a single one."""
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
    # Maintenance changes no row: a constant data version keeps downstream assets from becoming stale.
    return dg.MaterializeResult(metadata=metadata, check_results=[check], data_version=dg.DataVersion("maintained"))
