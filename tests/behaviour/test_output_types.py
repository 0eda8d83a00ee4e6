"""What an asset or op may return, in every way that Dagster lets it."""

from collections.abc import Iterator
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetOut,
    AssetsDefinition,
    AssetSpec,
    DynamicOut,
    DynamicOutput,
    MaterializeResult,
    Nothing,
    OpExecutionContext,
    Out,
    Output,
    asset,
    graph_asset,
    job,
    multi_asset,
    op,
)
from support.io_results import failure_of, shown
from support.warehouse import Warehouse

pytestmark = pytest.mark.requirement("S2-US8.1", "S2-FR-037", "S3-3", "S4-handle_output", "D3")

NUMBERS = {"id": [1, 2, 3], "name": ["a", "b", None]}
ROWS = [(1, "a"), (2, "b"), (3, None)]


def test_nothing_is_stored_for_none(warehouse: Warehouse) -> None:
    @asset
    def unannotated() -> Any:
        return None

    @asset
    def annotated() -> None:
        return None

    @asset(dagster_type=Nothing)
    def nothing() -> Any:
        return None

    assert warehouse.run([unannotated, annotated, nothing]).success
    assert not any(map(warehouse.exists, ("unannotated", "annotated", "nothing")))


def test_a_materialize_result_brings_its_value_and_metadata(warehouse: Warehouse) -> None:
    @asset
    def numbers() -> MaterializeResult[Any]:
        return MaterializeResult(value=warehouse.frame(NUMBERS), metadata={"source": "test"})

    metadata = shown(warehouse.run(numbers), "numbers")

    assert warehouse.rows("numbers") == ROWS
    assert metadata["source"] == "test"
    assert metadata["dagster/row_count"] == 3


def test_settings_on_the_output_win_over_those_on_the_asset(warehouse: Warehouse) -> None:
    modes = iter(["append", "append", "overwrite"])

    @asset(metadata={"iceberg/write_mode": "append"})
    def numbers() -> Output[Any]:
        return Output(warehouse.frame({"id": [1]}), metadata={"iceberg/write_mode": next(modes), "note": "mine"})

    for _ in range(3):
        result = warehouse.run(numbers)

    assert warehouse.rows("numbers") == [(1,)]
    assert shown(result, "numbers")["iceberg/write_mode"] == "overwrite"
    assert shown(result, "numbers")["note"] == "mine"


def two_tables(warehouse: Warehouse) -> AssetsDefinition:
    @multi_asset(
        specs=[
            AssetSpec(["sales", "orders"], skippable=True).with_io_manager_key("io_manager"),
            AssetSpec("customers", skippable=True, metadata={"iceberg/write_mode": "overwrite"}).with_io_manager_key(
                "io_manager"
            ),
        ],
        can_subset=True,
    )
    def both(context: AssetExecutionContext) -> Iterator[Any]:
        for key in sorted(context.selected_asset_keys):
            yield MaterializeResult(asset_key=key, value=warehouse.frame({"id": [1]}))

    return both


def test_each_asset_of_a_multi_asset_has_its_table_and_its_settings(warehouse: Warehouse) -> None:
    both = two_tables(warehouse)

    for _ in range(2):
        warehouse.run(both)

    assert warehouse.rows("sales.orders") == [(1,), (1,)]
    assert warehouse.rows("customers") == [(1,)]


def test_a_subset_of_a_multi_asset_leaves_the_other_table(warehouse: Warehouse) -> None:
    warehouse.run(two_tables(warehouse), selection="customers")

    assert warehouse.exists("customers")
    assert not warehouse.exists("sales.orders")


def test_outs_of_a_multi_asset_are_stored(warehouse: Warehouse) -> None:
    @multi_asset(outs={"left": AssetOut(), "right": AssetOut(is_required=False)})
    def both() -> Iterator[Any]:
        yield Output(warehouse.frame({"id": [1]}), "left")

    warehouse.run(both)

    assert warehouse.exists("left")
    assert not warehouse.exists("right")


def test_ops_are_stored_in_tables_named_after_them(warehouse: Warehouse) -> None:
    loaded: list[int] = []

    @op
    def extract() -> Any:
        return warehouse.frame({"id": [1, 2]})

    @op(out={"odd": Out(), "even": Out()})
    def split(extract: warehouse.frame_type) -> tuple[Any, Any]:
        ids = warehouse.to_arrow(extract)["id"].to_pylist()
        return warehouse.frame({"id": ids[:1]}), warehouse.frame({"id": ids[1:]})

    @op
    def count(odd: warehouse.frame_type, even: warehouse.frame_type) -> None:
        loaded.extend(warehouse.to_arrow(rows).num_rows for rows in (odd, even))

    @job(resource_defs=dict(warehouse.resources))
    def pipeline() -> None:
        count(*split(extract()))

    assert pipeline.execute_in_process().success
    assert loaded == [1, 1]
    assert warehouse.rows("split_even") == [(2,)]


def test_mapped_ops_are_stored_and_loaded_one_by_one(warehouse: Warehouse) -> None:
    loaded: list[Any] = []

    @op(out=DynamicOut())
    def numbers() -> Iterator[Any]:
        for number in (1, 2):
            yield DynamicOutput(warehouse.frame({"id": [number]}), mapping_key=f"n{number}")

    @op
    def double(numbers: warehouse.frame_type) -> Any:
        return warehouse.frame({"id": [2 * number for number in warehouse.to_arrow(numbers)["id"].to_pylist()]})

    @op
    def collect(doubled: list[warehouse.frame_type]) -> None:
        loaded.extend(warehouse.to_arrow(frame)["id"].to_pylist() for frame in doubled)

    @job(resource_defs=dict(warehouse.resources))
    def pipeline() -> None:
        collect(numbers().map(double).collect())

    assert pipeline.execute_in_process().success
    assert sorted(loaded) == [[2], [4]]
    assert warehouse.rows("double_n2") == [(4,)]


def test_a_graph_of_ops_makes_an_asset(warehouse: Warehouse) -> None:
    @op
    def extract() -> Any:
        return warehouse.frame({"id": [1]})

    @op
    def transform(context: OpExecutionContext, rows: warehouse.frame_type) -> Any:
        context.log.info("transforming")
        return warehouse.frame({"id": [warehouse.to_arrow(rows).num_rows + 1]})

    @graph_asset
    def report() -> Any:
        return transform(extract())

    warehouse.run(report)

    assert warehouse.rows("report") == [(2,)]


@pytest.mark.parametrize("value", [[1, 2], {"id": [1]}, "text", 7], ids=lambda value: type(value).__name__)
def test_any_other_type_is_refused_by_naming_those_that_fit(warehouse: Warehouse, value: Any) -> None:
    @asset
    def numbers() -> Any:
        return value

    result = warehouse.run(numbers, raise_on_error=False)

    failure = failure_of(result, "numbers")
    assert f"The value of asset 'numbers' is of type {type(value).__name__}," in failure
    assert f"Return one of: {warehouse.accepted_types}." in failure
