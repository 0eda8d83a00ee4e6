"""How rows lie in files: sorted as the asset asks."""

import random
from typing import Any

import pyarrow.parquet as pq
import pytest
from dagster import AssetExecutionContext, StaticPartitionsDefinition, asset
from support.io_results import failure_of
from support.table_facts import to_path
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-US6.2", "S2-FR-034")


def files_of(warehouse: Warehouse, table: str) -> list[str]:
    paths = warehouse.table(table).inspect.files()["file_path"].to_pylist()
    return [str(to_path(path)) for path in paths]


def test_the_rows_of_each_file_are_in_order(warehouse: Warehouse) -> None:
    numbers = random.Random(7).sample(range(1000), 300)  # noqa: S311 - any shuffled numbers do

    @asset(
        partitions_def=StaticPartitionsDefinition(["eu", "us"]),
        metadata=iceberg_settings(partition_expr="region", sort_by=["kind", "number"]),
    )
    def events(context: AssetExecutionContext) -> Any:
        kinds = [str(number % 3) for number in numbers]
        return warehouse.frame({"region": [context.partition_key] * 300, "kind": kinds, "number": numbers})

    for key in ("eu", "us"):
        warehouse.run(events, key)

    for path in files_of(warehouse, "events"):
        rows = pq.read_table(path, columns=["kind", "number"]).to_pylist()
        assert len(rows) == 300
        assert rows == sorted(rows, key=lambda row: (row["kind"], row["number"]))


def test_a_column_to_sort_by_that_is_not_there_is_named(warehouse: Warehouse) -> None:
    @asset(metadata=iceberg_settings(sort_by="nmae"))
    def events() -> Any:
        return warehouse.frame({"name": ["a"]})

    result = warehouse.run(events, raise_on_error=False)

    assert "Sort column 'nmae' of 'public.events' does not exist. The rows have: name." in failure_of(result, "events")
    assert not warehouse.exists("events")


def test_a_frame_without_a_column_to_sort_by_is_stored_all_the_same(warehouse: Warehouse) -> None:
    frames = iter([{"name": ["b", "a"], "size": [2, 1]}, {"name": ["d", "c"]}])

    @asset(metadata=iceberg_settings(sort_by=["size", "name"]))
    def events() -> Any:
        return warehouse.frame(next(frames))

    for _ in range(2):
        warehouse.run(events)

    assert [pq.read_table(path)["name"].to_pylist() for path in files_of(warehouse, "events")] == [
        ["c", "d"],
        ["a", "b"],
    ]
