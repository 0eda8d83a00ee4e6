"""Publishing a branch: one commit, replayed on top of what others committed, or a conflict that changes nothing."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from support.delete_files import delete_positions
from support.lake import Lake
from support.place import Place
from support.rival_writer import QUICK
from support.sales_table import BY_REGION, rows
from support.table_facts import live_files, recounted_totals, summary_totals
from support.unreliable_catalog import Fate, UnreliableCatalog

from floe_dagster_iceberg.errors import (
    CommitConflictError,
    EngineCapabilityError,
    SnapshotNotFoundError,
    ValidationError,
)
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes


def ids(lake: Lake, table: str) -> list[object]:
    return [row[0] for row in lake.rows(table)]


def test_a_branch_of_one_commit_is_published_by_moving_main(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    audited = manager.append(sales, rows((5, "EU")), branch="staging")
    versions = lake.metadata_versions(sales)

    published = manager.publish_branch(sales, "staging")

    table = lake.table(sales)
    assert published.snapshot_id == audited.snapshot_id == table.metadata.current_snapshot_id
    assert (set(table.metadata.refs), lake.metadata_versions(sales)) == ({"main"}, versions + 1)
    assert ids(lake, sales) == [1, 2, 3, 4, 5]


def test_several_commits_of_a_branch_become_one_snapshot_of_main(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    before = lake.table(sales).metadata.current_snapshot_id
    manager.append(sales, rows((5, "EU")), branch="staging")
    manager.overwrite(sales, rows((9, "EU")), overwrite_filter="region = 'EU'", branch="staging")
    manager.delete(sales, "id = 3", branch="staging")

    published = manager.publish_branch(sales, "staging")

    table = lake.table(sales)
    assert (published.parent_snapshot_id, table.metadata.current_snapshot_id) == (before, published.snapshot_id)
    assert ids(lake, sales) == [4, 9]
    assert summary_totals(table.current_snapshot()) == recounted_totals(table)


def test_appends_are_replayed_on_top_of_what_others_committed(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    audited = manager.append(sales, rows((5, "EU")), branch="staging")
    others = manager.append(sales, rows((6, "EU")))
    files = lake.data_files()

    published = manager.publish_branch(sales, "staging")

    table = lake.table(sales)
    assert published.parent_snapshot_id == others.snapshot_id
    assert published.summary["source-snapshot-id"] == str(audited.snapshot_id)
    assert (ids(lake, sales), lake.data_files()) == ([1, 2, 3, 4, 5, 6], files)
    assert summary_totals(table.current_snapshot()) == recounted_totals(table)
    assert set(table.metadata.refs) == {"main"}


def test_replaced_partitions_are_replaced_on_top_of_others(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    manager.overwrite(sales, rows((9, "EU")), overwrite_filter="region = 'EU'", branch="staging")
    manager.overwrite(sales, rows((8, "US")), overwrite_filter="region = 'US'")

    manager.publish_branch(sales, "staging")

    assert ids(lake, sales) == [4, 8, 9]


@pytest.mark.parametrize(
    "others",
    [
        lambda m, t: m.append(t, rows((6, "EU"))),
        lambda m, t: m.delete(t, "id = 1"),
        lambda m, t: m.overwrite(t, rows((7, "EU")), overwrite_filter="region = 'EU'"),
    ],
    ids=["append", "delete", "overwrite"],
)
def test_rows_that_changed_on_both_sides_are_a_conflict_that_changes_nothing(
    lake: Lake, manager: IcebergTableManager, sales: str, others: Callable[[IcebergTableManager, str], object]
) -> None:
    manager.overwrite(sales, rows((9, "EU")), overwrite_filter="region = 'EU'", branch="staging")
    others(manager, sales)
    found, versions = lake.rows(sales), lake.metadata_versions(sales)

    with pytest.raises(CommitConflictError, match="branch 'staging' replaced have changed on 'main'"):
        manager.publish_branch(sales, "staging")

    assert (lake.rows(sales), lake.metadata_versions(sales)) == (found, versions)
    assert "staging" in lake.table(sales).metadata.refs


def test_rows_of_a_replaced_file_that_others_deleted_stay_deleted(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    manager.overwrite(sales, rows((9, "EU")), overwrite_filter="region = 'EU'", branch="staging")
    table = lake.table(sales)
    file = next(file for file in live_files(table).values() if file.partition[0] == "EU")
    delete_positions(table, file, 0)

    with pytest.raises(CommitConflictError):
        manager.publish_branch(sales, "staging")


def test_delete_files_of_a_branch_are_moved_to_but_not_replayed(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    manager.create_branch(sales, "staging")
    table = lake.table(sales)
    file = next(file for file in live_files(table).values() if file.partition[0] == "EU")
    delete_positions(table, file, 0)
    # What Spark's DELETE on a branch leaves: main stays, the branch has the delete file.
    deleted = lake.table(sales).metadata.current_snapshot_id
    manager.create_branch(sales, "deletes", deleted)
    manager.rollback_to_snapshot(sales, lake.table(sales).metadata.refs["staging"].snapshot_id)

    manager.append(sales, rows((6, "US")), branch="moved")
    manager.publish_branch(sales, "moved")
    with pytest.raises(EngineCapabilityError, match="cannot repeat"):
        manager.publish_branch(sales, "deletes")
    manager.publish_branch(sales, "deletes", into="staging")

    assert lake.table(sales).metadata.refs["staging"].snapshot_id == deleted
    assert ids(lake, sales) == [1, 2, 3, 4, 6]


def test_a_published_branch_loses_no_file_when_its_snapshots_expire(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    manager.append(sales, rows((5, "EU")), branch="staging")
    manager.append(sales, rows((6, "EU")))
    manager.publish_branch(sales, "staging")

    expired = manager.expire_snapshots(sales, older_than=datetime.now(UTC) + timedelta(hours=1), retain_last=1)

    assert expired == 3
    assert ids(lake, sales) == [1, 2, 3, 4, 5, 6]


def test_a_branch_without_changes_is_only_removed(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    manager.create_branch(sales, "staging")
    others = manager.append(sales, rows((6, "EU")))

    manager.publish_branch(sales, "staging")

    table = lake.table(sales)
    assert (table.metadata.current_snapshot_id, set(table.metadata.refs)) == (others.snapshot_id, {"main"})


def test_what_cannot_be_published_says_so(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    manager.create_tag(sales, "v1")
    versions = lake.metadata_versions(sales)

    with pytest.raises(SnapshotNotFoundError, match="'nowhere'"):
        manager.publish_branch(sales, "nowhere")
    with pytest.raises(SnapshotNotFoundError, match="'nowhere'"):
        manager.publish_branch(sales, "main", into="nowhere")
    with pytest.raises(ValidationError, match="'v1' is a tag"):
        manager.publish_branch(sales, "v1")
    with pytest.raises(ValidationError, match="onto itself"):
        manager.publish_branch(sales, "main")
    assert lake.metadata_versions(sales) == versions


@pytest.mark.parametrize("fate", ["is lost after it landed", "is lost before it landed"])
@pytest.mark.parametrize("moved", [False, True])
def test_a_lost_response_publishes_once(catalog: UnreliableCatalog, place: Place, fate: Fate, moved: bool) -> None:  # noqa: FBT001
    manager, lake = IcebergTableManager(catalog, config=QUICK), Lake(place, catalog)
    manager.create_table("bronze.sales", rows().schema, BY_REGION)
    manager.append("bronze.sales", rows((1, "EU")))
    manager.append("bronze.sales", rows((2, "EU")), branch="staging")
    if moved:
        manager.append("bronze.sales", rows((3, "EU")))
    catalog.fates = [fate]

    manager.publish_branch("bronze.sales", "staging")

    assert ids(lake, "bronze.sales") == ([1, 2, 3] if moved else [1, 2])
    assert set(lake.table("bronze.sales").metadata.refs) == {"main"}


def test_an_append_that_lands_between_plan_and_commit_is_kept(catalog: UnreliableCatalog, place: Place) -> None:
    manager, lake = IcebergTableManager(catalog, config=QUICK), Lake(place, catalog)
    manager.create_table("bronze.sales", rows().schema, BY_REGION)
    manager.append("bronze.sales", rows((1, "EU")))
    manager.append("bronze.sales", rows((2, "EU")), branch="staging")
    rival, left = IcebergTableManager(place.connect()), [3]
    catalog.meanwhile = lambda: left and rival.append("bronze.sales", rows((left.pop(), "EU")))

    manager.publish_branch("bronze.sales", "staging")

    assert ids(lake, "bronze.sales") == [1, 2, 3]


@pytest.mark.lakes
@pytest.mark.parametrize("others", [[], [8]], ids=["main stood still", "main moved"])
def test_a_branch_whose_first_commits_have_expired_is_refused(
    lake: Lake, manager: IcebergTableManager, sales: str, others: Sequence[int]
) -> None:
    for number in (5, 6, 7):
        manager.append(sales, rows((number, "EU")), branch="staging")
    for number in others:
        manager.append(sales, rows((number, "US")))
    manager.expire_snapshots(sales, older_than_days=0, retain_last=1)
    found = ids(lake, sales)

    with pytest.raises(ValidationError, match="the snapshot where it began has expired"):
        manager.publish_branch(sales, "staging")

    assert ids(lake, sales) == found
