"""Branches and tags on a real catalog: what a name keeps, how branches move, who wins a race for a name."""

from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate
from support.lake import Lake
from support.racing_catalog import racing_manager
from support.snapshot_history import NOW, T, numbers

from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.errors import SnapshotNotFoundError, ValidationError
from floe_dagster_iceberg.table.manager import IcebergTableManager


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-003", "S0-S1")
def test_tags_and_branches_are_kept_with_their_retention(
    manager: IcebergTableManager, lake: Lake, three: list[int]
) -> None:
    tagged = manager.create_tag(T, "v1", three[0], max_ref_age=timedelta(days=30))
    manager.create_tag(T, "latest")
    manager.create_branch(
        T,
        "audit",
        max_ref_age=timedelta(days=3),
        max_snapshot_age=timedelta(hours=1),
        min_snapshots_to_keep=2,
    )

    refs = lake.table(T).refs()
    assert (tagged.snapshot_id, refs["latest"].snapshot_id) == (three[0], three[2])
    assert (refs["v1"].snapshot_ref_type, refs["v1"].snapshot_id) == (SnapshotRefType.TAG, three[0])
    assert (refs["v1"].max_ref_age_ms, refs["latest"].max_ref_age_ms) == (30 * 86_400_000, None)
    audit = refs["audit"]
    assert (audit.max_ref_age_ms, audit.max_snapshot_age_ms, audit.min_snapshots_to_keep) == (
        3 * 86_400_000,
        3_600_000,
        2,
    )
    assert manager.scan(T, ref="v1")["n"].to_pylist() == [1]


@pytest.mark.lakes
def test_writes_to_a_branch_keep_its_retention(manager: IcebergTableManager, lake: Lake, three: list[int]) -> None:
    manager.create_branch(T, "audit", three[0], min_snapshots_to_keep=2)
    manager.append(T, numbers(9), branch="audit")

    assert lake.table(T).refs()["audit"].min_snapshots_to_keep == 2
    assert lake.rows(T) == [(1,), (2,), (3,)]


@pytest.mark.parametrize("name", ["v1", "audit", "main", "", " "])
def test_a_name_that_is_taken_or_empty_is_refused(
    manager: IcebergTableManager, lake: Lake, three: list[int], name: str
) -> None:
    manager.create_tag(T, "v1", three[0])
    manager.create_branch(T, "audit", three[0])
    before = lake.table(T).refs()

    for create in (manager.create_tag, manager.create_branch):
        with pytest.raises(ValidationError, match=f"'{name}'"):
            create(T, name)

    assert lake.table(T).refs() == before


def test_a_name_needs_a_snapshot(manager: IcebergTableManager, table: Table) -> None:
    with pytest.raises(ValidationError, match="no snapshot yet"):
        manager.create_tag(table, "v1")
    with pytest.raises(SnapshotNotFoundError, match="'42'"):
        manager.create_branch(table, "audit", 42)


@pytest.mark.usefixtures("three")
def test_a_retention_that_keeps_nothing_is_refused(manager: IcebergTableManager) -> None:
    with pytest.raises(ValidationError, match="max_ref_age"):
        manager.create_tag(T, "v1", max_ref_age=timedelta(0))
    with pytest.raises(ValidationError, match="min_snapshots_to_keep"):
        manager.create_branch(T, "audit", min_snapshots_to_keep=0)


@pytest.mark.lakes
@pytest.mark.usefixtures("three")
def test_removed_names_are_gone_and_their_snapshots_stay(manager: IcebergTableManager, lake: Lake) -> None:
    manager.create_tag(T, "v1")
    manager.append(T, numbers(9), branch="audit")

    manager.remove_ref(T, "v1")
    manager.remove_ref(T, "audit")

    assert set(lake.table(T).refs()) == {"main"}
    assert len(manager.list_snapshots(T)) == 4
    with pytest.raises(SnapshotNotFoundError, match="'v1'"):
        manager.remove_ref(T, "v1")
    with pytest.raises(ValidationError, match="cannot be removed"):
        manager.remove_ref(T, "main")


@pytest.mark.lakes
@pytest.mark.usefixtures("three")
def test_main_is_forwarded_to_a_branch(manager: IcebergTableManager, lake: Lake) -> None:
    written = manager.append(T, numbers(4), branch="staging")

    assert manager.fast_forward(T, "main", "staging").snapshot_id == written.snapshot_id

    assert lake.rows(T) == [(1,), (2,), (3,), (4,)]
    versions = lake.metadata_versions(T)
    manager.fast_forward(T, "main", "staging")
    assert lake.metadata_versions(T) == versions


def test_a_branch_with_commits_of_its_own_is_not_forwarded(
    manager: IcebergTableManager, lake: Lake, three: list[int]
) -> None:
    manager.append(T, numbers(4), branch="staging")
    manager.append(T, numbers(5))
    manager.create_tag(T, "v1", three[0])

    with pytest.raises(ValidationError, match="commits that 'staging' lacks"):
        manager.fast_forward(T, "main", "staging")
    with pytest.raises(ValidationError, match="tags do not move"):
        manager.fast_forward(T, "v1", "staging")
    for branch, to in (("main", "nope"), ("nope", "main")):
        with pytest.raises(SnapshotNotFoundError, match="'nope'"):
            manager.fast_forward(T, branch, to)

    assert lake.rows(T) == [(1,), (2,), (3,), (5,)]


@pytest.mark.lakes
@pytest.mark.usefixtures("three")
def test_a_table_that_only_has_a_branch_gets_its_main(manager: IcebergTableManager, lake: Lake) -> None:
    manager.create_branch(T, "staging")
    # Spark can write a table's first rows to a branch.
    without_main = TableTransaction(lake.table(T))
    without_main.stage([RemoveSnapshotRefUpdate(ref_name="main")])
    without_main.commit_once()
    assert lake.rows(T) == []

    manager.fast_forward(T, "main", "staging")

    assert lake.rows(T) == [(1,), (2,), (3,)]


@pytest.mark.lakes
@pytest.mark.usefixtures("three")
def test_an_append_that_comes_between_stops_the_forwarding(manager: IcebergTableManager, lake: Lake) -> None:
    manager.append(T, numbers(4), branch="staging")
    second = racing_manager(lake.place, lambda: manager.append(T, numbers(5)))

    with pytest.raises(ValidationError, match="commits that 'staging' lacks"):
        second.fast_forward(T, "main", "staging")

    assert lake.rows(T) == [(1,), (2,), (3,), (5,)]


@pytest.mark.lakes
@pytest.mark.usefixtures("three")
def test_a_name_that_is_taken_meanwhile_is_refused(manager: IcebergTableManager, lake: Lake) -> None:
    first = manager.append(T, numbers(4))
    second = racing_manager(lake.place, lambda: manager.create_tag(T, "v1"))

    with pytest.raises(ValidationError, match="already has a tag 'v1'"):
        second.create_tag(T, "v1", manager.list_snapshots(T)[1].snapshot_id)

    assert lake.table(T).refs()["v1"].snapshot_id == first.snapshot_id


@pytest.mark.lakes
@pytest.mark.parametrize("operation", ["create_tag", "rollback_to_snapshot"])
def test_a_snapshot_that_expires_meanwhile_is_not_found(
    manager: IcebergTableManager, lake: Lake, three: list[int], operation: str
) -> None:
    def expire() -> None:
        assert manager.expire_snapshots(T, older_than_days=1, retain_last=1, now=NOW) == 2

    arguments = {"create_tag": ("v1", three[0]), "rollback_to_snapshot": (three[0],)}[operation]

    with pytest.raises(SnapshotNotFoundError):
        getattr(racing_manager(lake.place, expire), operation)(T, *arguments)

    assert set(lake.table(T).refs()) == {"main"}


@pytest.mark.requirement("S2-FR-003")
def test_the_accessor_does_all_that_for_one_table(manager: IcebergTableManager, lake: Lake, three: list[int]) -> None:
    snapshots = manager.manage_snapshots(T)

    snapshots.create_tag("v1", three[0])
    snapshots.create_branch("staging")
    manager.append(T, numbers(4), branch="staging")
    snapshots.fast_forward("main", "staging")
    assert snapshots.rollback_to_snapshot(three[2]).snapshot_id == three[2]
    assert snapshots.rollback_to_timestamp(datetime.now(UTC)).snapshot_id == three[2]
    snapshots.remove_ref("staging")
    assert snapshots.expire_snapshots(older_than=datetime.now(UTC) + timedelta(days=1), retain_last=1) == 1

    assert set(lake.table(T).refs()) == {"main", "v1"}
    assert {one.snapshot_id for one in lake.table(T).snapshots()} >= {three[0], three[2]}
