"""Deleting rows: exactly those that a scan with the same filter finds, whatever the partitions and statistics say."""

import math

import pyarrow as pa
import pytest
from support.lake import Lake
from support.table_facts import live_files, recounted_totals, summary_totals

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import OperationType
from floe_dagster_iceberg.table.manager import IcebergTableManager

NAN = float("nan")


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-022")
def test_a_delete_is_one_version_and_one_snapshot(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    manager.append("bronze.t", pa.table({"id": [1, 2, 3]}))

    snapshot = manager.delete("bronze.t", "id > 1")

    table = lake.table("bronze.t")
    assert snapshot is not None
    assert (len(table.metadata.snapshots), lake.metadata_versions("bronze.t")) == (2, 3)
    assert table.current_snapshot().snapshot_id == snapshot.snapshot_id
    assert (snapshot.operation, snapshot.deleted_records, snapshot.added_records) == (OperationType.OVERWRITE, 3, 1)
    assert summary_totals(table.current_snapshot()) == recounted_totals(table)


@pytest.mark.lakes
def test_whole_files_are_dropped_and_that_is_called_a_delete(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    manager.append("bronze.t", pa.table({"id": [1, 2]}))
    manager.append("bronze.t", pa.table({"id": [3, 4]}))

    snapshot = manager.delete("bronze.t", "id <= 2")

    assert snapshot is not None
    assert (snapshot.operation, snapshot.deleted_files, snapshot.added_files) == (OperationType.DELETE, 1, 0)
    assert lake.rows("bronze.t") == [(3,), (4,)]


def test_nothing_to_delete_commits_nothing(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    assert manager.delete("bronze.t", "id = 1") is None
    manager.append("bronze.t", pa.table({"id": [2, 4]}))
    files = lake.files()

    assert manager.delete("bronze.t", "id = 3") is None

    assert lake.metadata_versions("bronze.t") == 2
    assert lake.files() == files


def test_all_rows_can_be_deleted(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    manager.append("bronze.t", pa.table({"id": [1, None]}))

    manager.delete("bronze.t", "id is null or id is not null")

    assert lake.rows("bronze.t") == []
    assert live_files(lake.table("bronze.t")) == {}


@pytest.mark.parametrize("given", ["", "id ===", "nothing = 1", "id = 'x'", 5, None, True])
def test_a_filter_that_is_invalid_is_refused(lake: Lake, manager: IcebergTableManager, given: object) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))

    with pytest.raises(ValidationError, match=r"bronze\.t"):
        manager.delete("bronze.t", given)
    assert lake.metadata_versions("bronze.t") == 1


@pytest.mark.parametrize("row_filter", ["x < 5", "x > -5", "x = 1", "x in (1, 2)"])
def test_not_a_number_matches_no_comparison(lake: Lake, manager: IcebergTableManager, row_filter: str) -> None:
    manager.create_table("bronze.t", pa.schema([("x", pa.float64())]))
    manager.append("bronze.t", pa.table({"x": [1.0, NAN]}))

    manager.delete("bronze.t", row_filter)

    assert [math.isnan(row[0]) for row in lake.rows("bronze.t")] == [True]


def test_files_that_hold_only_null_match_no_inequality(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64()), ("s", pa.string())]))
    manager.append("bronze.t", pa.table({"id": pa.array([None, None], pa.int64()), "s": ["a", "b"]}))

    for row_filter in ("id != 5", "id not in (5, 6)", "not id = 5"):
        assert manager.delete("bronze.t", row_filter) is None
    assert len(lake.rows("bronze.t")) == 2


def test_a_field_of_a_struct_decides_about_whole_files_as_well(lake: Lake, manager: IcebergTableManager) -> None:
    rows = pa.table({"inner": [{"n": 1}, {"n": 2}]})
    manager.create_table("bronze.t", rows.schema)
    manager.append("bronze.t", rows)

    snapshot = manager.delete("bronze.t", "inner.n != 5")

    assert snapshot is not None
    assert snapshot.operation is OperationType.DELETE
    assert lake.rows("bronze.t") == []
