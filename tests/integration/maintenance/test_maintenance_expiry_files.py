"""Which files go with expired snapshots, and which never do."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.table import Table
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate
from support.lake import Lake
from support.maintenance_expiry import EXPIRY, expire, policy
from support.maintenance_tables import DAY, EAGER, ORDERS, later, replace_often, rows_of, to_path
from support.racing_catalog import racing_manager

from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceStatus
from floe_dagster_iceberg.table.maintenance import unreferenced_files as file_cleanup
from floe_dagster_iceberg.table.manager import IcebergTableManager


def test_statistics_go_with_their_snapshot(lake: Lake, manager: IcebergTableManager) -> None:
    old, current = replace_often(manager, 2)
    written = [_add_statistics(manager.load_table(ORDERS), snapshot_id) for snapshot_id in (old, current)]

    result = expire(manager)

    assert result.status is MaintenanceStatus.DONE
    assert [path.exists() for paths in written for path in paths] == [False, False, True, True]
    assert lake.table(ORDERS).metadata.statistics[0].snapshot_id == current


def test_metadata_files_that_dropped_out_of_the_log_are_deleted(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table(ORDERS, rows_of(0).schema, properties={"write.metadata.previous-versions-max": "2"})
    for batch in range(6):
        manager.append(ORDERS, rows_of(batch, days=1))
    assert len(lake.files("**/*.metadata.json")) == 7

    result = expire(manager, policy(min_snapshots_to_keep=100))

    assert (result.snapshots_expired, result.files_removed) == (0, 4)
    assert len(lake.files("**/*.metadata.json")) == 3


def test_metadata_files_of_another_table_in_the_same_folder_stay(lake: Lake, manager: IcebergTableManager) -> None:
    replace_often(manager, 3)
    manager.drop_table(ORDERS)
    dropped = lake.files()
    manager.create_table(ORDERS, rows_of(0).schema, properties={"write.metadata.previous-versions-max": "1"})
    for batch in range(6):
        manager.append(ORDERS, rows_of(batch, days=1))

    expire(manager)

    assert dropped <= lake.files()
    assert len(lake.files("**/*.metadata.json") - dropped) == 2


def test_metadata_files_that_are_young_stay(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table(ORDERS, rows_of(0).schema, properties={"write.metadata.previous-versions-max": "1"})
    for batch in range(4):
        manager.append(ORDERS, rows_of(batch, days=1))

    expire(manager, after=timedelta(hours=1))

    assert len(lake.files("**/*.metadata.json")) == 5


def test_a_file_that_is_added_again_after_the_expiry_is_not_deleted(
    manager: IcebergTableManager, tmp_path: Path
) -> None:
    first, _ = replace_often(manager, 2)
    old = _data_file(manager, first)
    slow = racing_manager(tmp_path, afterwards=[lambda: manager.load_table(ORDERS).add_files([old])])

    result = expire(slow)

    assert result.snapshots_expired == 1
    assert to_path(old).exists()
    assert manager.scan(ORDERS).num_rows == 2 * rows_of(0, days=1).num_rows


@pytest.mark.requirement("S2-US4.4")
def test_every_batch_of_deletions_looks_at_the_newest_metadata_first(
    manager: IcebergTableManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_cleanup, "DELETE_BATCH", 2)
    history = replace_often(manager, 5)
    old = {to_path(_data_file(manager, snapshot_id)) for snapshot_id in history[:-1]}
    rescued: set[Path] = set()

    def add_one_again(message: str) -> None:
        left = {path for path in old if path.exists()}
        if "files checked" in message and left and not rescued:
            rescued.add(path := left.pop())
            manager.load_table(ORDERS).add_files([f"file://{path}"])

    maintenance = TableMaintenance(manager, clock=lambda: later(8 * DAY), progress=add_one_again)
    result = maintenance.execute(EXPIRY, ORDERS, EAGER)

    assert result.snapshots_expired == 4
    assert {path for path in old if path.exists()} == rescued
    assert manager.scan(ORDERS).num_rows == 2 * rows_of(0, days=1).num_rows


def test_a_table_whose_manifest_is_missing_fails_and_loses_no_file(lake: Lake, manager: IcebergTableManager) -> None:
    replace_often(manager, 3)
    table = manager.load_table(ORDERS)
    to_path(table.current_snapshot().manifests(table.io)[0].manifest_path).unlink()
    before = lake.data_files()

    result = expire(manager)

    assert result.status is MaintenanceStatus.FAILED
    assert "missing from storage" in (result.error or "")
    assert lake.data_files() == before


def _data_file(manager: IcebergTableManager, snapshot_id: int) -> str:
    [task] = manager.load_table(ORDERS).scan(snapshot_id=snapshot_id).plan_files()
    return task.file.file_path


def _add_statistics(table: Table, snapshot_id: int) -> list[Path]:
    """Statistics of both kinds, with files that exist."""
    paths = [
        to_path(f"{table.location()}/metadata/{snapshot_id}-{kind}") for kind in ("ndv.stats", "partitions.parquet")
    ]
    for path in paths:
        path.write_bytes(b"statistics")
    of_columns = StatisticsFile(
        snapshot_id=snapshot_id,
        statistics_path=f"file://{paths[0]}",
        file_size_in_bytes=10,
        file_footer_size_in_bytes=2,
        blob_metadata=[],
    )
    with table.update_statistics() as update:
        update.set_statistics(of_columns)
    of_partitions = PartitionStatisticsFile(
        snapshot_id=snapshot_id, statistics_path=f"file://{paths[1]}", file_size_in_bytes=10
    )
    transaction = TableTransaction(table)
    transaction.stage([SetPartitionStatisticsUpdate(partition_statistics=of_partitions)])
    transaction.commit_once()
    return paths
