"""Replacing rows: in one snapshot, only those that match, on main or on a branch."""

import datetime as dt

import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysFalse, EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import DayTransform, MonthTransform
from support.lake import Lake
from support.sales_table import BY_REGION, rows
from support.table_facts import live_files, reachable_files, recounted_totals, summary_totals, to_path

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import CommitStrategy, OperationType
from floe_dagster_iceberg.table.manager import IcebergTableManager


@pytest.mark.lakes
@pytest.mark.requirement("S2-US5.2", "S2-FR-022")
def test_a_partition_is_replaced_in_one_snapshot_and_the_others_keep_their_files(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    before = live_files(lake.table(sales))

    snapshot = manager.overwrite(sales, rows((9, "EU")), overwrite_filter="region = 'EU'")

    table = lake.table(sales)
    after = live_files(table)
    kept = {path for path, file in before.items() if file.partition[0] != "EU"}
    assert len(kept) == 2
    assert kept < after.keys()
    assert len(after) == 3
    assert lake.rows(sales) == [(3, "US"), (4, None), (9, "EU")]
    assert (snapshot.operation, snapshot.deleted_files, snapshot.added_files) == (OperationType.OVERWRITE, 1, 1)
    assert (len(table.metadata.snapshots), lake.metadata_versions(sales)) == (2, 3)


@pytest.mark.requirement("S2-US5.2")
def test_files_whose_rows_all_match_are_dropped_unread(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    for path in live_files(lake.table(sales)):
        if "region=EU" in path:
            to_path(path).unlink()

    manager.overwrite(sales, rows((9, "EU")), overwrite_filter="region = 'EU'")

    assert lake.rows(sales) == [(3, "US"), (4, None), (9, "EU")]


@pytest.mark.lakes
def test_files_that_partially_match_the_filter_are_rewritten_and_others_are_not(
    lake: Lake, manager: IcebergTableManager
) -> None:
    manager.create_table("bronze.plain", rows().schema)
    for pairs in ([(1, "EU"), (2, "US")], [(3, "EU")], [(4, "US")]):
        manager.append("bronze.plain", rows(*pairs))
    untouched = {path for path, file in live_files(lake.table("bronze.plain")).items() if file.record_count == 1}

    snapshot = manager.overwrite("bronze.plain", rows((9, "EU")), overwrite_filter=EqualTo("id", 1))

    after = live_files(lake.table("bronze.plain"))
    assert untouched < after.keys()
    assert lake.rows("bronze.plain") == [(2, "US"), (3, "EU"), (4, "US"), (9, "EU")]
    assert (snapshot.deleted_files, snapshot.deleted_records, snapshot.added_records) == (1, 2, 2)


def test_rows_for_which_a_filter_says_neither_yes_nor_no_stay(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.plain", rows().schema)
    manager.append("bronze.plain", rows((1, "EU"), (2, None)))
    manager.append("bronze.plain", rows((3, None), (4, None)))

    manager.overwrite("bronze.plain", rows(), overwrite_filter="region = 'EU' or region != 'EU'")

    assert lake.rows("bronze.plain") == [(2, None), (3, None), (4, None)]


@pytest.mark.parametrize("words", ["region != 'EU'", "region not in ('EU', 'XX')", "not region = 'EU'", "region < 'V'"])
def test_a_partition_of_null_matches_no_comparison(
    lake: Lake, manager: IcebergTableManager, sales: str, words: str
) -> None:
    manager.overwrite(sales, rows(), overwrite_filter=words)

    assert (4, None) in lake.rows(sales)
    assert (3, "US") not in lake.rows(sales)


def test_a_filter_on_null_replaces_the_partition_of_null(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    manager.overwrite(sales, rows((5, None)), overwrite_filter="region is null")

    assert lake.rows(sales) == [(1, "EU"), (2, "EU"), (3, "US"), (5, None)]


@pytest.mark.requirement("S4-append")
def test_without_a_filter_all_rows_are_replaced(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    manager.overwrite(sales, rows((9, "US")))

    assert lake.rows(sales) == [(9, "US")]


def test_replacing_by_nothing_removes_the_rows(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    snapshot = manager.overwrite(sales, rows(), overwrite_filter="region = 'EU'")

    assert snapshot.operation is OperationType.DELETE
    assert lake.rows(sales) == [(3, "US"), (4, None)]


def test_an_empty_table_can_be_overwritten(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.new", rows().schema, BY_REGION)

    snapshot = manager.overwrite("bronze.new", rows((1, "EU")), overwrite_filter="region = 'EU'")

    assert (snapshot.operation, snapshot.parent_snapshot_id) == (OperationType.APPEND, None)
    assert lake.rows("bronze.new") == [(1, "EU")]


def test_a_filter_that_matches_nothing_only_adds(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    before = live_files(lake.table(sales)).keys()

    manager.overwrite(sales, rows((9, "ZZ")), overwrite_filter="region = 'ZZ'")
    manager.overwrite(sales, rows((10, "ZZ")), overwrite_filter=AlwaysFalse())

    assert before < live_files(lake.table(sales)).keys()
    assert len(lake.rows(sales)) == 6


def test_running_it_again_changes_nothing(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    for _ in range(3):
        manager.overwrite(sales, rows((9, "EU"), (10, "EU")), overwrite_filter="region = 'EU'")

    assert lake.rows(sales) == [(10, "EU"), (3, "US"), (4, None), (9, "EU")]


@pytest.mark.lakes
def test_a_new_column_comes_with_the_rows_in_the_same_version(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    new = rows((9, "EU")).append_column("note", pa.array(["x"]))

    manager.overwrite(sales, new, overwrite_filter="region = 'EU'")

    assert lake.metadata_versions(sales) == 3
    assert lake.rows(sales) == [(3, "US", None), (4, None, None), (9, "EU", "x")]


@pytest.mark.parametrize("strategy", CommitStrategy)
def test_totals_and_manifests_stay_right_over_many_overwrites(
    lake: Lake, manager: IcebergTableManager, sales: str, strategy: CommitStrategy
) -> None:
    for turn in range(6):
        region = ["EU", "US", None][turn % 3]
        words = "region is null" if region is None else f"region = '{region}'"
        manager.overwrite(sales, rows((turn, region)), overwrite_filter=words, commit_strategy=strategy)

    table = lake.table(sales)
    for snapshot in table.metadata.snapshots:
        assert summary_totals(snapshot) == recounted_totals(table, snapshot)
    assert lake.files() == reachable_files(table)
    assert lake.rows(sales) == [(3, "EU"), (4, "US"), (5, None)]


def test_a_time_window_replaces_whole_days_by_their_partition_and_part_of_one_by_rewriting_it(
    lake: Lake, manager: IcebergTableManager
) -> None:
    at = [dt.datetime(2024, 1, day, hour) for day in (1, 2, 3) for hour in (1, 23)]  # noqa: DTZ001
    table = pa.table({"at": pa.array(at, pa.timestamp("us"))})
    spec = PartitionSpec(
        PartitionField(source_id=1, field_id=1000, transform=DayTransform(), name="d"),
        PartitionField(source_id=1, field_id=1001, transform=MonthTransform(), name="m"),
    )
    manager.create_table("bronze.times", table.schema, spec)
    manager.append("bronze.times", table)

    snapshot = manager.overwrite(
        "bronze.times", table.slice(0, 0), overwrite_filter="at >= '2024-01-01T12:00:00' and at < '2024-01-03T00:00:00'"
    )

    assert [row[0] for row in lake.rows("bronze.times")] == [at[0], at[4], at[5]]
    assert (snapshot.deleted_files, snapshot.added_files) == (2, 1)


def test_rows_of_an_older_partition_spec_are_replaced_too(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    with lake.table(sales).update_spec() as update:
        update.remove_field("region")
    manager.append(sales, rows((5, "EU"), (6, "US")))

    manager.overwrite(sales, rows((9, "EU")), overwrite_filter="region = 'EU'")

    assert lake.rows(sales) == [(3, "US"), (4, None), (6, "US"), (9, "EU")]


def test_a_filter_on_a_column_that_is_not_there_is_refused_without_its_value(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    for words in ("nothing = 'SECRET'", "id = 'SECRET'", "SECRET ==== 1"):
        with pytest.raises(ValidationError) as refused:
            manager.overwrite(sales, rows(), overwrite_filter=words)
        assert "SECRET" not in f"{refused.value}{refused.value.__cause__}{refused.value.details}"
    assert lake.metadata_versions(sales) == 2
