"""Arrow types that Iceberg lacks: stored as the next one that holds the same values, or refused by name."""

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
from support.lake import Lake

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.table.manager import IcebergTableManager

INT, LONG = pa.int32(), pa.int64()


def one(**columns: Any) -> pa.Table:
    """A table of one row."""
    return pa.table({name: value if isinstance(value, pa.Array) else [value] for name, value in columns.items()})


def typed(value: Any, arrow_type: pa.DataType) -> pa.Array:
    return pa.array([value], arrow_type)


def types_of(lake: Lake, table: str) -> dict[str, str]:
    return {field.name: str(field.field_type) for field in lake.table(table).schema().fields}


STORED_AS: list[tuple[pa.Array, str]] = [
    (typed(1, pa.int8()), "int"),
    (typed(1, pa.uint16()), "int"),
    (typed(2**32 - 1, pa.uint32()), "long"),
    (typed(1.5, pa.float16()), "float"),
    (typed("x", pa.large_string()), "string"),
    (typed("x", pa.string_view()), "string"),
    (typed(b"x", pa.binary_view()), "binary"),
    (typed("x", pa.string()).dictionary_encode(), "string"),
    (typed(["x"], pa.list_(pa.dictionary(pa.int8(), pa.string()))), "list<string>"),
    (typed([1], pa.large_list(pa.int16())), "list<int>"),
    (typed([1, 2], pa.list_(INT, 2)), "list<int>"),
    (typed(dt.date(2024, 1, 1), pa.date64()), "date"),
    (typed(dt.time(1, 2, 3), pa.time32("s")), "time"),
    (typed(dt.time(1, 2, 3, 4), pa.time64("ns")), "time"),
    (typed(1_000, pa.timestamp("ns")), "timestamp"),
    (typed(5, pa.timestamp("s", "Europe/Berlin")), "timestamptz"),
    (typed(decimal.Decimal("1.5"), pa.decimal256(20, 1)), "decimal(20, 1)"),
    (typed(decimal.Decimal("1.5"), pa.decimal32(5, 1)), "decimal(5, 1)"),
    (typed('{"a": 1}', pa.json_()), "string"),
]


@pytest.mark.requirement("S2-FR-012")
@pytest.mark.parametrize(("value", "stored"), STORED_AS, ids=[str(value.type) for value, _ in STORED_AS])
def test_arrow_types_that_iceberg_lacks_are_stored_as_the_next_one_that_holds_the_same_values(
    lake: Lake, manager: IcebergTableManager, value: pa.Array, stored: str
) -> None:
    manager.create_table("bronze.t", one(v=value).schema)
    manager.append("bronze.t", one(v=value))
    manager.append("bronze.t", one(v=value).to_reader())

    assert types_of(lake, "bronze.t") == {"v": stored}
    assert manager.scan("bronze.t").column("v").to_pylist() == value.to_pylist() * 2


@pytest.mark.parametrize(
    "value",
    [
        typed(1, pa.uint64()),
        typed(dt.timedelta(1), pa.duration("us")),
        typed(None, pa.month_day_nano_interval()),
        typed([], pa.list_(pa.null())),
        typed({"x": None}, pa.struct([("x", pa.null())])),
        typed({}, pa.struct([])),
        typed(None, pa.decimal256(60, 0)),
        typed(None, pa.decimal128(5, -2)),
        typed([1], pa.list_view(LONG)),
        pa.RunEndEncodedArray.from_arrays([1], ["a"]),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"]),
    ],
    ids=lambda array: str(array.type),
)
def test_arrow_types_that_iceberg_cannot_hold_are_refused_by_name(
    manager: IcebergTableManager, value: pa.Array
) -> None:
    manager.create_table("bronze.t", pa.schema([("a", LONG)]))

    with pytest.raises(ValidationError, match=r"v(\.|')"):
        manager.append("bronze.t", one(v=value))


@pytest.mark.parametrize(
    "value",
    [
        typed(1_700_000_000_123_456_789, pa.timestamp("ns")),
        typed(1, pa.time64("ns")),
        typed(1, pa.date64()),
        typed(2**62, pa.timestamp("ms")),
    ],
    ids=lambda array: str(array.type),
)
def test_values_that_would_lose_something_are_refused_without_being_shown(
    lake: Lake, manager: IcebergTableManager, value: pa.Array
) -> None:
    manager.create_table("bronze.t", one(v=value).schema)

    with pytest.raises(ValidationError, match="cannot hold exactly") as refused:
        manager.append("bronze.t", one(v=value))

    assert "123456789" not in str(refused.value)
    assert lake.data_files() == set()
