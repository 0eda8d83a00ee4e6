"""Another writer commits between our load of a table and our commit."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import build_output_context
from pyiceberg.catalog.sql import SqlCatalog

from floe_dagster_iceberg.errors import CommitConflictError
from floe_dagster_iceberg.io_managers.create import create_io_manager
from floe_dagster_iceberg.io_managers.managers import IcebergIOManager
from floe_dagster_iceberg.models import IcebergIOManagerConfig, TableIdentifier, WriteMode
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS
from floe_dagster_iceberg.table.arrow_input import to_arrow_rows
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.write.exactly_once import write_once
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult

pytestmark = pytest.mark.requirement("S2-US5.3", "S2-FR-028", "S2-FR-029")

OURS, THEIRS = pa.table({"id": [1]}), pa.table({"id": [2]})
BUDGET = CommitBudget(retries=3, base_delay_seconds=0.1)
KINDS: list[Callable[[pa.Table], Any]] = [lambda rows: rows, lambda rows: rows.to_reader()]
FRAMES = pytest.mark.parametrize("as_frame", KINDS, ids=["table", "reader"])


class OvertakenCatalog(SqlCatalog):
    """A real catalog in which another writer commits right before our own commit."""

    rival: Callable[[], Any] | None = None

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        rival, self.rival = self.rival, None
        if rival is not None:
            rival()
        return super().commit_table(table, requirements, updates)


@pytest.fixture
def catalogs(tmp_path: Path) -> Iterator[tuple[OvertakenCatalog, SqlCatalog]]:
    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    ours, theirs = OvertakenCatalog("floe", **where), SqlCatalog("floe", **where)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def ours(catalogs: tuple[OvertakenCatalog, SqlCatalog]) -> OvertakenCatalog:
    return catalogs[0]


@pytest.fixture
def theirs(catalogs: tuple[OvertakenCatalog, SqlCatalog]) -> SqlCatalog:
    return catalogs[1]


def io_manager_of(catalog: SqlCatalog) -> IcebergIOManager:
    return create_io_manager(IcebergIOManagerConfig(), catalog)


def store(catalog: SqlCatalog, frame: Any, **metadata: Any) -> None:
    output = build_output_context(asset_key="numbers", definition_metadata=metadata)
    io_manager_of(catalog).handle_output(output, frame)


def ids(catalog: SqlCatalog) -> list[int]:
    return sorted(catalog.load_table("public.numbers").scan().to_arrow()["id"].to_pylist())


def data_files(folder: Path) -> int:
    return len(list((folder / "warehouse").rglob("*.parquet")))


@FRAMES
def test_both_write_the_first_rows_of_a_table(
    ours: OvertakenCatalog, theirs: SqlCatalog, tmp_path: Path, as_frame: Callable[[pa.Table], Any]
) -> None:
    ours.rival = lambda: store(theirs, THEIRS)

    store(ours, as_frame(OURS))

    assert ids(theirs) == [1, 2]
    assert data_files(tmp_path) == 2


@FRAMES
def test_both_append_to_a_table(
    ours: OvertakenCatalog, theirs: SqlCatalog, tmp_path: Path, as_frame: Callable[[pa.Table], Any]
) -> None:
    store(theirs, THEIRS)
    ours.rival = lambda: store(theirs, THEIRS)

    store(ours, as_frame(OURS))

    assert ids(theirs) == [1, 2, 2]
    assert data_files(tmp_path) == 3


def test_the_other_one_makes_the_table_with_more_columns(ours: OvertakenCatalog, theirs: SqlCatalog) -> None:
    ours.rival = lambda: store(theirs, pa.table({"name": ["a"], "id": [2]}))

    store(ours, OURS)

    assert ids(theirs) == [1, 2]
    assert theirs.load_table("public.numbers").schema().column_names == ["name", "id"]


def test_a_stream_that_does_not_fit_the_other_ones_table_is_a_conflict_and_leaves_no_file(
    ours: OvertakenCatalog, theirs: SqlCatalog, tmp_path: Path
) -> None:
    """Its rows were read once, for another table; only a retry can read them again."""
    ours.rival = lambda: store(theirs, pa.table({"name": ["a"], "id": [2]}))

    with pytest.raises(CommitConflictError, match="changed the schema or partitioning"):
        store(ours, OURS.to_reader())

    assert ids(theirs) == [2]
    assert data_files(tmp_path) == 1


def write(catalog: SqlCatalog, key: str) -> TableWriteResult:
    """Write the same rows under a key of our choice."""
    wanted = TableWrite(
        table=TableIdentifier(namespace="public", name="numbers"),
        idempotency_key=key,
        mode=WriteMode.APPEND,
        scope=RowScope(ALL_ROWS),
    )
    return write_once(catalog, to_arrow_rows(OURS), wanted, BUDGET)


@pytest.mark.parametrize("existing", [False, True], ids=["new table", "existing table"])
def test_two_processes_that_do_the_same_work_do_it_once(
    ours: OvertakenCatalog, theirs: SqlCatalog, tmp_path: Path, *, existing: bool
) -> None:
    """As when Dagster takes a worker for dead that is only slow, and starts another."""
    if existing:
        write(theirs, "earlier work")
    ours.rival = lambda: write(theirs, "work")

    result = write(ours, "work")

    assert result.deduplicated
    assert ids(theirs) == [1] * (1 + existing)
    assert data_files(tmp_path) == 1 + existing
    assert result.snapshot.snapshot_id == theirs.load_table("public.numbers").metadata.current_snapshot_id


def test_work_that_was_rolled_back_is_done_again(ours: OvertakenCatalog) -> None:
    manager = io_manager_of(ours).table_manager
    first = write(ours, "first").snapshot.snapshot_id
    rolled_back = write(ours, "second").snapshot.snapshot_id
    manager.rollback_to_snapshot("public.numbers", first)

    again = write(ours, "second")

    assert not again.deduplicated
    assert again.snapshot.snapshot_id != rolled_back
    assert ids(ours) == [1, 1]


def test_work_of_an_earlier_snapshot_is_recognised(ours: OvertakenCatalog) -> None:
    first = write(ours, "first").snapshot.snapshot_id
    write(ours, "second")

    again = write(ours, "first")

    assert again.deduplicated
    assert again.snapshot.snapshot_id == first
    assert ids(ours) == [1, 1]
