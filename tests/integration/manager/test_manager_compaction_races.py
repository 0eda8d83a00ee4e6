"""Compaction while others work on the same table: their rows stay, their version of a file wins."""

from collections.abc import Callable
from contextlib import closing

import pyarrow as pa
import pytest
from support.lake import Lake
from support.place import Place
from support.rival_writer import QUICK, rival_writer
from support.table_facts import live_files, reachable_files, to_path
from support.unreliable_catalog import UnreliableCatalog

from floe_dagster_iceberg.errors import CommitConflictError, CommitOutcomeUnknownError
from floe_dagster_iceberg.models import MaintenanceStatus
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes

TABLE = "bronze.few"


def rows(start: int, count: int, part: str = "a") -> pa.Table:
    return pa.table({"id": range(start, start + count), "part": [part] * count})


@pytest.fixture
def lake(catalog: UnreliableCatalog, place: Place) -> Lake:
    return Lake(place, catalog)


@pytest.fixture
def manager(catalog: UnreliableCatalog) -> IcebergTableManager:
    """Beside a table of five files with ten rows each."""
    manager = IcebergTableManager(catalog, config=QUICK)
    manager.create_table(TABLE, rows(0, 1).schema)
    for number in range(5):
        manager.append(TABLE, rows(number * 10, 10))
    return manager


def times(count: int, action: Callable[[], object]) -> Callable[[], None]:
    left = [count]

    def act() -> None:
        if left[0]:
            left[0] -= 1
            action()

    return act


def has_no_litter(lake: Lake) -> bool:
    return lake.files("**/*.parquet") | lake.files("**/*.avro") <= reachable_files(lake.table(TABLE))


@pytest.mark.requirement("S2-FR-030", "S2-US5.3")
def test_rows_that_others_append_meanwhile_stay(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    with rival_writer(lake) as rival:
        catalog.meanwhile = times(2, lambda: rival.append(TABLE, rows(900, 1)))
        result = manager.compact_table(TABLE)

    assert result.status is MaintenanceStatus.DONE
    assert lake.table(TABLE).scan().to_arrow().num_rows == 52
    assert len(live_files(lake.table(TABLE))) == 3
    assert has_no_litter(lake)


@pytest.mark.requirement("S2-FR-030")
@pytest.mark.parametrize("change", ["overwritten", "deleted", "compacted"])
def test_files_that_others_replace_meanwhile_are_theirs(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager, change: str
) -> None:
    with rival_writer(lake) as rival:
        changes = {
            "overwritten": lambda: rival.overwrite(TABLE, rows(900, 1), overwrite_filter="id < 10"),
            "deleted": lambda: rival.delete(TABLE, "id < 9"),
            "compacted": lambda: rival.compact_table(TABLE),
        }
        catalog.meanwhile = times(1, changes[change])
        manager.compact_table(TABLE)

    ids = sorted(lake.table(TABLE).scan().to_arrow().column("id").to_pylist())
    expected = {"overwritten": [*range(10, 50), 900], "deleted": [*range(9, 50)], "compacted": [*range(50)]}
    assert ids == expected[change]
    assert len(live_files(lake.table(TABLE))) == 1
    assert has_no_litter(lake)


@pytest.mark.requirement("S2-FR-030")
def test_a_spec_that_others_change_meanwhile_is_that_of_the_new_files(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    def partition() -> None:
        with closing(lake.connect()) as other:
            with other.load_table(TABLE).update_spec() as update:
                update.add_identity("part")
            with rival_writer(lake) as rival:
                rival.append(TABLE, rows(900, 1, "b"))

    catalog.meanwhile = times(1, partition)
    manager.compact_table(TABLE)

    table = lake.table(TABLE)
    assert {(file.spec_id, file.partition[0]) for file in live_files(table).values()} == {(1, "a"), (1, "b")}
    assert table.scan().to_arrow().num_rows == 51
    assert has_no_litter(lake)


@pytest.mark.requirement("S2-FR-030")
def test_others_who_never_stop_replacing_the_files_win(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    with rival_writer(lake) as rival:
        catalog.meanwhile = lambda: rival.overwrite(TABLE, rows(0, 10), overwrite_filter="id < 10")
        with pytest.raises(CommitConflictError):
            manager.compact_table(TABLE)

    assert lake.table(TABLE).scan().to_arrow().num_rows == 50
    assert has_no_litter(lake)


@pytest.mark.requirement("S2-FR-030")
@pytest.mark.parametrize("fate", ["is lost after it landed", "is lost before it landed"])
def test_a_lost_response_compacts_once(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager, fate: str
) -> None:
    catalog.fates = [fate]

    manager.compact_table(TABLE)

    table = lake.table(TABLE)
    assert [snapshot.summary.operation.value for snapshot in table.metadata.snapshots[-2:]] == ["append", "replace"]
    assert table.scan().to_arrow().num_rows == 50


@pytest.mark.requirement("S2-FR-030", "S2-E2")
def test_a_catalog_that_goes_away_leaves_the_new_files_and_names_them(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    catalog.fates = ["is lost after it landed"]

    with catalog.away_after_commit(), pytest.raises(CommitOutcomeUnknownError) as unknown:
        manager.compact_table(TABLE)

    assert {to_path(path) for path in unknown.value.files} == {to_path(path) for path in live_files(lake.table(TABLE))}
    assert lake.table(TABLE).scan().to_arrow().num_rows == 50
