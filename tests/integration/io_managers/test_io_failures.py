"""Our errors in runs: hopeless ones are not tried again, passing ones are, and nothing is lost on the way."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetsDefinition, ExecuteInProcessResult, RetryPolicy, asset, build_output_context, materialize
from pyiceberg.catalog.sql import SqlCatalog

from floe_dagster_iceberg.io_managers.create import create_io_manager
from floe_dagster_iceberg.io_managers.managers import IcebergIOManager
from floe_dagster_iceberg.models import IcebergIOManagerConfig

pytestmark = pytest.mark.requirement("S4-handle_output", "S4-load_input", "S2-FR-026")


class BreakingCatalog(SqlCatalog):
    """A real catalog that raises what a test planned, before a table is loaded or after a commit."""

    before_load: BaseException | None = None
    after_commit: BaseException | None = None

    def load_table(self, identifier: Any) -> Any:
        self._raise_once("before_load")
        return super().load_table(identifier)

    def commit_table(self, table: Any, requirements: Any, updates: Any) -> Any:
        response = super().commit_table(table, requirements, updates)
        self._raise_once("after_commit")
        return response

    def _raise_once(self, when: str) -> None:
        planned = getattr(self, when)
        setattr(self, when, None)
        if planned is not None:
            raise planned


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[BreakingCatalog]:
    catalog = BreakingCatalog("floe", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    yield catalog
    catalog.close()


@pytest.fixture
def io_manager(catalog: BreakingCatalog) -> IcebergIOManager:
    return create_io_manager(IcebergIOManagerConfig(), catalog)


def retried(make: Callable[[], Any]) -> tuple[AssetsDefinition, list[int]]:
    """An asset that may be tried three more times, and a list that grows with each time."""
    attempts: list[int] = []

    @asset(retry_policy=RetryPolicy(max_retries=3))
    def numbers() -> Any:
        attempts.append(1)
        return make()

    return numbers, attempts


def run(io_manager: IcebergIOManager, *assets: AssetsDefinition, **options: Any) -> ExecuteInProcessResult:
    return materialize(assets, resources={"io_manager": io_manager}, raise_on_error=False, **options)


def failure(result: ExecuteInProcessResult, node: str) -> dict[str, Any]:
    data = result.failure_data_for_node(node)
    assert data is not None
    assert data.user_failure_data is not None
    return {key: entry.value for key, entry in data.user_failure_data.metadata.items()}


def test_a_schema_that_does_not_fit_is_not_tried_again(io_manager: IcebergIOManager) -> None:
    frames = iter([pa.table({"id": [1]}), pa.table({"id": ["one"]})])
    numbers, attempts = retried(lambda: next(frames))
    run(io_manager, numbers)

    result = run(io_manager, numbers)

    assert len(attempts) == 2
    assert failure(result, "numbers") == {
        "iceberg/error": "IncompatibleSchemaChangeError",
        "iceberg/retryable": False,
    }


def test_a_catalog_that_was_briefly_away_is_tried_again(io_manager: IcebergIOManager, catalog: BreakingCatalog) -> None:
    catalog.before_load = ConnectionError("away")
    numbers, attempts = retried(lambda: pa.table({"id": [1]}))

    assert run(io_manager, numbers).success
    assert len(attempts) == 2
    assert catalog.load_table("public.numbers").scan().to_arrow().num_rows == 1


def test_an_input_that_cannot_be_loaded_is_a_failure_too(
    io_manager: IcebergIOManager, catalog: BreakingCatalog
) -> None:
    @asset
    def source() -> pa.Table:
        return pa.table({"id": [1]})

    @asset
    def report(source: pa.Table) -> None:
        del source

    run(io_manager, source)
    catalog.before_load = ConnectionError("away")
    result = run(io_manager, source, report, selection=[report])

    assert failure(result, "report") == {"iceberg/error": "CatalogConnectionError", "iceberg/retryable": True}


def test_an_error_of_the_asset_itself_stays_what_it_is(io_manager: IcebergIOManager) -> None:
    def broken() -> Any:
        raise ZeroDivisionError

    numbers, _ = retried(broken)

    data = run(io_manager, numbers).failure_data_for_node("numbers")

    assert data is not None
    assert data.user_failure_data is None


@pytest.mark.parametrize("existing", [False, True], ids=["new table", "existing table"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")], ids=["interrupt", "bug"])
def test_rows_that_were_committed_survive_what_comes_right_after(
    io_manager: IcebergIOManager, catalog: BreakingCatalog, *, existing: bool, error: BaseException
) -> None:
    """It is unknown whether such an error came before the commit or after, so no file is deleted."""
    if existing:
        io_manager.handle_output(build_output_context(asset_key="numbers"), pa.table({"id": [0]}))
    catalog.after_commit = error

    with pytest.raises(type(error)):
        io_manager.handle_output(build_output_context(asset_key="numbers"), pa.table({"id": [1]}))

    assert catalog.load_table("public.numbers").scan().to_arrow().num_rows == 1 + existing


def test_an_interrupt_while_rows_are_written_leaves_nothing(io_manager: IcebergIOManager, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]}, schema)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        io_manager.handle_output(
            build_output_context(asset_key="numbers"), pa.RecordBatchReader.from_batches(schema, batches())
        )

    assert [path for path in (tmp_path / "warehouse").rglob("*") if path.is_file()] == []
