"""Quotes, spaces, dots and unicode in keys and column names are just data."""

from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
    asset,
)
from support.warehouse import Warehouse

pytestmark = [pytest.mark.requirement("S2-FR-040", "S2-FR-039"), pytest.mark.lakes]

NAMES = ["o'brien", 'say "hi"', "two words", "東京", "a.b", "a/b=c\\100%", "' OR 1=1 --"]
COLUMNS = ["customer name", "kunde.name", "größe", "it's", 'a"b/c', "order"]


def test_every_key_selects_its_own_rows_for_writing_and_reading(warehouse: Warehouse) -> None:
    runs, loaded = iter(range(100)), {}
    names = StaticPartitionsDefinition(NAMES)

    @asset(partitions_def=names, metadata={"partition_expr": "name"})
    def customers(context: AssetExecutionContext) -> Any:
        return warehouse.frame({"name": context.partition_keys, "run": [next(runs)] * len(context.partition_keys)})

    @asset(partitions_def=names)
    def reader(context: AssetExecutionContext, customers: warehouse.frame_type) -> None:
        loaded[context.partition_key] = warehouse.to_arrow(customers)["name"].to_pylist()

    warehouse.run(customers, key_range=(NAMES[0], NAMES[-1]))
    for key in NAMES:
        warehouse.run([customers, reader], key)

    assert dict(warehouse.rows("customers")) == {name: run for run, name in enumerate(NAMES, start=1)}
    assert loaded == {name: [name] for name in NAMES}


@pytest.mark.parametrize("column", COLUMNS)
def test_every_name_may_be_the_partition_column(warehouse: Warehouse, column: str) -> None:
    runs, loaded = iter(range(10)), []
    regions = StaticPartitionsDefinition(["eu", "us"])

    @asset(partitions_def=regions, metadata={"partition_expr": column})
    def events(context: AssetExecutionContext) -> Any:
        return warehouse.frame({column: [context.partition_key], "run": [next(runs)]})

    @asset(partitions_def=regions, ins={"events": AssetIn(metadata={"columns": ["run"]})})
    def reader(events: warehouse.frame_type) -> None:
        loaded.extend(warehouse.to_arrow(events).to_pylist())

    for key in ("eu", "us"):
        warehouse.run(events, key)
    warehouse.run([events, reader], "eu")

    assert warehouse.rows("events") == [("eu", 2), ("us", 1)]
    assert loaded == [{"run": 2}]


def test_awkward_keys_combine(warehouse: Warehouse) -> None:
    runs = iter(range(10))
    both = MultiPartitionsDefinition(
        {"name": StaticPartitionsDefinition(["o'brien", "a.b"]), "city": StaticPartitionsDefinition(["東京", "x y"])}
    )

    @asset(partitions_def=both, metadata={"partition_expr": {"name": "the name", "city": "city"}})
    def events(context: AssetExecutionContext) -> Any:
        keys = context.partition_key.keys_by_dimension
        return warehouse.frame({"the name": [keys["name"]], "city": [keys["city"]], "run": [next(runs)]})

    for name, city in (("o'brien", "東京"), ("o'brien", "x y"), ("a.b", "東京"), ("o'brien", "東京")):
        warehouse.run(events, MultiPartitionKey({"name": name, "city": city}))

    assert set(warehouse.rows("events")) == {("a.b", "東京", 2), ("o'brien", "x y", 1), ("o'brien", "東京", 3)}
