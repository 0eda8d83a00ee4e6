"""What an asset returns is what the next one gets."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from dagster import asset
from support.warehouse import Warehouse

pytestmark = pytest.mark.requirement("S3-7", "S2-US8.2", "S2-SC-008")

NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
COLUMNS: dict[str, tuple[pa.DataType, Any]] = {
    "boolean": (pa.bool_(), True),
    "int": (pa.int32(), -(2**31)),
    "long": (pa.int64(), 2**63 - 1),
    "float": (pa.float32(), 1.5),
    "double": (pa.float64(), -0.1),
    "decimal": (pa.decimal128(38, 10), Decimal("12345678901234567890.0123456789")),
    "date": (pa.date32(), date(1969, 12, 31)),
    "timestamp": (pa.timestamp("us"), NOON.replace(tzinfo=None)),
    "timestamptz": (pa.timestamp("us", "UTC"), NOON),
    "string": (pa.string(), "Zürich, o'brien, 東京"),
    "binary": (pa.binary(), b"\x00\xff"),
    "fixed": (pa.binary(4), b"abcd"),
    "list": (pa.list_(pa.int64()), [1, None, 3]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]), {"a": 1, "b": {"c": "x"}}),
    "map": (pa.map_(pa.string(), pa.int64()), [("a", 1), ("b", None)]),
}


@pytest.mark.lakes
def test_every_type_arrives_as_it_left_with_nulls_and_without(warehouse: Warehouse) -> None:
    schema = pa.schema([(name, arrow_type) for name, (arrow_type, _) in COLUMNS.items()])
    sent = pa.table({name: [value, None] for name, (_, value) in COLUMNS.items()}, schema)
    received: list[pa.Table] = []

    @asset
    def source() -> Any:
        return warehouse.frame(sent)

    @asset
    def sink(source: warehouse.frame_type) -> None:
        received.append(warehouse.to_arrow(source))

    warehouse.run([source, sink])

    assert received[0].to_pylist() == sent.to_pylist()


def test_rows_pass_through_a_chain_of_assets(warehouse: Warehouse) -> None:
    @asset
    def orders() -> Any:
        return warehouse.frame({"customer": ["ann", "bob", "ann"], "amount": [1, 2, 3]})

    @asset
    def spending(orders: warehouse.frame_type) -> Any:
        totals = warehouse.to_arrow(orders).group_by("customer").aggregate([("amount", "sum")])
        return warehouse.frame(totals.rename_columns({"amount_sum": "total"}))

    @asset
    def best(spending: warehouse.frame_type) -> Any:
        return warehouse.frame(warehouse.to_arrow(spending).sort_by([("total", "descending")]).slice(0, 1))

    warehouse.run([orders, spending, best])

    assert warehouse.rows("best", "customer", "total") == [("ann", 4)]
