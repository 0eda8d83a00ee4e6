"""An input that comes from an op's output reads what its run wrote, whatever other runs have written."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    DynamicOut,
    DynamicOutput,
    GraphDefinition,
    In,
    Nothing,
    Out,
    Output,
    RetryRequested,
    graph,
    graph_asset,
    materialize,
    op,
)
from support.io_results import failure_of
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-FR-022", "S4-load_input")


class Received:
    """What the op `clean` was given, run by run."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse, self.rows = warehouse, list[list[int]]()

    def note(self, frame: Any) -> None:
        self.rows.append(sorted(self._warehouse.to_arrow(frame)["run"].to_pylist()))


def execute(warehouse: Warehouse, work: GraphDefinition, **kwargs: Any) -> Any:
    return work.to_job(resource_defs=warehouse.resources).execute_in_process(instance=warehouse.instance, **kwargs)


def fetch_and_clean(warehouse: Warehouse, received: Received, **settings: Any) -> GraphDefinition:
    runs: list[int] = []

    @op(out=Out(metadata=iceberg_settings(**settings)))
    def fetch() -> Any:
        runs.append(len(runs))
        return warehouse.frame({"run": [runs[-1]] * 2})

    @op
    def clean(rows: warehouse.frame_type) -> None:
        received.note(rows)

    @graph
    def fetch_and_clean() -> None:
        clean(fetch())

    return fetch_and_clean


@pytest.mark.lakes
def test_a_job_reads_the_rows_of_its_own_run(warehouse: Warehouse) -> None:
    received = Received(warehouse)
    work = fetch_and_clean(warehouse, received)

    for _ in range(3):
        execute(warehouse, work)

    assert received.rows == [[0, 0], [1, 1], [2, 2]]
    assert warehouse.rows("fetch") == [(2,), (2,)]
    assert len(warehouse.table("fetch").metadata.snapshots) == 3


def test_ops_of_a_graph_asset_read_the_rows_of_their_run(warehouse: Warehouse) -> None:
    runs: list[int] = []

    @op
    def fetch() -> Any:
        runs.append(len(runs))
        return warehouse.frame({"run": [runs[-1]]})

    @op
    def clean(rows: warehouse.frame_type) -> Any:
        return rows

    @graph_asset
    def cleaned() -> Any:
        return clean(fetch())

    for _ in range(2):
        materialize([cleaned], resources=warehouse.resources, instance=warehouse.instance)

    # The asset appends by default; what it was given does not pile up.
    assert warehouse.rows("cleaned") == [(0,), (1,)]


def test_an_output_that_is_appended_accumulates_and_is_read_by_its_run_alone(warehouse: Warehouse) -> None:
    received = Received(warehouse)
    work = fetch_and_clean(warehouse, received, write_mode="append")

    for _ in range(3):
        execute(warehouse, work)

    assert received.rows == [[0, 0], [1, 1], [2, 2]]
    assert warehouse.rows("fetch") == [(0,), (0,), (1,), (1,), (2,), (2,)]


def test_an_empty_output_is_read_as_no_rows(warehouse: Warehouse) -> None:
    frames = iter([{"run": [0]}, {"run": []}])
    received = Received(warehouse)

    @op
    def fetch() -> Any:
        return warehouse.frame(next(frames), pa.schema([("run", pa.int64())]))

    @op
    def clean(rows: warehouse.frame_type) -> None:
        received.note(rows)

    @graph
    def work() -> None:
        clean(fetch())

    for _ in range(2):
        execute(warehouse, work)

    assert received.rows == [[0], []]


def test_runs_at_the_same_time_do_not_see_each_others_rows(warehouse: Warehouse) -> None:
    received, runs = Received(warehouse), list[int]()

    @op
    def fetch() -> Any:
        runs.append(len(runs))
        return warehouse.frame({"run": [runs[-1]]})

    @op(ins={"after": In(Nothing)})
    def meanwhile() -> None:
        if len(runs) == 1:
            execute(warehouse, work)

    @op(ins={"after": In(Nothing)})
    def clean(rows: warehouse.frame_type) -> None:
        received.note(rows)

    @graph
    def work() -> None:
        rows = fetch()
        clean(rows, after=meanwhile(rows))

    execute(warehouse, work)

    # The second run ended within the first one.
    assert received.rows == [[1], [0]]


def test_an_output_replaces_rows_that_others_commit_while_it_is_written(warehouse: Warehouse) -> None:
    received = Received(warehouse)

    @op
    def fetch() -> Any:
        if not warehouse.exists("fetch"):
            return warehouse.frame({"run": [0]})
        return warehouse.overtaken_frame({"run": [1]}, "fetch", {"run": [99]})

    @op
    def clean(rows: warehouse.frame_type) -> None:
        received.note(rows)

    @graph
    def work() -> None:
        clean(fetch())

    for _ in range(2):
        execute(warehouse, work)

    assert received.rows == [[0], [1]]
    assert warehouse.rows("fetch") == [(1,)]


def test_a_retried_step_reads_what_its_first_attempt_stored(warehouse: Warehouse) -> None:
    received, attempts = Received(warehouse), list[int]()

    @op(out={"first": Out(), "second": Out()})
    def fetch() -> Iterator[Any]:
        attempts.append(len(attempts))
        yield Output(warehouse.frame({"run": attempts[-1:]}), "first")
        if len(attempts) == 1:
            raise RetryRequested(max_retries=1)
        yield Output(warehouse.frame({"run": attempts[-1:]}), "second")

    @op
    def clean(first: warehouse.frame_type, second: warehouse.frame_type) -> None:
        received.note(first)
        received.note(second)

    @graph
    def work() -> None:
        clean(*fetch())

    execute(warehouse, work)

    assert received.rows == [[0], [1]]
    assert len(warehouse.table("fetch_first").metadata.snapshots) == 1


def test_mapped_steps_read_the_output_of_their_key(warehouse: Warehouse) -> None:
    received, runs = Received(warehouse), list[int]()

    @op(out=DynamicOut())
    def split() -> Iterator[Any]:
        runs.append(len(runs))
        for number, key in enumerate("ab"):
            yield DynamicOutput(warehouse.frame({"run": [10 * runs[-1] + number]}), mapping_key=key)

    @op
    def double(rows: warehouse.frame_type) -> Any:
        received.note(rows)
        return rows

    @op
    def collect(parts: list[warehouse.frame_type]) -> None:  # type: ignore[name-defined]
        for part in parts:
            received.note(part)

    @graph
    def work() -> None:
        collect(split().map(double).collect())

    for _ in range(2):
        execute(warehouse, work)

    assert received.rows == [[0], [1], [0], [1], [10], [11], [10], [11]]


def test_an_output_that_has_expired_is_missed(warehouse: Warehouse) -> None:
    runs: list[int] = []

    @op
    def fetch() -> Any:
        runs.append(len(runs))
        return warehouse.frame({"run": runs[-1:]})

    @op(ins={"after": In(Nothing)})
    def drop() -> None:
        warehouse.manager.drop_table("public.fetch")
        warehouse.manager.create_table("public.fetch", pa.schema([("run", pa.int64())]))

    @op(ins={"after": In(Nothing)})
    def clean(rows: warehouse.frame_type) -> None:
        del rows

    @graph
    def work() -> None:
        rows = fetch()
        clean(rows, after=drop(rows))

    result = execute(warehouse, work, raise_on_error=False)

    assert "Output 'result' of step 'fetch'" in failure_of(result, "clean")
    assert "is not in 'public.fetch'" in failure_of(result, "clean")
