"""Maintenance while others work on the same table: nothing is lost, and no writer fails because of it."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from support.maintenance_crowd import Crowd
from support.maintenance_tables import DAY, EAGER, ORDERS, later, make_orders, paths_of, reachable_paths, rows_of
from support.maintenance_upkeep import Upkeep
from support.racing_catalog import racing_manager

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    ExpiryPolicy,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePolicy,
    MaintenanceResult,
    MaintenanceStatus,
    ManifestPolicy,
)
from floe_dagster_iceberg.table.manager import IcebergTableManager

EXPIRY = MaintenanceOperation.SNAPSHOT_EXPIRY
_MOST_REFS = 6
_LONGEST_SECONDS = 180


class History:
    """A table whose every snapshot's rows are known, and a client that changes its refs at random."""

    def __init__(self, manager: IcebergTableManager, seed: int) -> None:
        self._manager, self._random = manager, random.Random(seed)  # noqa: S311 - a test that can be repeated
        self._rows: dict[int, frozenset[int]] = {}
        self._ids = iter(range(1_000_000))
        self._names = (f"ref-{number}" for number in range(1_000_000))
        self.refs: dict[str, int] = {}
        self.main = 0

    def append(self) -> None:
        before = self._rows.get(self.main, frozenset())
        row = next(self._ids)
        rows = rows_of(0, days=1).slice(0, 1).set_column(0, "id", pa.array([row], pa.int64()))
        self.main = self._manager.append(ORDERS, rows).snapshot_id
        self._rows[self.main] = before | {row}

    def act(self) -> None:
        """Roll back, or make or remove a tag or branch, or append, on the table as it is now."""
        actions = [self._roll_back, self._tag, self._branch, self._remove, self.append]
        # A handful of names is enough; more only make each round slower.
        self._random.choice(actions if len(self.refs) < _MOST_REFS else [self._remove])()

    def check(self) -> None:
        """No ref is lost, and main stands where it was put."""
        table = self._manager.load_table(ORDERS)
        assert table.metadata.current_snapshot_id == self.main
        refs = {name: ref.snapshot_id for name, ref in table.metadata.refs.items() if name != "main"}
        assert refs == self.refs

    def check_files(self) -> None:
        """Every file that any snapshot needs is there, and every name shows its rows."""
        assert all(path.exists() for path in reachable_paths(self._manager.load_table(ORDERS)))
        for ref, snapshot_id in {**self.refs, "main": self.main}.items():
            assert set(self._manager.scan(ORDERS, ref=ref)["id"].to_pylist()) == self._rows[snapshot_id]

    def _roll_back(self) -> None:
        ancestors = list(self._ancestors())
        self.main = self._manager.rollback_to_snapshot(ORDERS, self._random.choice(ancestors)).snapshot_id

    def _tag(self) -> None:
        name = next(self._names)
        self.refs[name] = self._manager.create_tag(ORDERS, name, self._any_snapshot()).snapshot_id

    def _branch(self) -> None:
        name = next(self._names)
        self.refs[name] = self._manager.create_branch(ORDERS, name, self._any_snapshot()).snapshot_id

    def _remove(self) -> None:
        if self.refs:
            name = self._random.choice(sorted(self.refs))
            self._manager.remove_ref(ORDERS, name)
            del self.refs[name]

    def _any_snapshot(self) -> int:
        return self._random.choice(self._manager.list_snapshots(ORDERS)).snapshot_id

    def _ancestors(self) -> Iterator[int]:
        table = self._manager.load_table(ORDERS)
        snapshot = table.current_snapshot()
        while snapshot is not None:
            yield snapshot.snapshot_id
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.metadata.snapshot_by_id(parent)


@pytest.mark.requirement("S2-US4.4", "S2-FR-003")
@pytest.mark.parametrize("rounds", [25, pytest.param(80, marks=pytest.mark.slow)])
def test_expiry_against_rollbacks_tags_and_branches_loses_no_ref(
    manager: IcebergTableManager, tmp_path: Path, rounds: int
) -> None:
    make_orders(manager)
    history, timestamps = History(manager, seed=rounds), random.Random(rounds)  # noqa: S311 - a test that can be repeated
    expired = 0
    for number in range(rounds):
        for _ in range(timestamps.randint(1, 3)):
            history.append()
        before = [history.act] * timestamps.randint(0, 2)
        after = [history.act] * timestamps.randint(0, 1)
        rival = racing_manager(tmp_path, *before, afterwards=after)

        result = TableMaintenance(rival, clock=lambda: later(8 * DAY)).execute(EXPIRY, ORDERS, EAGER)

        assert result.status in (MaintenanceStatus.DONE, MaintenanceStatus.SKIPPED), result.error
        expired += result.snapshots_expired
        history.check()
        if number % 10 == 0:
            history.check_files()
    history.check_files()
    assert expired > rounds / 2


def was_left_for_the_next_run(result: MaintenanceResult) -> bool:
    plan = result.plan
    return result.status is MaintenanceStatus.SKIPPED and plan is not None and "Left for the next run" in plan.summary


def finished(results: list[MaintenanceResult], engine: MaintenanceEngine) -> set[MaintenanceOperation]:
    """The operations that were done at least once, or may give way and did."""
    done = {result.operation for result in results if result.status is MaintenanceStatus.DONE}
    given_way = {result.operation for result in results if was_left_for_the_next_run(result)}
    # Spark's rewrite of manifests begins anew whenever one of these writers merges some, once a second.
    may_give_way = {MaintenanceOperation.MANIFESTS} if engine is MaintenanceEngine.SPARK else set()
    return done | (given_way & may_give_way)


@pytest.mark.slow
@pytest.mark.requirement("S2-FR-030", "S2-US4.4")
@pytest.mark.parametrize(("engine", "seconds"), [(MaintenanceEngine.PYICEBERG, 30), (MaintenanceEngine.SPARK, 20)])
def test_maintenance_in_a_loop_against_five_writers_loses_no_row_and_fails_no_writer(
    tmp_path: Path, engine: MaintenanceEngine, seconds: int
) -> None:
    upkeep = Upkeep.open(tmp_path, engine)
    make_orders(upkeep.manager, batches=8, days=1)
    policy = MaintenancePolicy(
        engine=engine,
        compaction=CompactionPolicy(min_input_files=2),
        expiry=ExpiryPolicy(max_age=DAY, min_snapshots_to_keep=5),
        manifests=ManifestPolicy(min_manifests=5),
    )
    operations = (MaintenanceOperation.COMPACTION, EXPIRY, MaintenanceOperation.MANIFESTS)
    results: list[MaintenanceResult] = []

    with Crowd(tmp_path) as crowd:
        maintenance = TableMaintenance(upkeep.manager, spark=upkeep.provider, clock=crowd.a_day_later)
        started = time.monotonic()
        # On a busy machine a round of Spark takes longer, and its compaction may lose the first races.
        while time.monotonic() < started + seconds or (
            finished(results, engine) != set(operations) and time.monotonic() < started + _LONGEST_SECONDS
        ):
            results += [maintenance.execute(operation, ORDERS, policy) for operation in operations]

    assert crowd.failures == []
    assert [result.error for result in results if result.status is MaintenanceStatus.FAILED] == []
    assert finished(results, engine) == set(operations)
    assert sorted(upkeep.manager.scan(ORDERS)["id"].to_pylist()) == sorted(crowd.expected)
    table = upkeep.manager.load_table(ORDERS)
    unreferenced = paths_of(table) - reachable_paths(table)
    # Only metadata files of commits that the catalog refused, which PyIceberg leaves, and of versions long ago.
    assert {path.name.partition(".")[2] for path in unreferenced} <= {"metadata.json"}


def test_a_writer_that_always_wins_leaves_expiry_for_the_next_run(manager: IcebergTableManager, tmp_path: Path) -> None:
    make_orders(manager, batches=3, days=1)
    rival = racing_manager(tmp_path, *[lambda: manager.append(ORDERS, rows_of(9, days=1))] * 60)

    result = TableMaintenance(rival, clock=lambda: later(8 * DAY)).execute(EXPIRY, ORDERS, EAGER)

    assert was_left_for_the_next_run(result)
