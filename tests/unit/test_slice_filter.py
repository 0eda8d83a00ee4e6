"""Slices as PyIceberg expressions and as masks over Arrow rows, type by type."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind, expression_evaluator
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    UUIDType,
)

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS, KeySet, PartitionSlice, TimeRange
from floe_dagster_iceberg.partitions import build_slice
from floe_dagster_iceberg.table.filter.partition_slice import match_rows, to_expression

NO_ROWS = PartitionSlice(any_of=())

pytestmark = pytest.mark.requirement("D4", "S3-3c")

NEW_YORK = "America/New_York"
DAILY = dg.DailyPartitionsDefinition("2024-01-01")
DAILY_NY = dg.DailyPartitionsDefinition("2024-01-01", timezone=NEW_YORK)
HOURLY_NY = dg.HourlyPartitionsDefinition("2024-01-01-00:00", timezone=NEW_YORK)

MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def schema_of(column_type: IcebergType, name: str = "c") -> Schema:
    return Schema(NestedField(1, name, column_type))


def keys_of(*keys: str, column: str = "c") -> PartitionSlice:
    return PartitionSlice(any_of=((KeySet(column=column, keys=keys),),))


def window_of(partitions_def: dg.PartitionsDefinition, *keys: str) -> PartitionSlice:
    return build_slice(partitions_def, keys, partition_expr="c")


def selects(expression: BooleanExpression, column_type: IcebergType, value: Any) -> bool:
    """Whether a row with this value, as Iceberg stores it, meets the filter."""
    return expression_evaluator(schema_of(column_type), expression, case_sensitive=True)(Record(value))


def micros(timestamp: datetime) -> int:
    return (timestamp - EPOCH) // MICROSECOND


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]


def mask(rows: PartitionSlice, values: Any, arrow_type: pa.DataType, column_type: IcebergType) -> list[bool]:
    data = pa.table({"c": pa.array(values, arrow_type)})
    return match_rows(rows, data, schema_of(column_type)).inside.to_pylist()


def test_all_rows_and_no_rows_are_constants() -> None:
    assert to_expression(ALL_ROWS, schema_of(StringType())) == AlwaysTrue()
    assert to_expression(NO_ROWS, schema_of(StringType())) == AlwaysFalse()


@pytest.mark.parametrize("column_type", [TimestamptzType(), TimestamptzNanoType()])
@pytest.mark.parametrize(
    ("key", "start", "end"),
    [
        ("2024-03-10", utc(2024, 3, 10, 5), utc(2024, 3, 11, 4)),
        ("2024-11-03", utc(2024, 11, 3, 4), utc(2024, 11, 4, 5)),
    ],
)
def test_timestamps_with_a_zone_compare_instants(
    key: str, start: datetime, end: datetime, column_type: IcebergType
) -> None:
    expression = to_expression(window_of(DAILY_NY, key), schema_of(column_type))
    scale = 1000 if isinstance(column_type, TimestamptzNanoType) else 1

    assert selects(expression, column_type, micros(start) * scale)
    assert not selects(expression, column_type, micros(start) * scale - 1)
    assert selects(expression, column_type, micros(end) * scale - 1)
    assert not selects(expression, column_type, micros(end) * scale)
    assert not selects(expression, column_type, None)


@pytest.mark.parametrize("column_type", [TimestampType(), TimestampNanoType()])
@pytest.mark.parametrize(
    ("naive_timezone", "start", "end"),
    [
        ("UTC", utc(2024, 3, 10, 5), utc(2024, 3, 11, 4)),
        (NEW_YORK, utc(2024, 3, 10), utc(2024, 3, 11)),
        ("Asia/Kolkata", utc(2024, 3, 10, 10, 30), utc(2024, 3, 11, 9, 30)),
    ],
)
def test_timestamps_without_a_zone_compare_the_clock_of_the_naive_timezone(
    naive_timezone: str, start: datetime, end: datetime, column_type: IcebergType
) -> None:
    rows = window_of(DAILY_NY, "2024-03-10")
    expression = to_expression(rows, schema_of(column_type), naive_timezone=naive_timezone)
    data = pa.table(
        {"c": pa.array([m.replace(tzinfo=None) for m in (start - MICROSECOND, start, end)], pa.timestamp("us"))}
    )
    scale = 1000 if isinstance(column_type, TimestampNanoType) else 1

    assert [selects(expression, column_type, micros(m) * scale) for m in (start - MICROSECOND, start, end)] == [
        False,
        True,
        False,
    ]
    inside = match_rows(rows, data, schema_of(column_type), naive_timezone=naive_timezone).inside
    assert inside.to_pylist() == [False, True, False]


@pytest.mark.parametrize("key", ["2024-11-03-00:00", "2024-11-03-02:00", "2024-03-10-01:00", "2024-03-10-03:00"])
def test_hours_next_to_a_clock_change_work_on_the_local_clock(key: str) -> None:
    assert to_expression(window_of(HOURLY_NY, key), schema_of(TimestampType()), naive_timezone=NEW_YORK)


@pytest.mark.parametrize("key", ["2024-11-03-01:00", "2024-11-03-01:00-0500"])
def test_the_repeated_hour_is_refused_on_the_local_clock_and_works_in_utc(key: str) -> None:
    rows = window_of(HOURLY_NY, key)

    assert to_expression(rows, schema_of(TimestampType()))
    with pytest.raises(
        ValidationError, match=r"2024-11-03 01:00 occurs twice in America/New_York.*iceberg/naive_timezone"
    ):
        to_expression(rows, schema_of(TimestampType()), naive_timezone=NEW_YORK)


def test_a_day_with_a_repeated_hour_is_exact_on_the_local_clock() -> None:
    rows = window_of(DAILY_NY, "2024-11-03")
    expression = to_expression(rows, schema_of(TimestampType()), naive_timezone=NEW_YORK)

    assert selects(expression, TimestampType(), micros(utc(2024, 11, 3, 1, 30)))
    assert not selects(expression, TimestampType(), micros(utc(2024, 11, 4)))


@pytest.mark.parametrize(
    ("partitions_def", "key", "days"),
    [
        (DAILY, "2024-01-05", ["2024-01-05"]),
        (DAILY_NY, "2024-03-10", ["2024-03-10"]),
        (DAILY_NY, "2024-11-03", ["2024-11-03"]),
        (
            dg.DailyPartitionsDefinition("2024-01-01", timezone="Asia/Tokyo", hour_offset=7),
            "2024-01-05",
            ["2024-01-05"],
        ),
        (dg.DailyPartitionsDefinition("2018-01-01", timezone="America/Sao_Paulo"), "2018-11-04", ["2018-11-04"]),
        (dg.WeeklyPartitionsDefinition("2024-01-01"), "2024-01-07", [f"2024-01-{day:02}" for day in range(7, 14)]),
    ],
)
def test_a_date_is_the_local_date_of_the_partition(
    partitions_def: dg.PartitionsDefinition, key: str, days: list[str]
) -> None:
    rows = window_of(partitions_def, key)
    first = date.fromisoformat(days[0])
    around = [first + timedelta(days=offset) for offset in range(-2, 10)]

    expression = to_expression(rows, schema_of(DateType()))

    assert [str(day) for day in around if selects(expression, DateType(), (day - EPOCH.date()).days)] == days
    inside = mask(rows, around, pa.date32(), DateType())
    assert [str(day) for day, is_inside in zip(around, inside, strict=True) if is_inside] == days


@pytest.mark.parametrize("keys", [["2024-01-05-03:00"], [f"2024-01-05-{hour:02}:00" for hour in range(24)]])
def test_partitions_within_a_day_are_refused_on_a_date(keys: list[str]) -> None:
    with pytest.raises(ValidationError, match="'c' is a date, but several partitions start on the same day"):
        to_expression(window_of(HOURLY_NY, *keys), schema_of(DateType()))


@pytest.mark.parametrize(("column_type", "value"), [(StringType(), "2024"), (IntegerType(), 2024), (LongType(), 2024)])
def test_a_column_that_holds_the_key_of_a_time_window_is_compared_with_it(column_type: IcebergType, value: Any) -> None:
    yearly = dg.TimeWindowPartitionsDefinition(cron_schedule="0 0 1 1 *", start="2020", fmt="%Y")

    expression = to_expression(window_of(yearly, "2023", "2024"), schema_of(column_type))

    assert selects(expression, column_type, value)
    assert not selects(expression, column_type, type(value)(2025))


def test_a_window_without_keys_needs_a_time_column() -> None:
    rows = PartitionSlice(any_of=((TimeRange(column="c", start=utc(2024, 1, 1), end=utc(2024, 1, 2)),),))

    with pytest.raises(ValidationError, match="'c' of type string does not hold times"):
        to_expression(rows, schema_of(StringType()))


UUID_KEY = "8f14e45f-ceea-467f-a830-5b2d7a1f9c11"


@pytest.mark.parametrize(
    ("column_type", "key", "value", "other"),
    [
        (StringType(), 'o\'brien "é" \\ %', 'o\'brien "é" \\ %', "o''brien"),
        (StringType(), "", "", " "),
        (IntegerType(), "-7", -7, 7),
        (IntegerType(), "007", 7, 8),
        (LongType(), str(2**40), 2**40, 0),
        (BooleanType(), "True", True, False),
        (DecimalType(10, 2), "1.5", Decimal("1.50"), Decimal("1.51")),
        (DecimalType(38, 0), "1" * 38, Decimal("1" * 38), Decimal("1" * 37)),
        (UUIDType(), UUID_KEY, UUID(UUID_KEY).bytes, UUID(int=1).bytes),
        (DateType(), "2024-01-05", 19727, 19728),
        (TimestampType(), "2024-01-05T00:00:00.000001", 1704412800000001, 1704412800000000),
        (TimestamptzType(), "2024-01-05T02:00:00+02:00", 1704412800000000, 1704412800000001),
        (TimestampNanoType(), "2024-01-05T00:00:00", 1704412800000000000, 1704412800000000001),
        (TimestamptzNanoType(), "2024-01-05T00:00:00Z", 1704412800000000000, 1704412800000000001),
    ],
)
def test_keys_become_literals_of_the_columns_type(column_type: IcebergType, key: str, value: Any, other: Any) -> None:
    expression = to_expression(keys_of(key), schema_of(column_type))

    assert selects(expression, column_type, value)
    assert not selects(expression, column_type, other)
    assert not selects(expression, column_type, None)


@pytest.mark.parametrize(
    ("column_type", "key"),
    [
        (IntegerType(), "eu"),
        (IntegerType(), "1_000"),
        (IntegerType(), " 1"),
        (IntegerType(), str(2**31)),
        (LongType(), str(2**63)),
        (BooleanType(), "1"),
        (DecimalType(4, 1), "1.55"),
        (DecimalType(4, 1), "12345"),
        (DecimalType(4, 1), "NaN"),
        (DecimalType(4, 1), "x"),
        (UUIDType(), "8f14"),
        (DateType(), "2024-13-01"),
        (TimestampType(), "2024-01-05"),
        (TimestampType(), "2024-01-05T00:00:00Z"),
        (TimestamptzType(), "2024-01-05T00:00:00"),
    ],
)
def test_a_key_that_does_not_fit_the_column_is_refused(column_type: IcebergType, key: str) -> None:
    with pytest.raises(ValidationError, match=f"Partition key '{key}' is not a valid .*partition column 'c'"):
        to_expression(keys_of(key), schema_of(column_type))


@pytest.mark.parametrize("column_type", [DoubleType(), BinaryType(), ListType(5, StringType())])
def test_columns_that_cannot_hold_a_key_are_refused(column_type: IcebergType) -> None:
    with pytest.raises(ValidationError, match="cannot hold partition keys"):
        to_expression(keys_of("1"), schema_of(column_type))


def test_a_missing_column_is_named_with_those_that_are_there() -> None:
    with pytest.raises(ValidationError, match=r"'gone' is not in the table, which has c.*partition_expr"):
        to_expression(keys_of("x", column="gone"), schema_of(StringType()))
    with pytest.raises(ValidationError, match="'c' is not in the data, which has other"):
        match_rows(keys_of("x"), pa.table({"other": ["x"]}), schema_of(StringType()))


@pytest.mark.parametrize("name", ["a.b", "o'brien", "two words", "größe", 'say "hi"', "a.b.c"])
def test_any_column_name_is_just_a_name(name: str) -> None:
    schema, rows = schema_of(StringType(), name), keys_of("eu", column=name)

    bound = bind(schema, to_expression(rows, schema), case_sensitive=True)

    assert bound.term.ref().field.field_id == 1  # type: ignore[attr-defined]
    assert match_rows(rows, pa.table({name: ["eu", "us"]}), schema).inside.to_pylist() == [True, False]


def test_a_field_of_a_struct_is_reached_by_dots() -> None:
    schema = Schema(NestedField(1, "s.x", StructType(NestedField(2, "y.z", StringType()))))
    data = pa.table({"s.x": [{"y.z": "eu"}, {"y.z": "us"}, {"y.z": None}, None]})
    rows = keys_of("eu", column="s.x.y.z")

    found = match_rows(rows, data, schema)

    assert expression_evaluator(schema, to_expression(rows, schema), case_sensitive=True)(Record(Record("eu")))
    assert (found.inside.to_pylist(), found.null_rows) == ([True, False, False, False], 2)
