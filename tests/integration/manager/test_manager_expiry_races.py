"""Expiry while others roll back, tag and branch: no table is emptied, no name is lost."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyiceberg.table import Table
from support.lake import Lake
from support.racing_catalog import QUICK, racing_manager
from support.snapshot_history import NOW, SCHEMA, T, days_ago, grow, numbers

from floe_dagster_iceberg.errors import CommitConflictError, RollbackError, SnapshotNotFoundError
from floe_dagster_iceberg.table.manager import IcebergTableManager

ROUNDS = 50


@pytest.fixture
def table(manager: IcebergTableManager) -> Table:
    table = manager.create_table(T, SCHEMA)
    manager.append(table, numbers(1, 2, 3))
    return table


def expire_all(manager: IcebergTableManager) -> int:
    """Expire everything that may go."""
    return manager.expire_snapshots(T, older_than_days=1, retain_last=1, now=NOW)


@pytest.mark.requirement("S2-US4.4", "S2-FR-007")
def test_a_rollback_before_the_commit_saves_its_snapshot(
    manager: IcebergTableManager, lake: Lake, table: Table
) -> None:
    grown = grow(table, [days_ago(day) for day in (9, 8, 7)])
    stale = racing_manager(lake.place, lambda: manager.rollback_to_snapshot(T, grown[0]))

    assert expire_all(stale) == 2

    assert lake.table(T).current_snapshot().snapshot_id == grown[0]
    assert len(lake.rows(T)) == 3


@pytest.mark.requirement("S2-US4.4", "S2-FR-003")
@pytest.mark.parametrize("create", ["create_tag", "create_branch"])
def test_a_name_given_before_the_commit_saves_its_snapshot(
    manager: IcebergTableManager, lake: Lake, table: Table, create: str
) -> None:
    grown = grow(table, [days_ago(day) for day in (9, 8, 7)])
    stale = racing_manager(lake.place, lambda: getattr(manager, create)(T, "saved", grown[1]))

    assert expire_all(stale) == 2

    assert lake.table(T).refs()["saved"].snapshot_id == grown[1]
    assert manager.scan(T, ref="saved").num_rows == 3


def test_two_expiries_at_once_count_what_each_did(manager: IcebergTableManager, lake: Lake, table: Table) -> None:
    grow(table, [days_ago(day) for day in (9, 8, 7)])
    counts: list[int] = []
    second = racing_manager(lake.place, lambda: counts.append(expire_all(manager)))

    counts.append(expire_all(second))

    assert counts == [3, 0]
    assert len(lake.table(T).snapshots()) == 1


def test_a_name_removed_before_the_commit_is_planned_without(
    manager: IcebergTableManager, lake: Lake, table: Table
) -> None:
    grown = grow(table, [days_ago(day) for day in (9, 8)])
    manager.create_tag(T, "v1", grown[0])
    second = racing_manager(lake.place, lambda: manager.remove_ref(T, "v1"))

    assert expire_all(second) == 2


def test_an_expiry_that_never_gets_its_turn_gives_up_and_changes_nothing(
    manager: IcebergTableManager, lake: Lake, table: Table
) -> None:
    grow(table, [days_ago(day) for day in (9, 8)])
    tags = [lambda name=f"t{number}": manager.create_tag(T, name) for number in range(50)]

    with pytest.raises(CommitConflictError, match="branches or tags have changed"):
        expire_all(racing_manager(lake.place, *tags))

    assert len(lake.table(T).snapshots()) == 3


@pytest.mark.requirement("S2-US4.4")
def test_no_interleaving_loses_rows_or_names(lake: Lake, table: Table) -> None:
    dice = random.Random(20240131)  # noqa: S311 - chooses interleavings, checks nothing
    expirer, other = (IcebergTableManager(lake.connect(), config=QUICK) for _ in range(2))
    with ThreadPoolExecutor(2) as clients:
        for number in range(ROUNDS):
            grown = grow(table, [days_ago(9), days_ago(8), days_ago(7)])
            act, check = _random_act(dice, other, lake, f"r{number}", dice.choice(grown))
            start = threading.Barrier(2)
            delays = dice.choice([0, 0, 0.002, 0.005, 0.01]), dice.choice([0, 0, 0.002, 0.005, 0.01])
            expiry = clients.submit(_at, start, delays[0], lambda: expire_all(expirer))
            outcome = clients.submit(_at, start, delays[1], act).result()
            expiry.result()
            _check_sound(lake)
            if outcome:
                check()
    assert len(lake.rows(T)) == 3


def _at(start: threading.Barrier, delay: float, act: Callable[[], object]) -> bool:
    """Whether it was done; not if its snapshot had expired, or left main's history, by then."""
    start.wait()
    time.sleep(delay)
    try:
        act()
    except (SnapshotNotFoundError, RollbackError):
        return False
    return True


def _random_act(
    dice: random.Random, manager: IcebergTableManager, lake: Lake, name: str, snapshot_id: int
) -> tuple[Callable[[], object], Callable[[], None]]:
    def is_named() -> None:
        assert lake.table(T).refs()[name].snapshot_id == snapshot_id

    def is_current() -> None:
        assert lake.table(T).current_snapshot().snapshot_id == snapshot_id

    return dice.choice(
        [
            (lambda: manager.create_tag(T, name, snapshot_id), is_named),
            (lambda: manager.create_branch(T, name, snapshot_id), is_named),
            (lambda: manager.rollback_to_snapshot(T, snapshot_id), is_current),
        ]
    )


def _check_sound(lake: Lake) -> None:
    found = lake.table(T)
    there = {snapshot.snapshot_id for snapshot in found.snapshots()}
    assert found.current_snapshot() is not None
    assert {ref.snapshot_id for ref in found.refs().values()} <= there
