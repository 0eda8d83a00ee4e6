"""The maintenance assets: a Dagster context and a policy in, a materialization that tells what was done out."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from dagster import (
    AssetCheckResult,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    DataVersion,
    Failure,
    MaterializeResult,
    MetadataValue,
    asset,
)

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.failures import to_failure
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.maintenance.policy_sources import PolicySources
from floe_dagster_iceberg.maintenance.report import build_health_metadata, build_operation_metadata
from floe_dagster_iceberg.maintenance.runner import MaintenanceRun, TableOutcome
from floe_dagster_iceberg.maintenance.settings import HealthConfig, MaintenanceAsset, MaintenanceConfig, OrphanConfig
from floe_dagster_iceberg.models import MaintenanceStatus
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.run_identity import describe_asset_run, telemetry_of_run
from floe_dagster_iceberg.telemetry import Operation
from floe_dagster_iceberg.telemetry import attributes as names

Step = Callable[..., MaterializeResult[None]]

GROUP: Final = "iceberg_maintenance"
# Limited to one, it lets no two operations work at the same time, and so never on one table.
MAINTENANCE_POOL: Final = GROUP
EVERY_TABLE_CHECK: Final = "every_table_succeeded"

_DESCRIPTIONS: Final = {
    MaintenanceAsset.TABLE_HEALTH: "Measures files, snapshots and manifests of the tables. Changes nothing.",
    MaintenanceAsset.COMPACTION: "Puts small files together, and delete files into their data files. No row changes.",
    MaintenanceAsset.SNAPSHOT_EXPIRY: "Lets old snapshots go, and deletes the files that only they could reach.",
    MaintenanceAsset.MANIFESTS: "Puts manifests together, so that scans are planned quicker. No data file is touched.",
    MaintenanceAsset.ORPHAN_FILES: "Moves files that no snapshot reaches into quarantine, and deletes them later.",
}
_KINDS_OF_RUNS: Final = "Run it for some tables, with another engine or as a dry run by the run's configuration."


@dataclass(frozen=True)
class MaintenanceWiring:
    """What all maintenance definitions share.

    Attributes:
        sources: Who decides how tables are maintained.
        iceberg_resource_key: Key of the `IcebergResource`.
        spark_resource_key: Key of the `IcebergSparkResource`; None when there is no Spark.
        op_tags: Tags of each asset's op, such as the size of its pod.
    """

    sources: PolicySources
    iceberg_resource_key: str = "iceberg"
    spark_resource_key: str | None = None
    op_tags: Mapping[MaintenanceAsset, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def resource_keys(self) -> set[str]:
        """Keys of the resources that steps need."""
        return {key for key in (self.iceberg_resource_key, self.spark_resource_key) if key is not None}

    def open_run(self, which: MaintenanceAsset, context: Any, sources: PolicySources) -> MaintenanceRun:
        """Everything one step needs; Spark is not started before it is used."""
        iceberg: IcebergResource = getattr(context.resources, self.iceberg_resource_key)
        manager = iceberg.table_manager
        maintenance = TableMaintenance(
            manager,
            spark=self._spark(context),
            progress=context.log.info,
            snapshot_properties={
                "dagster.run-id": context.run.run_id,
                "dagster.asset-key": maintenance_key(which).to_user_string(),
            },
        )
        return MaintenanceRun(which, manager, maintenance, sources, context.log)

    def _spark(self, context: Any) -> Callable[[], Any] | None:
        if self.spark_resource_key is None:
            return None
        resource = getattr(context.resources, self.spark_resource_key)
        return lambda: resource.spark_session


def maintenance_key(which: MaintenanceAsset) -> AssetKey:
    """Key of a maintenance asset."""
    return AssetKey([GROUP, which.value])


def build_maintenance_assets(wiring: MaintenanceWiring) -> list[AssetsDefinition]:
    """The five assets. Materialized together they run one after the other, in a sensible order."""
    first, *others = MaintenanceAsset
    assets = [_build_asset(first, wiring, _health_step(wiring))]
    for previous, which in zip((first, *others), others, strict=False):
        assets.append(_build_asset(which, wiring, _operation_step(which, wiring), after=previous))
    return assets


# Dagster does not know a result with checks by its annotation when that has a type parameter.
def _health_step(wiring: MaintenanceWiring) -> Step:
    which = MaintenanceAsset.TABLE_HEALTH

    def measure(context: AssetExecutionContext, config: HealthConfig) -> MaterializeResult:  # type: ignore[type-arg]
        started = time.perf_counter()
        with _whole_run(which, context) as operation:
            run = wiring.open_run(which, context, config.apply_to(wiring.sources))
            outcomes = run.measure(config.health_tier)
            operation.tell({names.TABLES: len(outcomes)})
        metadata = build_health_metadata(outcomes, run.policy, seconds=time.perf_counter() - started)
        return _conclude(which, outcomes, metadata, config)

    return measure


def _operation_step(which: MaintenanceAsset, wiring: MaintenanceWiring) -> Step:
    if which is MaintenanceAsset.ORPHAN_FILES:
        return _orphan_step(wiring)

    def operate(context: AssetExecutionContext, config: MaintenanceConfig) -> MaterializeResult:  # type: ignore[type-arg]
        return _operate(which, wiring, context, config, MaintenanceRun.operate)

    return operate


def _orphan_step(wiring: MaintenanceWiring) -> Step:
    def clear_or_restore(context: AssetExecutionContext, config: OrphanConfig) -> MaterializeResult:  # type: ignore[type-arg]
        work = MaintenanceRun.restore if config.restore else MaintenanceRun.operate
        return _operate(MaintenanceAsset.ORPHAN_FILES, wiring, context, config, work)

    return clear_or_restore


def _operate(
    which: MaintenanceAsset,
    wiring: MaintenanceWiring,
    context: AssetExecutionContext,
    config: MaintenanceConfig,
    work: Callable[[MaintenanceRun], list[TableOutcome]],
) -> MaterializeResult[None]:
    started = time.perf_counter()
    with _whole_run(which, context) as operation:
        run = wiring.open_run(which, context, config.apply_to(wiring.sources))
        outcomes = work(run)
        operation.tell({names.TABLES: len(outcomes)})
    metadata = build_operation_metadata(which, outcomes, run.policy, seconds=time.perf_counter() - started)
    return _conclude(which, outcomes, metadata, config)


@contextmanager
def _whole_run(which: MaintenanceAsset, context: AssetExecutionContext) -> Iterator[Operation]:
    """One operation. What concerns no single table, such as a catalog that cannot be reached, fails the run."""
    told = {names.MAINTENANCE_ASSET: which.value, **describe_asset_run(context)}
    try:
        with telemetry_of_run().operation("run_maintenance", told) as operation:
            yield operation
    except FloeStorageError as error:
        raise to_failure(error) from error


def _build_asset(
    which: MaintenanceAsset, wiring: MaintenanceWiring, step: Step, *, after: MaintenanceAsset | None = None
) -> AssetsDefinition:
    key = maintenance_key(which)
    return asset(
        key=key,
        group_name=GROUP,
        kinds={"iceberg"} | ({"spark"} if wiring.spark_resource_key else set()),
        description=f"{_DESCRIPTIONS[which]} {_KINDS_OF_RUNS}",
        required_resource_keys=wiring.resource_keys,
        op_tags=wiring.op_tags.get(which),
        check_specs=[AssetCheckSpec(EVERY_TABLE_CHECK, asset=key, description="No table failed in the last run.")],
        deps=[] if after is None else [maintenance_key(after)],
        # Looking at a table disturbs nobody.
        pool=None if which is MaintenanceAsset.TABLE_HEALTH else MAINTENANCE_POOL,
    )(step)


def _conclude(
    which: MaintenanceAsset,
    outcomes: Sequence[TableOutcome],
    metadata: Mapping[str, MetadataValue],
    config: MaintenanceConfig,
) -> MaterializeResult[None]:
    """A materialization, or a failure when no table succeeded or the run is to fail for a single one."""
    failed = [outcome for outcome in outcomes if outcome.status is MaintenanceStatus.FAILED]
    if failed and (config.fail_on_error or len(failed) == len(outcomes)):
        names = ", ".join(outcome.table for outcome in failed[:10])
        raise Failure(
            f"{which} failed for {len(failed)} of {len(outcomes)} tables: {names}. {failed[0].note}", metadata=metadata
        )
    check = AssetCheckResult(
        check_name=EVERY_TABLE_CHECK,
        passed=not failed,
        metadata={"iceberg/failed": [outcome.table for outcome in failed]},
    )
    # Maintenance changes no row: a version that never changes keeps what follows from looking out of date.
    return MaterializeResult(metadata=metadata, check_results=[check], data_version=DataVersion("maintained"))
