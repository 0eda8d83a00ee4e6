"""Manifests put together: the same files, listed in fewer places."""

import itertools
from pathlib import Path

import pyarrow as pa
from pyiceberg.table import Table
from support.lake import Lake
from support.maintenance_tables import EAGER, ORDERS, checksum, content, make_orders, paths_of, reachable_paths, rows_of
from support.racing_catalog import racing_manager

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    MaintenanceOperation,
    MaintenancePolicy,
    MaintenanceResult,
    MaintenanceStatus,
    ManifestPolicy,
    OperationType,
    PlanReason,
)
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.maintenance.manifests import rewrite_manifests
from floe_dagster_iceberg.table.manager import IcebergTableManager

BUDGET = CommitBudget(retries=3, base_delay_seconds=0.1)


def rewrite(manager: IcebergTableManager, by: MaintenancePolicy = EAGER) -> MaintenanceResult:
    return TableMaintenance(manager).execute(MaintenanceOperation.MANIFESTS, ORDERS, by)


def entries(table: Table) -> set[tuple[object, ...]]:
    """What the manifests say about each live file."""
    return {
        (entry.data_file.file_path, entry.snapshot_id, entry.sequence_number, entry.file_sequence_number)
        for manifest in table.current_snapshot().manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def manifests(table: Table) -> int:
    return len(table.current_snapshot().manifests(table.io))


def test_manifests_become_one_and_the_next_run_finds_nothing(manager: IcebergTableManager) -> None:
    before = make_orders(manager, batches=6, days=3)
    rows = content(manager)

    result = rewrite(manager)

    table = manager.load_table(ORDERS)
    assert (result.files_removed, result.files_added, manifests(table)) == (6, 1, 1)
    assert (result.before.manifests, result.after.manifests) == (6, 1)
    assert entries(table) == entries(before)
    assert content(manager) == rows
    assert rewrite(manager).plan.reason is PlanReason.BELOW_THRESHOLD


def test_the_snapshot_is_a_replacement_that_names_the_operation(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=3)
    before = manager.get_current_snapshot(ORDERS)

    rewrite(manager)

    snapshot = manager.get_current_snapshot(ORDERS)
    assert (snapshot.operation, snapshot.parent_snapshot_id) == (OperationType.REPLACE, before.snapshot_id)
    assert snapshot.summary["floe.maintenance.operation"] == "manifests"
    assert snapshot.summary["manifests-replaced"] == "3"
    totals = {key: value for key, value in before.summary.items() if key.startswith("total-")}
    assert {key: snapshot.summary[key] for key in totals} == totals


def test_few_manifests_are_left_alone(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=3)

    result = rewrite(manager, EAGER.model_copy(update={"manifests": ManifestPolicy(min_manifests=4)}))

    assert (result.status, result.plan.reason) == (MaintenanceStatus.SKIPPED, PlanReason.BELOW_THRESHOLD)
    assert manifests(manager.load_table(ORDERS)) == 3


def test_manifests_of_each_partition_spec_stay_apart(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=2)
    with manager.load_table(ORDERS).update_spec() as update:
        update.add_identity("region")
    for batch in (2, 3):
        manager.append(ORDERS, rows_of(batch))
    rows = content(manager)

    result = rewrite(manager)

    table = manager.load_table(ORDERS)
    assert (result.files_removed, result.files_added) == (4, 2)
    assert {manifest.partition_spec_id for manifest in table.current_snapshot().manifests(table.io)} == {0, 1}
    assert content(manager) == rows


def test_a_manifest_is_closed_at_its_target_size(manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=8, days=150)
    tiny = ManifestPolicy(min_manifests=2).model_copy(update={"target_manifest_size_bytes": 20_000})

    rewrite_manifests(table, tiny, BUDGET)

    table = manager.load_table(ORDERS)
    assert 1 < manifests(table) < 5
    assert len(entries(table)) == 8 * 150
    assert not rewrite_manifests(table, tiny, BUDGET).files_removed


def test_files_of_one_partition_end_up_beside_each_other(manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=8, days=150)
    tiny = ManifestPolicy(min_manifests=2).model_copy(update={"target_manifest_size_bytes": 20_000})

    rewrite_manifests(table, tiny, BUDGET)

    table = manager.load_table(ORDERS)
    ranges = sorted(
        (manifest.partitions[0].lower_bound, manifest.partitions[0].upper_bound)
        for manifest in table.current_snapshot().manifests(table.io)
    )
    assert len(ranges) > 1
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(ranges))


def test_removed_files_are_no_longer_listed(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=3)
    manager.overwrite(ORDERS, rows_of(9, days=1), overwrite_filter="day = '2024-01-01'")
    rows = content(manager)

    rewrite(manager)

    table = manager.load_table(ORDERS)
    assert sum(manifest.deleted_files_count for manifest in table.current_snapshot().manifests(table.io)) == 0
    assert content(manager) == rows


def test_a_partition_of_null_is_kept(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=1, days=2)
    undated = rows_of(1, days=1).set_column(1, "day", pa.nulls(3, pa.date32()))
    manager.append(ORDERS, undated)
    rows = content(manager)

    assert rewrite(manager).status is MaintenanceStatus.DONE
    assert content(manager) == rows


def test_an_appender_that_is_faster_keeps_its_rows(manager: IcebergTableManager, tmp_path: Path) -> None:
    make_orders(manager, batches=3, days=1)
    slow = racing_manager(tmp_path, *[lambda: manager.append(ORDERS, rows_of(9, days=1))] * 2)

    result = rewrite(slow)

    assert (result.status, result.files_removed) == (MaintenanceStatus.DONE, 3)
    assert manifests(manager.load_table(ORDERS)) == 3
    expected = [rows_of(batch, days=1) for batch in (0, 1, 2, 9, 9)]
    assert content(manager) == checksum(pa.concat_tables(expected))


def test_manifests_that_another_writer_replaced_meanwhile_are_not_brought_back(
    manager: IcebergTableManager, tmp_path: Path
) -> None:
    make_orders(manager, batches=3, days=1)
    slow = racing_manager(tmp_path, lambda: manager.overwrite(ORDERS, rows_of(9, days=1)))

    result = rewrite(slow)

    assert result.status in (MaintenanceStatus.DONE, MaintenanceStatus.SKIPPED)
    assert content(manager) == checksum(rows_of(9, days=1))
    table = manager.load_table(ORDERS)
    assert {path.name for path in paths_of(table) - reachable_paths(table) if path.suffix == ".avro"} == set()


def test_attempts_that_were_lost_leave_no_manifest_behind(
    lake: Lake, manager: IcebergTableManager, tmp_path: Path
) -> None:
    make_orders(manager, batches=3, days=1)

    rewrite(racing_manager(tmp_path, lambda: manager.append(ORDERS, rows_of(9, days=1))))

    unreferenced = paths_of(lake.table(ORDERS)) - reachable_paths(lake.table(ORDERS))
    # Only the metadata file of the attempt that the catalog refused, which PyIceberg leaves.
    assert {path.name.partition(".")[2] for path in unreferenced} <= {"metadata.json"}
