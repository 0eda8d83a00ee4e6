"""Asset checks of who writes a table: a main branch that lags behind, and writers that the asset does not know."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from floe_dagster_iceberg.asset_metadata import SNAPSHOT_ID, tables_of
from floe_dagster_iceberg.errors import NoSuchTableError
from floe_dagster_iceberg.models import SnapshotInfo, SnapshotWriter, TableIdentifier, snapshot_properties
from floe_dagster_iceberg.secrets import describe_failure

if TYPE_CHECKING:
    from pyiceberg.table import Table

MAIN_CHECK: Final = "iceberg_main_is_current"
WRITER_CHECK: Final = "iceberg_no_foreign_writer"
_MOST_NAMED: Final = 3


def build_writer_checks(
    assets: Iterable[dg.AssetsDefinition | dg.AssetSpec],
    *,
    iceberg_resource_key: str = "iceberg",
    default_namespace: str = "public",
) -> Sequence[dg.AssetChecksDefinition]:
    """Build checks of who writes the tables of assets. They read metadata only, and only warn.

    - `iceberg_main_is_current` fails if there are snapshots newer than main that are not part of it: a branch that
      was not published, or a write that a rollback has removed.
    - `iceberg_no_foreign_writer`, of assets that this code location materializes, fails if rows of main were changed
      by something else since the asset's last run.

    Args:
        assets: Assets, and specs of external assets.
        iceberg_resource_key: Key of the `IcebergResource`.
        default_namespace: Namespace of assets whose key has one part, as in their IO manager.
    """
    checks: list[dg.AssetChecksDefinition] = []
    for each in assets:
        for key, table in tables_of([each], default_namespace=default_namespace).items():
            checks.append(_build_main_check(key, table, iceberg_resource_key))
            if isinstance(each, dg.AssetsDefinition) and each.is_executable:
                checks.append(_build_writer_check(key, table, iceberg_resource_key))
    return checks


def _build_main_check(key: dg.AssetKey, table: TableIdentifier, resource_key: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=key,
        name=MAIN_CHECK,
        description=f"Looks for snapshots of '{table}' that are newer than main and not part of it.",
        required_resource_keys={resource_key},
    )
    def main_is_current(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        from floe_dagster_iceberg.table.observation import newer_than_main  # noqa: PLC0415 - it loads PyIceberg

        loaded = _load(context, resource_key, table)
        if isinstance(loaded, dg.AssetCheckResult):
            return loaded
        newer = newer_than_main(loaded)
        found = f"Main of '{table}' lacks {len(newer)} newer snapshots: {_describe(newer)}. Publish their branch."
        return _result(newer, found, fine=f"Main of '{table}' has the newest snapshot.")

    return main_is_current


def _build_writer_check(key: dg.AssetKey, table: TableIdentifier, resource_key: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=key,
        name=WRITER_CHECK,
        description=f"Looks for changes of '{table}' since the asset's last run that another writer made.",
        required_resource_keys={resource_key},
    )
    def no_foreign_writer(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        loaded = _load(context, resource_key, table)
        if isinstance(loaded, dg.AssetCheckResult):
            return loaded
        foreign = _foreign_changes(loaded, key, _last_snapshot(context.op_execution_context.instance, key))
        found = f"Someone else wrote to '{table}' since the last run of '{key.to_user_string()}': {_describe(foreign)}."
        return _result(foreign, found, fine=f"No other writer changed '{table}' since the asset's last run.")

    return no_foreign_writer


def _load(
    context: dg.AssetCheckExecutionContext, resource_key: str, table: TableIdentifier
) -> "Table | dg.AssetCheckResult":
    manager = getattr(context.op_execution_context.resources, resource_key).table_manager
    try:
        loaded: Table = manager.load_table(table)
    except NoSuchTableError:
        return dg.AssetCheckResult(passed=True, description=f"Table '{table}' does not exist yet.")
    # Of any kind: a check must not fail the run that has just written the table.
    except Exception as error:  # noqa: BLE001
        return _warning(describe_failure(error))
    return loaded


def _last_snapshot(instance: dg.DagsterInstance, key: dg.AssetKey) -> int | None:
    """The snapshot of the asset's last materialization; None if there is none that names one."""
    for record in instance.fetch_materializations(key, limit=1).records:
        materialization = record.asset_materialization
        if materialization is not None and SNAPSHOT_ID in materialization.metadata:
            return int(str(materialization.metadata[SNAPSHOT_ID].value))
    return None


def _foreign_changes(table: "Table", key: dg.AssetKey, since: int | None) -> list[SnapshotInfo]:
    """Changes of rows by others after a snapshot, oldest first; none if the asset was never materialized."""
    from floe_dagster_iceberg._pyiceberg.transaction import history_of  # noqa: PLC0415 - it loads PyIceberg
    from floe_dagster_iceberg.table.observation import changes_rows  # noqa: PLC0415 - it loads PyIceberg

    foreign: list[SnapshotInfo] = []
    if since is None:
        return foreign
    for snapshot in history_of(table.metadata, table.current_snapshot()):
        if snapshot.snapshot_id == since:
            break
        info = SnapshotInfo.from_pyiceberg_snapshot(snapshot)
        if changes_rows(snapshot) and info.summary.get(snapshot_properties.ASSET_KEY) != key.to_user_string():
            foreign.insert(0, info)
    return foreign


def _describe(snapshots: Sequence[SnapshotInfo]) -> str:
    named = [
        f"snapshot {each.snapshot_id} by {SnapshotWriter.from_summary(each.summary)} "
        f"({each.added_records:,} rows added, {each.deleted_records:,} removed)"
        for each in snapshots[-_MOST_NAMED:]
    ]
    more = [f"{len(snapshots) - _MOST_NAMED} more"] if len(snapshots) > _MOST_NAMED else []
    return ", ".join([*named, *more])


def _result(found: Sequence[SnapshotInfo], description: str, *, fine: str) -> dg.AssetCheckResult:
    if not found:
        return dg.AssetCheckResult(passed=True, description=fine)
    metadata: dict[str, Any] = {"iceberg/snapshot_ids": [str(each.snapshot_id) for each in found]}
    return _warning(description, metadata)


def _warning(description: str, metadata: dict[str, Any] | None = None) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=False, severity=dg.AssetCheckSeverity.WARN, description=description, metadata=metadata or {}
    )
