"""Many writers and readers at once: real processes on one catalog, and nothing lost, doubled or half seen."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from support.lake import Lake
from support.place import Place
from support.racing_worker import SHARED, race
from support.rival_writer import rival_writer
from support.table_facts import recounted_totals, summary_totals

from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes

CREW = 8


@pytest.mark.requirement("S2-US5.3", "S2-SC-006", "S2-FR-016", "S2-FR-028", "S4-create_table_if_not_exists")
@pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_eight_processes_create_append_overwrite_and_upsert_at_once(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    # Where the server that makes the processes finds what it imports.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))

    assert race(place, tmp_path, crew=CREW, rounds=rounds) == []
    with closing(place.connect()) as catalog:
        compare_rounds(Lake(place, catalog), rounds)


def compare_rounds(lake: Lake, rounds: int) -> None:
    """Each round left what every worker wrote, each thing once, in as many snapshots as there were writes."""
    expected = [(10 * worker, worker) for worker in range(CREW)]
    expected += [(0, SHARED), *((1000 + worker, SHARED) for worker in range(CREW))]
    for number in range(rounds):
        table = lake.table(f"bronze.round{number}")
        assert lake.rows(f"bronze.round{number}") == sorted(expected, key=repr)
        assert len(table.metadata.snapshots) == 4 * CREW
        assert summary_totals(table.current_snapshot()) == recounted_totals(table)


@pytest.mark.requirement("S2-US5.1", "S2-FR-027")
def test_readers_see_each_append_whole_or_not_at_all(lake: Lake, manager: IcebergTableManager) -> None:
    batch = pa.table({"id": range(70), "part": [number % 7 for number in range(70)]})
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="part"))
    manager.create_table("bronze.growing", batch.schema, spec)
    done = Event()

    def write() -> None:
        with rival_writer(lake) as rival:
            for _ in range(10):
                rival.append("bronze.growing", batch)
        done.set()

    seen: list[int] = []
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        while not done.is_set() and not writing.done():
            seen.append(manager.scan("bronze.growing").num_rows)
        writing.result()

    assert all(count % 70 == 0 for count in seen)
    assert seen == sorted(seen)
    assert len(lake.rows("bronze.growing")) == 700


@pytest.mark.requirement("S2-US5.2", "S2-FR-027")
def test_readers_see_the_old_rows_or_the_new_ones_of_an_overwrite(lake: Lake, manager: IcebergTableManager) -> None:
    def version(number: int) -> pa.Table:
        return pa.table({"id": range(50), "version": [number] * 50})

    manager.create_table("bronze.versions", version(0).schema)
    manager.append("bronze.versions", version(0))

    def write() -> None:
        with rival_writer(lake) as rival:
            for number in range(1, 11):
                rival.overwrite("bronze.versions", version(number))

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        while not writing.done():
            found = manager.scan("bronze.versions")
            assert found.num_rows == 50
            assert len(set(found.column("version").to_pylist())) == 1
        writing.result()

    assert {row[1] for row in lake.rows("bronze.versions")} == {10}


@pytest.mark.requirement("S2-US5.3", "S2-SC-006")
def test_threads_of_one_manager_write_to_their_partitions_at_once(lake: Lake) -> None:
    manager = IcebergTableManager(lake.catalog)
    schema = pa.schema([("id", pa.int64()), ("part", pa.int64())])
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="part"))
    manager.create_table("bronze.shared", schema, spec)

    def write(part: int) -> None:
        for turn in range(3):
            rows = pa.table([[turn, 10 + turn], [part, part]], schema=schema)
            manager.overwrite("bronze.shared", rows, overwrite_filter=f"part = {part}")

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(write, range(6)))

    assert lake.rows("bronze.shared") == sorted(((id_, part) for part in range(6) for id_ in (2, 12)), key=repr)
