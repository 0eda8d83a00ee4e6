"""Maintenance while others work on the same table: nobody loses anything, and nobody fails because of it."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from maintenance_tables import DAY, EAGER, ORDERS, later, make_orders, paths_of, reachable_paths, rows_of
from pyiceberg.table import CommitTableResponse, Table
from racing_catalog import QUICK, RacingCatalog, racing_manager
from services.lake import Lake

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    ExpiryPolicy,
    IcebergTableManagerConfig,
    MaintenanceOperation,
    MaintenancePolicy,
    MaintenanceResult,
    MaintenanceStatus,
    ManifestPolicy,
)
from floe_dagster_iceberg.table.manager import IcebergTableManager

EXPIRY = MaintenanceOperation.SNAPSHOT_EXPIRY
FIRST_DAY = date(2024, 1, 1)


class History:
    """A table whose every snapshot's rows are known, and someone who changes its refs at random."""

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
        """Roll back, or make or remove a tag or branch, or append, on the table as it is at this moment."""
        self._random.choice([self._roll_back, self._tag, self._branch, self._remove, self.append])()

    def check(self) -> None:
        """No ref is lost, main stands where it was put, and every file that is needed is there."""
        table = self._manager.load_table(ORDERS)
        assert table.metadata.current_snapshot_id == self.main
        refs = {name: ref.snapshot_id for name, ref in table.metadata.refs.items() if name != "main"}
        assert refs == self.refs
        assert all(path.exists() for path in reachable_paths(table))

    def check_rows(self) -> None:
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


class _ActsAround(RacingCatalog):
    """Somebody acts before commits and, once, after the first: before files are deleted."""

    afterwards: list[Callable[[], object]]

    def commit_table(self, table: Table, *arguments: Any) -> CommitTableResponse:
        response = super().commit_table(table, *arguments)
        if self.afterwards:
            self.afterwards.pop()()
        return response


def acting_around(
    folder: Path, before: list[Callable[[], object]], after: list[Callable[[], object]]
) -> IcebergTableManager:
    catalog = _ActsAround(
        "floe", uri=f"sqlite:///{folder}/catalog.db?timeout=60", warehouse=f"file://{folder}/warehouse"
    )
    catalog.meanwhile, catalog.afterwards = before, after
    return IcebergTableManager(catalog, config=QUICK)


@pytest.mark.requirement("S2-US4.4", "S2-FR-003")
@pytest.mark.parametrize("rounds", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_expiry_against_rollbacks_tags_and_branches_loses_no_ref(
    manager: IcebergTableManager, tmp_path: Path, rounds: int
) -> None:
    make_orders(manager)
    history, moments = History(manager, seed=rounds), random.Random(rounds)  # noqa: S311 - a test that can be repeated
    expired = 0
    for _ in range(rounds):
        for _ in range(moments.randint(1, 3)):
            history.append()
        before = [history.act] * moments.randint(0, 2)
        after = [history.act] * moments.randint(0, 1)
        rival = acting_around(tmp_path, before, after)

        result = TableMaintenance(rival, clock=lambda: later(8 * DAY)).execute(EXPIRY, ORDERS, EAGER)

        assert result.status in (MaintenanceStatus.DONE, MaintenanceStatus.SKIPPED), result.error
        expired += result.snapshots_expired
        history.check()
    history.check_rows()
    assert expired > rounds / 2


class Crowd:
    """Four writers that append and one that replaces a partition, until told to stop."""

    def __init__(self, lake: Lake) -> None:
        self._lake, self._stop = lake, threading.Event()
        self.expected: set[int] = set()
        self.failures: list[BaseException] = []
        self._latest_overwrite = {row["id"] for batch in range(8) for row in rows_of(batch, days=1).to_pylist()}
        self._running: dict[int, datetime] = {}
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._append, args=(number,)) for number in range(4)]
        self._threads.append(threading.Thread(target=self._overwrite))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.expected |= self._latest_overwrite

    def _append(self, number: int) -> None:
        manager = patient(self._lake)
        for batch in self._until_stopped():
            first = (number + 1) * 1_000_000 + batch * 100
            ids = list(range(first, first + 8))
            rows = _rows(ids, [FIRST_DAY + timedelta(days=1 + row % 4) for row in ids])
            with self._noting_failures():
                manager.append(ORDERS, rows)
                with self._lock:
                    self.expected.update(ids)

    def _overwrite(self) -> None:
        manager = patient(self._lake)
        for batch in self._until_stopped():
            ids = list(range(batch * 10, batch * 10 + 5))
            with self._noting_failures():
                manager.overwrite(ORDERS, _rows(ids, [FIRST_DAY] * 5), overwrite_filter="day = '2024-01-01'")
                self._latest_overwrite = set(ids)

    def _until_stopped(self) -> Iterator[int]:
        batch = 0
        # Busy, but not so busy that a table could not get a word in.
        while not self._stop.wait(0.5):
            batch += 1
            yield batch

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        self._running[threading.get_ident()] = datetime.now(UTC)
        try:
            yield
        except FloeStorageError as error:
            self.failures.append(error)
        finally:
            del self._running[threading.get_ident()]

    def a_day_later(self) -> datetime:
        """A day after the oldest write that is still running began: none takes longer than the floor of expiry."""
        return min([datetime.now(UTC), *list(self._running.values())]) + DAY


def patient(lake: Lake) -> IcebergTableManager:
    """A writer of its own process, as far as the catalog can tell, that never gives up."""
    return IcebergTableManager(
        lake.connect(), config=IcebergTableManagerConfig(max_commit_retries=10, retry_base_delay_seconds=0.2)
    )


@pytest.mark.requirement("S2-FR-030", "S2-US4.4")
@pytest.mark.parametrize("seconds", [15, pytest.param(120, marks=pytest.mark.slow)])
def test_maintenance_in_a_loop_against_five_writers_loses_no_row_and_fails_nobody(lake: Lake, seconds: int) -> None:
    maintained = IcebergTableManager(lake.connect(), config=QUICK)
    make_orders(maintained, batches=8, days=1)
    policy = MaintenancePolicy(
        compaction=CompactionPolicy(min_input_files=2),
        expiry=ExpiryPolicy(max_age=DAY, min_snapshots_to_keep=5),
        manifests=ManifestPolicy(min_manifests=5),
    )
    operations = (MaintenanceOperation.COMPACTION, EXPIRY, MaintenanceOperation.MANIFESTS)
    results: list[MaintenanceResult] = []

    with Crowd(lake) as crowd:
        maintenance, until = TableMaintenance(maintained, clock=crowd.a_day_later), time.monotonic() + seconds
        while time.monotonic() < until:
            results += [maintenance.execute(operation, ORDERS, policy) for operation in operations]

    assert crowd.failures == []
    assert [result.error for result in results if result.status is MaintenanceStatus.FAILED] == []
    assert {result.operation for result in results if result.status is MaintenanceStatus.DONE} == set(operations)
    assert sorted(maintained.scan(ORDERS)["id"].to_pylist()) == sorted(crowd.expected)
    table = maintained.load_table(ORDERS)
    unreached = paths_of(table) - reachable_paths(table)
    # Only metadata files of commits that the catalog refused, which PyIceberg leaves, and of versions long ago.
    assert {path.name.partition(".")[2] for path in unreached} <= {"metadata.json"}


def test_a_writer_that_always_wins_leaves_expiry_for_the_next_run(manager: IcebergTableManager, tmp_path: Path) -> None:
    make_orders(manager, batches=3, days=1)
    rival = racing_manager(tmp_path, *[lambda: manager.append(ORDERS, rows_of(9, days=1))] * 60)

    result = TableMaintenance(rival, clock=lambda: later(8 * DAY)).execute(EXPIRY, ORDERS, EAGER)

    assert result.status is MaintenanceStatus.SKIPPED
    assert "Left for the next run" in result.plan.summary


def _rows(ids: list[int], days: list[date]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": pa.array(days, pa.date32()),
            "amount": pa.array([1.0] * len(ids), pa.float64()),
            "region": pa.array(["EU"] * len(ids), pa.string()),
        }
    )
