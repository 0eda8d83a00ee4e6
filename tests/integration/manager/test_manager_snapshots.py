"""Snapshots on a real catalog: what is listed, what each one holds, where a table can go back to."""

from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.table import Table
from support.lake import Lake
from support.snapshot_history import NOW, SCHEMA, T, days_ago, grow, numbers

from floe_dagster_iceberg.errors import NoSuchTableError, RollbackError, SnapshotNotFoundError, ValidationError
from floe_dagster_iceberg.models import OperationType, TableIdentifier
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes


@pytest.mark.requirement("S2-US4.1", "S2-FR-006", "S2-FR-025", "S1-T045/50-53", "S4-list_snapshots(limit)")
def test_snapshots_are_listed_newest_first_with_true_operations_and_counts(
    manager: IcebergTableManager, lake: Lake, table: Table
) -> None:
    before = datetime.now(UTC)
    manager.append(T, numbers(1, 2, 3))
    manager.overwrite(T, numbers(7), overwrite_filter="n = 3")
    manager.delete(T, "n = 1")

    listed = manager.list_snapshots(table)

    assert [one.operation for one in listed] == [OperationType.OVERWRITE, OperationType.OVERWRITE, OperationType.APPEND]
    assert [(one.added_records, one.deleted_records, one.total_records) for one in reversed(listed)] == [
        (3, 0, 3),
        (3, 3, 3),
        (1, 2, 2),
    ]
    assert [one.snapshot_id for one in reversed(listed)] == [one.snapshot_id for one in lake.table(T).snapshots()]
    assert all(before - timedelta(milliseconds=1) <= one.timestamp <= datetime.now(UTC) for one in listed)
    for one in listed:
        summary = lake.table(T).snapshot_by_id(one.snapshot_id).summary
        assert (one.added_files, one.added_records) == (
            int(summary["added-data-files"]),
            int(summary["added-records"]),
        )


@pytest.mark.requirement("S4-list_snapshots(limit)")
def test_a_limit_keeps_the_newest(manager: IcebergTableManager, three: list[int]) -> None:
    assert [one.snapshot_id for one in manager.list_snapshots(T, limit=2)] == [three[2], three[1]]
    with pytest.raises(ValidationError, match="at least 1"):
        manager.list_snapshots(T, limit=0)


def test_the_order_is_that_of_commits_whatever_clocks_say(manager: IcebergTableManager, three: list[int]) -> None:
    late, early = grow(manager.load_table(T), [NOW, days_ago(1)])

    assert [one.snapshot_id for one in manager.list_snapshots(T)] == [early, late, *reversed(three)]


@pytest.mark.requirement("S4-list_snapshots(limit)", "S0-S1")
def test_a_table_that_was_never_written_has_no_snapshot(manager: IcebergTableManager, table: Table) -> None:
    assert manager.get_current_snapshot(table) is None
    assert manager.list_snapshots(table) == []


@pytest.mark.requirement("S0-S1")
def test_the_current_snapshot_is_the_catalogs_not_the_handles(manager: IcebergTableManager, lake: Lake) -> None:
    stale = manager.create_table(T, SCHEMA)
    newest = manager.append(T, numbers(1))

    assert manager.get_current_snapshot(stale) == newest
    assert manager.get_current_snapshot(TableIdentifier.from_string(T)).snapshot_id == newest.snapshot_id
    assert lake.table(T).current_snapshot().snapshot_id == newest.snapshot_id


@pytest.mark.requirement("S2-US4.2", "S2-FR-023", "S0-S1")
def test_each_snapshot_returns_its_own_rows(manager: IcebergTableManager, three: list[int]) -> None:
    found = [sorted(manager.scan(T, snapshot_id=one)["n"].to_pylist()) for one in three]

    assert found == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.requirement("S2-SC-005")
def test_any_of_a_hundred_snapshots_can_be_read(manager: IcebergTableManager, table: Table) -> None:
    manager.append(table, numbers(1))
    ids = grow(table, [days_ago(100 - day) for day in range(100)])

    counts = {manager.scan(T, snapshot_id=one).num_rows for one in ids[::10]}

    assert counts == {1}


@pytest.mark.requirement("S2-US4.3", "S2-FR-007", "S1-T045/50-53", "S0-S1")
def test_a_rollback_restores_the_rows_and_keeps_the_history(
    manager: IcebergTableManager, lake: Lake, three: list[int]
) -> None:
    versions = lake.metadata_versions(T)

    restored = manager.rollback_to_snapshot(T, three[0])

    assert restored.snapshot_id == lake.table(T).current_snapshot().snapshot_id == three[0]
    assert lake.rows(T) == [(1,)]
    assert {one.snapshot_id for one in manager.list_snapshots(T)} == set(three)
    assert lake.metadata_versions(T) == versions + 1
    assert sorted(manager.scan(T, snapshot_id=three[2])["n"].to_pylist()) == [1, 2, 3]


def test_a_rollback_to_where_the_table_is_commits_nothing(
    manager: IcebergTableManager, lake: Lake, three: list[int]
) -> None:
    versions = lake.metadata_versions(T)

    assert manager.rollback_to_snapshot(T, three[2]).snapshot_id == three[2]

    assert lake.metadata_versions(T) == versions


@pytest.mark.requirement("S2-FR-007")
def test_an_unknown_snapshot_is_no_place_to_go_back_to(manager: IcebergTableManager, three: list[int]) -> None:
    with pytest.raises(SnapshotNotFoundError, match="'42'"):
        manager.rollback_to_snapshot(T, 42)

    assert manager.get_current_snapshot(T).snapshot_id == three[2]


@pytest.mark.requirement("S2-FR-007")
def test_a_snapshot_outside_mains_history_is_no_place_to_go_back_to(
    manager: IcebergTableManager, lake: Lake, three: list[int]
) -> None:
    aside = manager.append(T, numbers(9), branch="aside")
    manager.rollback_to_snapshot(T, three[0])

    for elsewhere in (aside.snapshot_id, three[1]):
        with pytest.raises(RollbackError, match="not part of main's history"):
            manager.rollback_to_snapshot(T, elsewhere)

    assert lake.rows(T) == [(1,)]


@pytest.mark.requirement("S0-S1", "S2-US4.3")
def test_a_rollback_in_time_finds_what_main_was_then(manager: IcebergTableManager, table: Table) -> None:
    manager.append(table, numbers(1))
    grown = grow(table, [days_ago(3), days_ago(2), days_ago(1)])

    assert manager.rollback_to_timestamp(T, days_ago(1.5)).snapshot_id == grown[1]
    assert manager.rollback_to_timestamp(T, days_ago(2)).snapshot_id == grown[1]
    assert manager.rollback_to_timestamp(T, int(days_ago(2.5).timestamp() * 1000)).snapshot_id == grown[0]


def test_a_rollback_in_time_needs_a_timestamp_that_main_knows(manager: IcebergTableManager, three: list[int]) -> None:
    with pytest.raises(ValidationError, match="no time zone"):
        manager.rollback_to_timestamp(T, datetime(2024, 1, 1))  # noqa: DTZ001 - that is the point
    with pytest.raises(RollbackError, match=r"'2001-01-01T00:00:00\+00:00'.*that old"):
        manager.rollback_to_timestamp(T, datetime(2001, 1, 1, tzinfo=UTC))

    assert manager.get_current_snapshot(T).snapshot_id == three[2]


def test_a_table_that_is_not_there_has_no_history(manager: IcebergTableManager) -> None:
    for ask in (manager.list_snapshots, manager.get_current_snapshot, manager.manage_snapshots):
        with pytest.raises(NoSuchTableError, match="nope"):
            ask("bronze.nope")
