"""Commits that create a table: lost responses, failing attempts and conflicts are handled as for existing tables."""

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ForbiddenError
from support.lake import Lake
from support.place import Place
from support.table_facts import reachable_files, to_path
from support.unreliable_catalog import UnreliableCatalog

from floe_dagster_iceberg.errors import CommitConflictError, CommitOutcomeUnknownError
from floe_dagster_iceberg.models import TableIdentifier, WriteMode
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.write.exactly_once import write_once
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult

TABLE = "bronze.orders"
BUDGET = CommitBudget(retries=2, base_delay_seconds=0.1)


@pytest.fixture
def lake(catalog: UnreliableCatalog, place: Place) -> Lake:
    return Lake(place, catalog)


def write_first_rows(catalog: UnreliableCatalog) -> TableWriteResult:
    write = TableWrite(TableIdentifier.from_string(TABLE), WriteMode.APPEND, idempotency_key="the first rows")
    return write_once(catalog, ArrowRows(pa.table({"id": [1, 2]})), write, BUDGET)


@pytest.mark.requirement("S0-X1..6", "S2-E2")
def test_a_lost_response_and_a_failing_attempt_leave_the_files_of_a_new_table_in_place(
    lake: Lake, catalog: UnreliableCatalog
) -> None:
    def fail() -> None:
        if catalog.commits > 1:
            raise ForbiddenError("no longer")

    catalog.fates, catalog.meanwhile = ["lands late"], fail

    with pytest.raises(CommitOutcomeUnknownError, match=r"bronze\.orders") as unknown:
        write_first_rows(catalog)

    assert catalog.commits == 2
    assert not catalog.table_exists(TABLE)
    assert {to_path(path) for path in unknown.value.files} == lake.data_files() != set()
    catalog.late()
    assert lake.rows(TABLE) == [(1,), (2,)]
    assert reachable_files(lake.table(TABLE)) <= lake.files()


@pytest.mark.requirement("S0-X1..6")
@pytest.mark.parametrize("fate", ["is lost after it landed", "is lost before it landed"])
def test_a_lost_response_creates_the_table_once(lake: Lake, catalog: UnreliableCatalog, fate: str) -> None:
    catalog.fates = [fate]

    result = write_first_rows(catalog)

    assert result.created
    assert lake.rows(TABLE) == [(1,), (2,)]
    assert len(lake.table(TABLE).metadata.snapshots) == 1


def conflict() -> CommitFailedException:
    """The refusal of a catalog whose table of that name is dropped right after."""
    return CommitFailedException("Requirement failed: table already exists")


@pytest.mark.requirement("S0-X1..6")
def test_a_conflict_over_a_table_that_is_gone_again_is_retried(lake: Lake, catalog: UnreliableCatalog) -> None:
    catalog.fates, catalog.lost = ["is lost before it landed"], conflict

    result = write_first_rows(catalog)

    assert (result.created, result.attempts) == (True, 2)
    assert lake.rows(TABLE) == [(1,), (2,)]
    assert lake.data_files() == {to_path(path) for path in lake.table(TABLE).inspect.files()["file_path"].to_pylist()}


def test_a_budget_of_such_conflicts_leaves_neither_table_nor_data_file(lake: Lake, catalog: UnreliableCatalog) -> None:
    catalog.fates, catalog.lost = ["is lost before it landed"] * 100, conflict

    with pytest.raises(CommitConflictError):
        write_first_rows(catalog)

    assert not catalog.table_exists(TABLE)
    assert lake.data_files() == set()


@pytest.mark.requirement("S2-E2")
def test_a_budget_of_such_conflicts_after_a_lost_response_leaves_the_outcome_open(
    lake: Lake, catalog: UnreliableCatalog
) -> None:
    responses = iter([CommitStateUnknownException("no response"), *(conflict() for _ in range(100))])
    catalog.fates, catalog.lost = ["lands late", *["is lost before it landed"] * 100], lambda: next(responses)

    with pytest.raises(CommitOutcomeUnknownError) as unknown:
        write_first_rows(catalog)

    assert {to_path(path) for path in unknown.value.files} == lake.data_files() != set()
    catalog.late()
    assert lake.rows(TABLE) == [(1,), (2,)]
