"""Writing to branches: they begin at main, build on themselves, and leave main alone."""

from contextlib import closing

import pytest
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from support.lake import Lake
from support.place import Place
from support.rival_writer import QUICK
from support.sales_table import rows
from support.table_facts import live_files, to_path
from support.unreliable_catalog import UnreliableCatalog

from floe_dagster_iceberg.errors import SnapshotNotFoundError, ValidationError
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes


def test_a_new_branch_begins_at_main_and_main_is_left_alone(
    lake: Lake, manager: IcebergTableManager, sales: str
) -> None:
    main = lake.table(sales).current_snapshot().snapshot_id

    snapshot = manager.overwrite(sales, rows((9, "EU")), overwrite_filter="region = 'EU'", branch="staging")

    table = lake.table(sales)
    assert table.current_snapshot().snapshot_id == main
    assert table.metadata.refs["staging"].snapshot_id == snapshot.snapshot_id
    assert snapshot.parent_snapshot_id == main
    assert (len(table.metadata.snapshots), lake.metadata_versions(sales)) == (2, 3)
    assert sorted(manager.scan(sales, ref="staging").column("id").to_pylist()) == [3, 4, 9]
    assert len(lake.rows(sales)) == 4


def test_later_writes_to_a_branch_build_on_it(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    manager.append(sales, rows((5, "EU")), branch="staging")
    manager.append(sales, rows((6, "EU")))
    manager.delete(sales, "id = 1", branch="staging")
    manager.upsert(sales, rows((5, "US"), (7, "US")), ["id"], branch="staging")

    assert sorted(manager.scan(sales, ref="staging").column("id").to_pylist()) == [2, 3, 4, 5, 7]
    assert [row[0] for row in lake.rows(sales)] == [1, 2, 3, 4, 6]


@pytest.mark.parametrize(("ours", "theirs"), [("staging", "main"), ("main", "staging")])
def test_a_write_to_another_branch_in_between_loses_nothing(
    manager: IcebergTableManager, sales: str, place: Place, ours: str, theirs: str
) -> None:
    left = [rows((6, "EU"))]
    with closing(UnreliableCatalog.of(place.connect())) as catalog:
        # Each has a snapshot of the same sequence number, which only one of them can have.
        catalog.meanwhile = lambda: left and manager.append(sales, left.pop(), branch=theirs)
        IcebergTableManager(catalog, config=QUICK).append(sales, rows((5, "EU")), branch=ours)

    found = {branch: set(manager.scan(sales, ref=branch)["id"].to_pylist()) for branch in ("main", "staging")}
    assert (5 in found[ours], 6 in found[theirs]) == (True, True)
    assert not {5, 6} <= found["main"]


def test_a_branch_of_an_empty_table_leaves_main_empty(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.new", rows().schema)

    manager.append("bronze.new", rows((1, "EU")), branch="staging")

    assert lake.rows("bronze.new") == []
    assert manager.scan("bronze.new", ref="staging").num_rows == 1


def test_a_tag_is_no_target(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    manager.create_tag(sales, "v1")
    versions = lake.metadata_versions(sales)

    for write in (
        lambda: manager.append(sales, rows((5, "EU")), branch="v1"),
        lambda: manager.overwrite(sales, rows((5, "EU")), branch="v1"),
        lambda: manager.upsert(sales, rows((5, "EU")), ["id"], branch="v1"),
        lambda: manager.delete(sales, "id = 1", branch="v1"),
    ):
        with pytest.raises(ValidationError, match="'v1' is a tag"):
            write()
    assert lake.metadata_versions(sales) == versions
    assert lake.data_files() == {to_path(path) for path in live_files(lake.table(sales))}


def test_a_branch_keeps_its_own_retention(lake: Lake, manager: IcebergTableManager, sales: str) -> None:
    own = SnapshotRef(
        snapshot_id=lake.table(sales).current_snapshot().snapshot_id,
        snapshot_ref_type=SnapshotRefType.BRANCH,
        min_snapshots_to_keep=3,
        max_snapshot_age_ms=60_000,
        max_ref_age_ms=90_000,
    )
    with lake.table(sales).manage_snapshots() as manage:
        manage.create_branch(
            own.snapshot_id, "audit", own.max_ref_age_ms, own.max_snapshot_age_ms, own.min_snapshots_to_keep
        )

    snapshot = manager.append(sales, rows((5, "EU")), branch="audit")

    assert lake.table(sales).metadata.refs["audit"] == own.model_copy(update={"snapshot_id": snapshot.snapshot_id})


def test_reading_a_branch_that_is_not_there_is_an_error(manager: IcebergTableManager, sales: str) -> None:
    with pytest.raises(SnapshotNotFoundError, match="nothing"):
        manager.scan(sales, ref="nothing")
