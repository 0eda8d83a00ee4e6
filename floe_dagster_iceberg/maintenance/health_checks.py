"""Asset checks that warn or fail if the table of an asset needs maintenance."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import dagster as dg

from floe_dagster_iceberg import models
from floe_dagster_iceberg.asset_metadata import IcebergAsset, tables_of
from floe_dagster_iceberg.errors import FloeStorageError, NoSuchTableError, UnsupportedMetadataError
from floe_dagster_iceberg.maintenance.assets import MaintenanceWiring
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.maintenance.policy import PolicySources, format_setting
from floe_dagster_iceberg.maintenance.report import health_measures, histogram_metadata
from floe_dagster_iceberg.maintenance.runner import files_saved_per_mib
from floe_dagster_iceberg.models import HealthThresholds, MaintenanceOperation, MaintenancePolicy, TableHealth
from floe_dagster_iceberg.secrets import describe_failure, redact

HEALTH_CHECK: Final = "iceberg_table_health"
# A share of very few files means nothing.
_FEWEST_FILES_FOR_A_SHARE: Final = 10


@dataclass(frozen=True)
class _Measure:
    """One measure of a check, and the operation that brings it down."""

    value: Callable[[TableHealth], float | None]
    remedy: MaintenanceOperation
    template: str


# By the names of their thresholds.
_MEASURES: Final[Mapping[str, _Measure]] = {
    "small_files": _Measure(
        lambda health: _if_work(health, health.small_files), MaintenanceOperation.COMPACTION, "{} small files"
    ),
    "small_file_share": _Measure(
        lambda health: _if_many(health, _if_work(health, health.small_file_share)),
        MaintenanceOperation.COMPACTION,
        "small file share is {}",
    ),
    "delete_ratio": _Measure(
        lambda health: _if_many(health, health.delete_ratio),
        MaintenanceOperation.COMPACTION,
        "{} delete files per data file",
    ),
    "snapshots": _Measure(lambda health: health.snapshots, MaintenanceOperation.SNAPSHOT_EXPIRY, "{} snapshots"),
    "manifests": _Measure(lambda health: health.manifests, MaintenanceOperation.MANIFESTS, "{} manifests"),
    "rows_overdue_days": _Measure(
        lambda health: health.rows_overdue_days,
        MaintenanceOperation.RETENTION,
        "rows are past their retention by {} days",
    ),
    "metadata_json_bytes": _Measure(
        lambda health: health.metadata_json_bytes, MaintenanceOperation.SNAPSHOT_EXPIRY, "metadata of {}"
    ),
}


def build_health_checks(
    assets: Iterable[IcebergAsset],
    policy: MaintenancePolicy | None = None,
    *,
    iceberg_resource_key: str = "iceberg",
    default_namespace: str = "public",
) -> Sequence[dg.AssetChecksDefinition]:
    """Build a health check for the table of every asset.

    A check warns above the first and fails above the second limit of `policy.thresholds`. It
    never blocks downstream assets. Small files count only where compaction would merge some
    of them, and in tables of at least `thresholds.min_table_bytes`. A table that does not
    exist yet is healthy, unless its asset has been materialized: then another IO manager has
    stored it.

    Args:
        assets: The assets.
        policy: Thresholds, and what counts as a small file; table properties take precedence.
        iceberg_resource_key: Key of the `IcebergResource`.
        default_namespace: Namespace of assets whose key has one part, as in their IO manager.
    """
    wiring = MaintenanceWiring(PolicySources(code=policy), iceberg_resource_key=iceberg_resource_key)
    return build_checks(tables_of(assets, default_namespace=default_namespace), wiring)


def build_checks(
    tables: Mapping[dg.AssetKey, models.TableIdentifier], wiring: MaintenanceWiring
) -> list[dg.AssetChecksDefinition]:
    """`build_health_checks` for definitions that share their wiring with others."""
    return [_build_check(key, table, wiring) for key, table in tables.items()]


def check_key(asset_key: dg.AssetKey) -> dg.AssetCheckKey:
    """Key of an asset's health check."""
    return dg.AssetCheckKey(asset_key, HEALTH_CHECK)


def _build_check(
    key: dg.AssetKey, table: models.TableIdentifier, wiring: MaintenanceWiring
) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=key,
        name=HEALTH_CHECK,
        description=f"Compares the files, snapshots and manifests of '{table}' with the thresholds of its policy.",
        required_resource_keys={wiring.iceberg_resource_key},
        metadata={"dagster/table_name": str(table)},
    )
    def table_is_healthy(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        manager = getattr(context.op_execution_context.resources, wiring.iceberg_resource_key).table_manager
        try:
            policy = wiring.sources.resolve(table, _properties_of(manager, table)).policy
            return _check(TableMaintenance(manager), table, policy)
        except NoSuchTableError:
            return _check_missing(context, key, table)
        # Of any kind: a check must not fail the run that has just written the table.
        except Exception as error:  # noqa: BLE001
            message = redact(str(error)) if isinstance(error, FloeStorageError) else describe_failure(error)
            return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description=message)

    return table_is_healthy


def _check_missing(
    context: dg.AssetCheckExecutionContext, key: dg.AssetKey, table: models.TableIdentifier
) -> dg.AssetCheckResult:
    if context.instance.get_latest_materialization_event(key) is None:
        return dg.AssetCheckResult(passed=True, description=f"Table '{table}' does not exist yet.")
    return dg.AssetCheckResult(
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"Asset '{key.to_user_string()}' was materialized, but there is no table '{table}': it was "
        'dropped, or another IO manager stores the asset. Set io_manager_key="iceberg_io_manager" on the asset.',
    )


def _properties_of(manager: Any, table: models.TableIdentifier) -> Mapping[str, str]:
    try:
        return dict(manager.load_table(table).properties)
    except UnsupportedMetadataError as error:
        if not error.document:
            raise
        # Little of the table is known, but that can be measured, by the policy of all tables.
        return {}


def _check(
    maintenance: TableMaintenance, table: models.TableIdentifier, policy: MaintenancePolicy
) -> dg.AssetCheckResult:
    health = maintenance.health(table, policy)
    breaches = list(find_breaches(health, policy.thresholds))
    grave = any(breach.grave for breach in breaches)
    return dg.AssetCheckResult(
        passed=not breaches,
        severity=dg.AssetCheckSeverity.ERROR if grave else dg.AssetCheckSeverity.WARN,
        description="; ".join(breach.sentence for breach in breaches) or f"Table '{table}' is healthy.",
        metadata={
            **_health_metadata(health),
            **_remedy_metadata(maintenance, table, policy, {breach.remedy for breach in breaches}),
        },
    )


@dataclass(frozen=True)
class ThresholdBreach:
    """A measure above its first limit or, if `grave`, above the second; `remedy` brings it down."""

    sentence: str
    grave: bool
    remedy: MaintenanceOperation


def find_breaches(health: TableHealth, thresholds: HealthThresholds) -> Iterator[ThresholdBreach]:
    """Compare a table's health with the thresholds."""
    is_tiny = health.total_bytes < thresholds.min_table_bytes
    for name, measure in _MEASURES.items():
        if is_tiny and measure.remedy is MaintenanceOperation.COMPACTION:
            continue
        value, limits = measure.value(health), getattr(thresholds, name)
        if value is None or value <= limits.warn:
            continue
        limit = limits.error if value > limits.error else limits.warn
        found = measure.template.format(format_setting(name, value))
        sentence = f"{found}, more than {format_setting(name, limit)}: run {measure.remedy}"
        yield ThresholdBreach(sentence, value > limits.error, measure.remedy)


def _if_work(health: TableHealth, value: float | None) -> float | None:
    # Small files that compaction would leave alone, such as one in each partition, are not reported.
    return value if health.partitions_needing_work else None


def _if_many(health: TableHealth, value: float | None) -> float | None:
    return value if health.data_files >= _FEWEST_FILES_FOR_A_SHARE else None


def _health_metadata(health: TableHealth) -> dict[str, Any]:
    size = health.metadata_json_bytes
    return {
        **health_measures(health),
        **({} if size is None else {"iceberg/metadata_json_bytes": size}),
        "dagster/table_name": str(health.table),
        **histogram_metadata(health.file_sizes or ()),
    }


def _remedy_metadata(
    maintenance: TableMaintenance,
    table: models.TableIdentifier,
    policy: MaintenancePolicy,
    remedies: set[MaintenanceOperation],
) -> dict[str, Any]:
    """The operations to run, and what compaction would save; the sensor ranks tables by it."""
    metadata: dict[str, Any] = {"iceberg/remedies": sorted(remedies)} if remedies else {}
    if MaintenanceOperation.COMPACTION in remedies:
        plan = maintenance.plan(MaintenanceOperation.COMPACTION, table, policy)
        metadata["iceberg/compaction_gain"] = files_saved_per_mib(plan)
        metadata["iceberg/compaction_bytes"] = plan.input_bytes
    return metadata
