"""Slices as masks over Arrow rows: which rows belong, how many do not."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS, KeySet, PartitionSlice, TimeRange
from floe_dagster_iceberg.partitions import build_slice
from floe_dagster_iceberg.table.filter.partition_slice import match_rows

pytestmark = pytest.mark.requirement("D4")

DAILY = dg.DailyPartitionsDefinition("2024-01-01")
DAILY_NY = dg.DailyPartitionsDefinition("2024-01-01", timezone="America/New_York")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
UUID_KEY = "8f14e45f-ceea-467f-a830-5b2d7a1f9c11"


def schema_of(column_type: IcebergType) -> Schema:
    return Schema(NestedField(1, "c", column_type))


def keys_of(*keys: str) -> PartitionSlice:
    return PartitionSlice(any_of=((KeySet(column="c", keys=keys),),))


def window_of(partitions_def: dg.PartitionsDefinition, *keys: str) -> PartitionSlice:
    return build_slice(partitions_def, keys, partition_expr="c")


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]


def mask(rows: PartitionSlice, values: Any, arrow_type: pa.DataType, column_type: IcebergType) -> list[bool]:
    data = pa.table({"c": pa.array(values, arrow_type)})
    return match_rows(rows, data, schema_of(column_type)).inside.to_pylist()


def test_all_rows_and_no_rows_are_constants() -> None:
    data = pa.table({"c": ["a", None]})

    assert match_rows(ALL_ROWS, data, schema_of(StringType())).inside.to_pylist() == [True, True]
    assert match_rows(PartitionSlice(any_of=()), data, schema_of(StringType())).rows_outside == 2


@pytest.mark.parametrize(
    ("arrow_type", "column_type", "key", "values"),
    [
        (pa.string(), StringType(), "eu", ["eu", "us", None]),
        (pa.large_string(), StringType(), "eu", ["eu", "us", None]),
        (pa.string_view(), StringType(), "eu", ["eu", "us", None]),
        (pa.dictionary(pa.int8(), pa.string()), StringType(), "eu", ["eu", "us", None]),
        (pa.int8(), LongType(), "7", [7, 8, None]),
        (pa.uint32(), LongType(), "7", [7, 8, None]),
        (pa.int8(), LongType(), "300", [None]),
        (pa.bool_(), BooleanType(), "true", [True, False, None]),
        (pa.decimal128(5, 1), DecimalType(10, 2), "1.50", [Decimal("1.5"), Decimal("1.6"), None]),
        (pa.uuid(), UUIDType(), UUID_KEY, [UUID(UUID_KEY).bytes, UUID(int=1).bytes, None]),
        (pa.binary(16), UUIDType(), UUID_KEY, [UUID(UUID_KEY).bytes, UUID(int=1).bytes, None]),
        (pa.date32(), DateType(), "2024-01-05", [date(2024, 1, 5), date(2024, 1, 6), None]),
        (pa.date64(), DateType(), "2024-01-05", [date(2024, 1, 5), date(2024, 1, 6), None]),
        (pa.timestamp("s"), TimestampType(), "2024-01-05T00:00:00.5", [datetime(2024, 1, 5), None]),  # noqa: DTZ001
        (
            pa.timestamp("ms", "UTC"),
            TimestamptzType(),
            "2024-01-05T00:00:00Z",
            [utc(2024, 1, 5), utc(2024, 1, 6), None],
        ),
    ],
)
def test_a_mask_takes_every_arrow_type_that_fits_the_column(
    arrow_type: pa.DataType, column_type: IcebergType, key: str, values: list[Any]
) -> None:
    expected = [value == values[0] and len(values) == 3 for value in values]

    assert mask(keys_of(key), values, arrow_type, column_type) == expected


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "+05:30"])
def test_a_mask_compares_instants_in_any_unit_and_zone(unit: str, zone: str) -> None:
    start, end = utc(2024, 3, 10, 5), utc(2024, 3, 11, 4)
    timestamps = [start - timedelta(seconds=1), start, end - timedelta(seconds=1), end, None]

    inside = mask(window_of(DAILY_NY, "2024-03-10"), timestamps, pa.timestamp(unit, zone), TimestamptzType())

    assert inside == [False, True, True, False, False]


def test_a_mask_is_exact_to_the_nanosecond() -> None:
    start, end = 1_704_412_800_000_000_000, 1_704_499_200_000_000_000

    inside = mask(
        window_of(DAILY, "2024-01-05"), [start - 1, start, end - 1, end], pa.timestamp("ns", "UTC"), TimestamptzType()
    )

    assert inside == [False, True, True, False]


def test_a_bound_between_two_ticks_of_the_data_is_exact() -> None:
    half_past = TimeRange(column="c", start=EPOCH + timedelta(seconds=1.5), end=EPOCH + timedelta(seconds=3.5))
    rows = PartitionSlice(any_of=((half_past,),))

    assert mask(rows, range(5), pa.timestamp("s", "UTC"), TimestamptzType()) == [False, False, True, True, False]


def test_rows_outside_are_counted_and_those_without_a_value_apart() -> None:
    rows = PartitionSlice(any_of=((KeySet(column="a", keys=("x",)), KeySet(column="b", keys=("1",))),))
    schema = Schema(NestedField(1, "a", StringType()), NestedField(2, "b", LongType()))
    data = pa.table({"a": ["x", "x", None, "y", None, "x"], "b": [1, 2, 1, 1, None, None]})

    found = match_rows(rows, data, schema)

    assert (found.rows_outside, found.null_rows) == (5, 3)
    assert data.filter(found.inside).to_pylist() == [{"a": "x", "b": 1}]


def test_a_mask_takes_batches_and_empty_frames() -> None:
    schema = schema_of(StringType())
    batch = pa.record_batch({"c": ["eu", "us"]})
    empty = pa.table({"c": pa.array([], pa.string())})

    assert match_rows(keys_of("eu"), batch, schema).inside.to_pylist() == [True, False]
    assert batch.filter(match_rows(keys_of("eu"), batch, schema).inside.combine_chunks()).num_rows == 1
    assert match_rows(keys_of("eu"), empty, schema).rows_outside == 0
    assert match_rows(ALL_ROWS, pa.table({}), schema).rows_outside == 0


@pytest.mark.parametrize(
    ("arrow_type", "column_type"),
    [
        (pa.timestamp("us"), TimestamptzType()),
        (pa.timestamp("us", "UTC"), TimestampType()),
        (pa.timestamp("us"), DateType()),
        (pa.string(), LongType()),
        (pa.int64(), StringType()),
        (pa.float64(), LongType()),
    ],
)
def test_data_of_another_type_than_the_column_is_refused(arrow_type: pa.DataType, column_type: IcebergType) -> None:
    rows = window_of(DAILY, "2024-01-05")

    with pytest.raises(ValidationError, match=r"'c' is .* in the data and .* in the table. Cast it in the asset"):
        match_rows(rows, pa.table({"c": pa.array([], arrow_type)}), schema_of(column_type))


def test_decimals_that_would_lose_digits_are_refused_without_showing_them() -> None:
    data = pa.table({"c": pa.array([Decimal("1.234")], pa.decimal128(5, 3))})

    with pytest.raises(ValidationError, match="do not fit the table's type") as caught:
        match_rows(keys_of("1.2"), data, schema_of(DecimalType(5, 1)))
    assert "1.234" not in str(caught.value)
