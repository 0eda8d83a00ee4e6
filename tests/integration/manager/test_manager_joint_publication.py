"""Several tables published at once: all of them or none, whatever happens in between."""

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pytest
from pyiceberg.serializers import FromInputFile
from sqlalchemy import create_engine, text
from support.lake import Lake
from support.place import Place, empty_place
from support.rival_writer import QUICK
from support.servers.faults import HANG, RESET, Fault
from support.servers.running import Servers
from support.unreliable_catalog import Fate, UnreliableCatalog

from floe_dagster_iceberg.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    SnapshotNotFoundError,
    WriteError,
)
from floe_dagster_iceberg.table.manager import IcebergTableManager

TABLES = ["bronze.a", "bronze.b", "bronze.c"]
BRANCH = "staging"


@pytest.fixture
def catalog(place: Place) -> Iterator[UnreliableCatalog]:
    # The package's own client, also on SQLite.
    with closing(Place.connect(place)) as connected:
        yield UnreliableCatalog.of(connected)


@pytest.fixture
def manager(catalog: UnreliableCatalog) -> IcebergTableManager:
    return create_tables(IcebergTableManager(catalog, config=QUICK))


def create_tables(manager: IcebergTableManager) -> IcebergTableManager:
    manager.create_namespace("bronze", if_not_exists=True)
    for table in TABLES:
        manager.create_table(table, pa.schema([("id", pa.int64())]))
        manager.append(table, rows(0))
    return manager


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)})


def ids(manager: IcebergTableManager) -> list[list[int]]:
    return [sorted(manager.scan(table)["id"].to_pylist()) for table in TABLES]


def stage(manager: IcebergTableManager, *numbers: int) -> None:
    for table in TABLES:
        manager.append(table, rows(*numbers), branch=BRANCH)


def published(manager: IcebergTableManager) -> list[bool]:
    return [BRANCH not in manager.load_table(table).metadata.refs for table in TABLES]


@pytest.mark.lakes
def test_all_tables_move_in_one_commit(catalog: UnreliableCatalog, manager: IcebergTableManager) -> None:
    stage(manager, 1)
    manager.append(TABLES[1], rows(2))
    commits = catalog.commits

    result = manager.publish_branches(TABLES, BRANCH)

    assert result.atomic
    assert [each.replayed for each in result.tables] == [False, True, False]
    assert (ids(manager), catalog.commits) == ([[0, 1], [0, 1, 2], [0, 1]], commits + 1)
    assert published(manager) == [True, True, True]


@pytest.mark.lakes
def test_a_conflict_of_one_table_moves_none(manager: IcebergTableManager) -> None:
    stage(manager, 1)
    manager.overwrite(TABLES[2], rows(5), branch=BRANCH)
    manager.append(TABLES[2], rows(6))
    before = [manager.load_table(table).metadata_location for table in TABLES]

    with pytest.raises(CommitConflictError, match=r"bronze\.c"):
        manager.publish_branches(TABLES, BRANCH)

    assert [manager.load_table(table).metadata_location for table in TABLES] == before


@pytest.mark.lakes
def test_a_table_without_the_branch_moves_none(manager: IcebergTableManager) -> None:
    manager.append(TABLES[0], rows(1), branch=BRANCH)

    with pytest.raises(SnapshotNotFoundError, match=BRANCH):
        manager.publish_branches(TABLES, BRANCH)

    assert ids(manager) == [[0], [0], [0]]


@pytest.mark.lakes
def test_rows_that_others_commit_in_between_are_kept(
    catalog: UnreliableCatalog, manager: IcebergTableManager, place: Place
) -> None:
    stage(manager, 1)
    with closing(place.connect()) as other:
        rival, left = IcebergTableManager(other), [7, 8]
        catalog.meanwhile = lambda: left and rival.append(TABLES[1], rows(left.pop()))

        manager.publish_branches(TABLES, BRANCH)

    assert ids(manager) == [[0, 1], [0, 1, 7, 8], [0, 1]]


@pytest.mark.lakes
@pytest.mark.parametrize("fate", ["is lost after it landed", "is lost before it landed"])
def test_a_lost_response_publishes_once(catalog: UnreliableCatalog, manager: IcebergTableManager, fate: Fate) -> None:
    stage(manager, 1)
    manager.append(TABLES[1], rows(2))
    catalog.fates = [fate]

    manager.publish_branches(TABLES, BRANCH)

    assert ids(manager) == [[0, 1], [0, 1, 2], [0, 1]]
    assert published(manager) == [True, True, True]


@pytest.mark.parametrize("fate", ["lands in part", "lands in part without an error"])
def test_what_a_server_has_committed_in_part_is_completed(
    catalog: UnreliableCatalog, manager: IcebergTableManager, fate: Fate
) -> None:
    stage(manager, 1)
    for table in TABLES:
        manager.append(table, rows(2))
    catalog.fates = [fate]

    result = manager.publish_branches(TABLES, BRANCH)

    assert not result.atomic
    assert ids(manager) == [[0, 1, 2]] * 3


def test_what_cannot_be_completed_is_said_to_be_partial(
    catalog: UnreliableCatalog, manager: IcebergTableManager, place: Place
) -> None:
    stage(manager, 1)
    manager.overwrite(TABLES[2], rows(5), branch=BRANCH)
    catalog.fates = ["lands in part"]
    with closing(place.connect()) as other:
        rival = IcebergTableManager(other)
        catalog.meanwhile = lambda: rival.append(TABLES[2], rows(6))

        with pytest.raises(
            WriteError,
            match=r"is published in 'bronze\.a', and not in 'bronze\.b', 'bronze\.c'.*Publish the branch again",
        ):
            manager.publish_branches(TABLES, BRANCH)

    assert ids(manager) == [[0, 1], [0], [0, 6]]
    assert published(manager) == [True, False, False]


def test_a_refusal_after_a_lost_response_leaves_the_outcome_unknown(
    catalog: UnreliableCatalog, manager: IcebergTableManager, place: Place
) -> None:
    stage(manager, 1)
    catalog.fates = ["is lost before it landed"]
    with closing(place.connect()) as other:
        catalog.meanwhile = lambda: IcebergTableManager(other).remove_ref(TABLES[1], BRANCH)

        with pytest.raises(CommitOutcomeUnknownError):
            manager.publish_branches(TABLES, BRANCH)


def test_a_refused_commit_leaves_no_file(
    catalog: UnreliableCatalog, manager: IcebergTableManager, place: Place
) -> None:
    stage(manager, 1)
    manager.append(TABLES[0], rows(2))
    with closing(place.connect()) as other:
        rival, left = IcebergTableManager(other), [3]
        catalog.meanwhile = lambda: left and rival.append(TABLES[2], rows(left.pop()))
        manager.publish_branches(TABLES, BRANCH)

    for table in TABLES:
        loaded = manager.load_table(table)
        known = {snapshot.manifest_list for snapshot in loaded.metadata.snapshots}
        found = {str(path) for path in place.files(f"**/{table.split('.')[1]}/metadata/snap-*.avro")}
        assert len(found) == len(known)
        versions = len(place.files(f"**/{table.split('.')[1]}/metadata/*.metadata.json"))
        assert versions == len(loaded.metadata.metadata_log) + 1


@pytest.fixture
def plain(lake: Lake, manager: IcebergTableManager) -> UnreliableCatalog:
    """A catalog that commits one table at a time, as Glue and Hive do."""
    del manager
    connected = UnreliableCatalog.of(lake.connect())
    connected.__class__.commits_tables_together = False  # type: ignore[attr-defined]
    return connected


def test_other_catalogs_publish_one_after_the_other_and_say_so(
    plain: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    stage(manager, 1)

    result = IcebergTableManager(plain, config=QUICK).publish_branches(TABLES, BRANCH)

    assert not result.atomic
    assert ids(manager) == [[0, 1]] * 3


def test_a_second_call_completes_what_another_catalog_has_begun(
    plain: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    stage(manager, 1)
    one_by_one = IcebergTableManager(plain, config=QUICK)

    def break_off() -> None:
        if plain.commits > 1:
            raise WriteError("the storage is full")

    plain.meanwhile = break_off
    with pytest.raises(
        WriteError, match=r"is published in 'bronze\.a', and not in 'bronze\.b', 'bronze\.c'.*Publish the branch again"
    ):
        one_by_one.publish_branches(TABLES, BRANCH)
    plain.meanwhile = lambda: None
    left = [table for table, done in zip(TABLES, published(manager), strict=True) if not done]

    one_by_one.publish_branches(left, BRANCH)

    assert left == TABLES[1:]
    assert ids(manager) == [[0, 1]] * 3


def test_expiry_keeps_what_a_branch_needs(manager: IcebergTableManager) -> None:
    stage(manager, 1)
    for table in TABLES:
        manager.overwrite(table, rows(9))
        manager.expire_snapshots(table, older_than_days=0, retain_last=1)

    assert [sorted(manager.scan(table, branch=BRANCH)["id"].to_pylist()) for table in TABLES] == [[0, 1]] * 3


@contextmanager
def worker(place: Place, folder: Path) -> "Iterator[subprocess.Popen[str]]":
    saved = folder / "place.pickle"
    saved.write_bytes(pickle.dumps(place))
    command = [sys.executable, "-m", "support.publishing_worker", str(saved), ",".join(TABLES), BRANCH]
    here = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(command, cwd=here, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.stdin and process.stdin.close()
        process.wait(60)
        process.stdout and process.stdout.close()


class Looker(Thread):
    """A reader that looks at all tables of a SQL catalog all the time, each time at one point in time.

    Attributes:
        looks: How often it has looked.
    """

    _QUESTION = text(
        "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = 'bronze' ORDER BY table_name"
    )

    def __init__(self, uri: str) -> None:
        super().__init__(daemon=True)
        self._engine, self._seen, self._is_over = create_engine(uri), set[tuple[str, ...]](), Event()
        self.looks = 0

    def run(self) -> None:
        with self._engine.connect() as connection:
            while not self._is_over.wait(0.001):
                self._seen.add(tuple(connection.execute(self._QUESTION).scalars()))
                connection.rollback()
                self.looks += 1

    def take(self) -> set[tuple[str, ...]]:
        """The metadata files of all tables in every version of the whole that it has seen since."""
        seen, self._seen = self._seen, set()
        return seen

    def stop(self) -> None:
        self._is_over.set()
        self.join(60)
        self._engine.dispose()


def rows_of_main(manager: IcebergTableManager, location: str) -> str:
    """The number of rows of main in one version of a table."""
    metadata = FromInputFile.table_metadata(manager.load_table(TABLES[0]).io.new_input(location))
    snapshot = metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot.summary.additional_properties["total-records"]


@contextmanager
def looking(place: Place) -> Iterator[Looker | None]:
    """A reader; none of REST catalogs, which have no request for several tables at one point in time."""
    if place.catalog_type != "sql":
        yield None
        return
    looker = Looker(place.catalog_config["uri"])
    looker.start()
    try:
        yield looker
    finally:
        looker.stop()


@pytest.mark.slow
@pytest.mark.lakes
def test_killed_at_any_point_all_tables_are_published_or_none(
    manager: IcebergTableManager, place: Place, tmp_path: Path
) -> None:
    trials, finished, chance = 100, 0, random.Random(7)  # noqa: S311 - chooses when to kill
    with worker(place, tmp_path) as process, looking(place) as looker:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(1, trials + 1):
            stage(manager, number)
            process.stdin.write("go\n")
            process.stdin.flush()
            publisher = int(process.stdout.readline())
            time.sleep(chance.uniform(0, 0.3))
            os.kill(publisher, signal.SIGKILL)
            assert process.stdout.readline() == "done\n"

            state = published(manager)
            assert len(set(state)) == 1, f"trial {number}: {state}"
            finished += state[0]
            if not state[0]:
                manager.publish_branches(TABLES, BRANCH)
            assert ids(manager) == [list(range(number + 1))] * 3
            for locations in looker.take() if looker is not None else ():
                seen = [rows_of_main(manager, location) for location in locations]
                assert len(set(seen)) == 1, f"trial {number}: a reader saw {seen}"

    assert looker is None or looker.looks > trials
    assert 0 < finished < trials, "the kills came only before or only after the commit"


@pytest.mark.slow
def test_whatever_becomes_of_the_response_all_tables_are_published_once(tmp_path: Path, servers: Servers) -> None:
    place, faults = empty_place("gateway", tmp_path, servers), [RESET, HANG, *map(Fault, (409, 500, 503, 504))]
    impatient = replace(place, catalog_config={**place.catalog_config, "read_timeout_seconds": "2"})
    with closing(impatient.connect()) as catalog:
        manager = create_tables(IcebergTableManager(catalog, config=QUICK))
        for number, fault in enumerate([*faults, *(each.after() for each in faults)], start=1):
            stage(manager, number)
            servers.gateway.fail("POST", "/transactions/commit$", fault)

            manager.publish_branches(TABLES, BRANCH)

            assert ids(manager) == [list(range(number + 1))] * 3
