"""Commits that create a table: lost responses, failing attempts and conflicts are handled as for existing tables."""

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CreateTableTransaction
from support.faulty_io import broken_disk, failing, faulty_lake
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


@pytest.mark.requirement("S0-X1..6")
@pytest.mark.parametrize("staged_first", [False, True])
def test_a_table_that_another_process_creates_before_ours_is_staged_gets_the_rows(
    lake: Lake, catalog: UnreliableCatalog, monkeypatch: pytest.MonkeyPatch, *, staged_first: bool
) -> None:
    """A REST server refuses to stage a table that exists; a SQL catalog refuses its commit."""
    stage = catalog.create_table_transaction

    def refuse_existing(*arguments: Any, **options: Any) -> CreateTableTransaction:
        staged = stage(*arguments, **options) if staged_first else None
        # A second attempt is refused here.
        catalog.create_table(TABLE, pa.schema([("id", pa.int64())])).append(pa.table({"id": [9]}))
        if staged is None:
            raise TableAlreadyExistsError("409")
        return staged

    monkeypatch.setattr(catalog, "create_table_transaction", refuse_existing)

    result = write_first_rows(catalog)

    assert (result.created, result.deduplicated) == (False, False)
    assert lake.rows(TABLE) == [(1,), (2,), (9,)]
    assert lake.data_files() <= reachable_files(lake.table(TABLE))


@pytest.mark.requirement("S0-X1..6", "S2-E2")
def test_storage_that_fails_after_a_lost_response_leaves_the_outcome_unknown(place: Place) -> None:
    with faulty_lake(place) as lake:
        catalog = UnreliableCatalog.of(lake.catalog)
        write_first_rows(catalog)
        catalog.fates = ["is lost before it landed"]
        write = TableWrite(TableIdentifier.from_string(TABLE), WriteMode.APPEND, idempotency_key="more rows")

        with (
            failing("*/metadata/*.avro", broken_disk, kth=3),
            pytest.raises(CommitOutcomeUnknownError, match=r"bronze\.orders"),
        ):
            write_once(catalog, ArrowRows(pa.table({"id": [3]})), write, BUDGET)

        assert reachable_files(lake.table(TABLE)) <= lake.files()
