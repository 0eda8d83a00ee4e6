"""Commits whose response is lost, and commits that other writers always beat: made once, or reported as failed."""

from collections.abc import Callable

import pyarrow as pa
import pytest
import requests
from pyiceberg.exceptions import BadRequestError, CommitStateUnknownException, ServiceUnavailableError
from support.lake import Lake
from support.place import Place
from support.rival_writer import QUICK, rival_writer
from support.table_facts import live_files, reachable_files, to_path
from support.unreliable_catalog import Interrupted, UnreliableCatalog

from floe_dagster_iceberg.errors import CommitConflictError, CommitOutcomeUnknownError, ValidationError
from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.lakes

TABLE = "bronze.orders"
ROWS = pa.table({"id": [1, 2], "v": [0, 0]})


@pytest.fixture
def lake(catalog: UnreliableCatalog, place: Place) -> Lake:
    return Lake(place, catalog)


@pytest.fixture
def manager(catalog: UnreliableCatalog) -> IcebergTableManager:
    """Beside a table of two rows in one file."""
    manager = IcebergTableManager(catalog, config=QUICK)
    manager.create_table(TABLE, ROWS.schema)
    manager.append(TABLE, ROWS)
    catalog.commits = 0
    return manager


Write = Callable[[IcebergTableManager], object]
WRITES: dict[str, tuple[Write, list[tuple[int, int]]]] = {
    "append": (lambda manager: manager.append(TABLE, pa.table({"id": [3], "v": [3]})), [(1, 0), (2, 0), (3, 3)]),
    "stream": (
        lambda manager: manager.append(TABLE, pa.table({"id": [3], "v": [3]}).to_reader()),
        [(1, 0), (2, 0), (3, 3)],
    ),
    "overwrite": (
        lambda manager: manager.overwrite(TABLE, pa.table({"id": [2], "v": [9]}), overwrite_filter="id = 2"),
        [(1, 0), (2, 9)],
    ),
    "upsert": (lambda manager: manager.upsert(TABLE, pa.table({"id": [2], "v": [9]}), ["id"]), [(1, 0), (2, 9)]),
    "delete": (lambda manager: manager.delete(TABLE, "id = 2"), [(1, 0)]),
}


@pytest.mark.requirement("S0-X1..6", "S2-FR-029")
@pytest.mark.parametrize("fate", ["is lost after it landed", "is lost before it landed"])
@pytest.mark.parametrize(("write", "expected"), WRITES.values(), ids=WRITES)
def test_a_lost_response_makes_the_commit_neither_twice_nor_not_at_all(
    lake: Lake,
    catalog: UnreliableCatalog,
    manager: IcebergTableManager,
    *,
    write: Write,
    expected: list[tuple[int, int]],
    fate: str,
) -> None:
    catalog.fates = [fate]

    write(manager)

    table = lake.table(TABLE)
    assert lake.rows(TABLE) == expected
    assert len(table.metadata.snapshots) == 2
    assert catalog.commits == (1 if "after" in fate else 2)
    assert {to_path(path) for path in live_files(table)} <= lake.data_files()


@pytest.mark.requirement("S0-X1..6")
def test_a_service_that_is_briefly_unavailable_is_asked_again(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    catalog.fates = ["is lost before it landed", "is lost before it landed"]
    catalog.lost = lambda: ServiceUnavailableError("come back later")

    snapshot = manager.append(TABLE, ROWS)

    assert lake.table(TABLE).current_snapshot().snapshot_id == snapshot.snapshot_id
    assert catalog.commits == 3


@pytest.mark.requirement("S0-X1..6", "S2-E2")
@pytest.mark.parametrize("landed", [True, False], ids=["landed", "did not land"])
@pytest.mark.parametrize("name", ["append", "overwrite", "upsert", "delete"])
def test_a_catalog_that_went_away_leaves_the_outcome_open_and_the_files_in_place(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager, *, name: str, landed: bool
) -> None:
    write, expected = WRITES[name]
    files = lake.data_files()
    catalog.fates = ["is lost after it landed" if landed else "is lost before it landed"]

    with catalog.away_after_commit(), pytest.raises(CommitOutcomeUnknownError, match=r"bronze\.orders") as unknown:
        write(manager)

    assert {to_path(path) for path in unknown.value.files} == lake.data_files() - files
    assert unknown.value.retryable
    assert (lake.table(TABLE).snapshot_by_id(unknown.value.snapshot_id) is not None) is landed
    assert lake.rows(TABLE) == (expected if landed else [(1, 0), (2, 0)])


@pytest.mark.requirement("S2-E2")
def test_a_budget_of_lost_responses_ends_with_the_outcome_open(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    catalog.fates = ["is lost before it landed"] * 100

    with pytest.raises(CommitOutcomeUnknownError) as unknown:
        manager.append(TABLE, ROWS)

    assert all(to_path(path).exists() for path in unknown.value.files)
    assert len(lake.rows(TABLE)) == 2


def refused() -> BadRequestError:
    """What PyIceberg makes of HTTP 400."""
    response = requests.Response()
    response.status_code = 400
    error = BadRequestError("is invalid")
    error.__cause__ = requests.HTTPError(response=response)
    return error


@pytest.mark.requirement("S2-E2")
def test_a_refusal_after_a_lost_response_leaves_the_outcome_open(
    catalog: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    responses = iter([CommitStateUnknownException("no response"), refused()])
    catalog.fates, catalog.lost = ["is lost before it landed"] * 2, lambda: next(responses)

    with pytest.raises(CommitOutcomeUnknownError) as unknown:
        manager.append(TABLE, ROWS)

    assert unknown.value.files
    assert all(to_path(path).exists() for path in unknown.value.files)


def test_a_refusal_without_a_conflicting_commit_is_final_and_leaves_nothing(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    catalog.fates, catalog.lost = ["is lost before it landed"], refused

    with pytest.raises(ValidationError, match=r"bronze\.orders"):
        manager.append(TABLE, ROWS)

    assert catalog.commits == 1
    assert lake.files() == reachable_files(lake.table(TABLE))


def test_a_refusal_after_others_committed_is_planned_again(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    catalog.fates, catalog.lost = ["is lost before it landed"], refused
    with rival_writer(lake) as rival:
        catalog.meanwhile = lambda: catalog.commits == 1 and rival.append(TABLE, ROWS)

        manager.append(TABLE, ROWS)

    assert catalog.commits == 2
    assert len(lake.rows(TABLE)) == 6


@pytest.mark.requirement("S2-FR-026")
@pytest.mark.parametrize("error", [Interrupted, RuntimeError])
@pytest.mark.parametrize("landed", [True, False], ids=["landed", "did not land"])
def test_an_interruption_of_the_commit_itself_never_takes_files_from_the_table(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager, *, error: type[BaseException], landed: bool
) -> None:
    catalog.fates = ["is lost after it landed" if landed else "is lost before it landed"]
    catalog.lost = error

    with pytest.raises(error):
        manager.overwrite(TABLE, pa.table({"id": [2], "v": [9]}), overwrite_filter="id = 2")

    assert lake.rows(TABLE) == ([(1, 0), (2, 9)] if landed else [(1, 0), (2, 0)])


def compete(lake: Lake, times: int) -> Callable[[], None]:
    """Another client that commits before each of the first commits of this one."""
    left = [times]

    def append() -> None:
        if left[0]:
            left[0] -= 1
            with rival_writer(lake) as rival:
                rival.append(TABLE, pa.table({"id": [100 + left[0]], "v": [0]}))

    return append


@pytest.mark.requirement("S2-FR-029", "S1-T058a/62", "S0-W2", "S2-US5.3")
@pytest.mark.parametrize("name", WRITES)
def test_a_write_that_loses_races_is_planned_again_until_it_lands(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager, name: str
) -> None:
    write, expected = WRITES[name]
    catalog.meanwhile = compete(lake, 2)

    write(manager)

    assert catalog.commits == 3
    assert lake.rows(TABLE) == sorted([*expected, (100, 0), (101, 0)], key=repr)
    assert lake.files("**/*.parquet") | lake.files("**/*.avro") <= reachable_files(lake.table(TABLE))


@pytest.mark.requirement("S2-FR-029", "S1-T058a/62", "S0-W2", "S0-X1..6")
def test_a_budget_of_lost_races_ends_with_the_number_of_attempts_and_nothing_changed(
    lake: Lake, catalog: UnreliableCatalog
) -> None:
    config = IcebergTableManagerConfig(max_commit_retries=1, retry_base_delay_seconds=0.1)
    manager = IcebergTableManager(catalog, config=config)
    manager.create_table(TABLE, ROWS.schema)
    catalog.commits, catalog.meanwhile = 0, compete(lake, 1000)

    with pytest.raises(CommitConflictError, match=r"\(\d+ attempts\).*Nothing was changed") as conflict:
        manager.append(TABLE, ROWS)

    assert conflict.value.attempts == catalog.commits >= 2
    assert conflict.value.retryable
    assert conflict.value.__cause__ is not None
    assert len(lake.rows(TABLE)) == catalog.commits
    assert lake.files("**/*.parquet") | lake.files("**/*.avro") <= reachable_files(lake.table(TABLE))


@pytest.mark.requirement("S2-FR-029")
def test_a_column_and_rows_that_lose_a_race_land_together(
    lake: Lake, catalog: UnreliableCatalog, manager: IcebergTableManager
) -> None:
    catalog.meanwhile = compete(lake, 2)
    before = lake.metadata_versions(TABLE)

    manager.append(TABLE, pa.table({"id": [3], "note": ["x"]}))

    assert lake.metadata_versions(TABLE) == before + 3
    assert lake.rows(TABLE)[-1] == (3, None, "x")
