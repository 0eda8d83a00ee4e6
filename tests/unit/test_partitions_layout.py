"""How a new table's files are split: from the partitions definition, or as declared."""

import doctest
from typing import Any

import dagster as dg
import pytest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
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

from floe_dagster_iceberg import partitions as layout_module
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partitioning import PartitionTransform
from floe_dagster_iceberg.partitions import derive_layout, time_transform
from floe_dagster_iceberg.table.schema import partition_spec as partition_layout
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout

pytestmark = pytest.mark.requirement("S3-3c", "S2-FR-033")

DAILY = dg.DailyPartitionsDefinition("2024-01-01")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us"])


def schema_of(**columns: IcebergType) -> Schema:
    return Schema(*(NestedField(number, name, type_) for number, (name, type_) in enumerate(columns.items(), start=1)))


def fields_of(spec: PartitionSpec) -> list[tuple[str, str, int]]:
    return [(field.name, str(field.transform), field.source_id) for field in spec.fields]


@pytest.mark.parametrize(
    ("cron", "transform"),
    [
        ("*/15 * * * *", "hour"),
        ("0 * * * *", "hour"),
        ("@hourly", "hour"),
        ("30 */6 * * *", "hour"),
        ("0 0,12 * * *", "hour"),
        ("0 8-10 * * *", "hour"),
        ("5/20 0 * * *", "hour"),
        ("0 0 * * *", "day"),
        ("0 7 * * *", "day"),
        ("0 */24 * * *", "day"),
        ("@daily", "day"),
        ("0 0 * * 0", "day"),
        ("0 0 * * MON#1", "day"),
        ("0 0 1 * 1", "day"),
        ("@weekly", "day"),
        ("0 0 1,15 * *", "day"),
        ("0 0 15 * *", "day"),
        ("0 0 L * *", "day"),
        ("0 0 1 * *", "month"),
        ("@monthly", "month"),
        ("0 6 1 * *", "month"),
        ("0 0 1 */3 *", "month"),
        ("0 0 1 1,4,7,10 *", "month"),
        ("0 0 1 4 *", "month"),
        ("0 0 1 JAN *", "year"),
        ("0 0 1 1 *", "year"),
        ("@yearly", "year"),
    ],
)
def test_the_cron_decides_the_transform_of_time(cron: str, transform: str) -> None:
    definition = dg.TimeWindowPartitionsDefinition(cron_schedule=cron, start="2024-01-01", fmt="%Y-%m-%d")

    assert time_transform(definition) == transform


@pytest.mark.parametrize("start", ["2024-03-30", "2024-10-26", "2099-01-01"])
def test_days_on_which_clocks_change_and_days_to_come_are_days(start: str) -> None:
    assert time_transform(dg.DailyPartitionsDefinition(start, timezone="Europe/Berlin")) == "day"


@pytest.mark.parametrize(
    ("partitions_def", "expr", "expected"),
    [
        (dg.HourlyPartitionsDefinition("2024-01-01-00:00"), "ts", "[hour(ts)]"),
        (DAILY, "ts", "[day(ts)]"),
        (dg.WeeklyPartitionsDefinition("2024-01-01"), "ts", "[day(ts)]"),
        (dg.MonthlyPartitionsDefinition("2024-01-01"), "ts", "[month(ts)]"),
        (REGIONS, "region", "[region]"),
        (dg.DynamicPartitionsDefinition(name="customers"), "who", "[who]"),
        (
            dg.MultiPartitionsDefinition({"date": DAILY, "region": REGIONS}),
            {"date": "ts", "region": "region"},
            "[day(ts), region]",
        ),
        (None, None, "[]"),
    ],
)
def test_a_partitions_definition_has_a_layout(
    partitions_def: dg.PartitionsDefinition | None, expr: Any, expected: str
) -> None:
    assert str(derive_layout(partitions_def, partition_expr=expr)) == expected


def test_two_time_dimensions_on_one_column_make_one_field() -> None:
    both = dg.MultiPartitionsDefinition({"month": dg.MonthlyPartitionsDefinition("2024-01-01"), "day": DAILY})

    assert str(derive_layout(both, partition_expr={"month": "ts", "day": "ts"})) == "[day(ts)]"


@pytest.mark.parametrize(
    "column_type", [TimestampType(), TimestamptzType(), TimestampNanoType(), TimestamptzNanoType()]
)
@pytest.mark.parametrize("transform", ["year", "month", "day", "hour"])
def test_time_fields_are_named_as_iceberg_names_them(transform: str, column_type: IcebergType) -> None:
    spec = PartitionLayout.from_strings([f"{transform}(ts)"]).to_pyiceberg_spec(
        schema_of(id=LongType(), ts=column_type)
    )

    assert fields_of(spec) == [(f"ts_{transform}", transform, 2)]
    assert spec.fields[0].field_id == 1000


def test_declared_fields_of_all_kinds_become_a_spec() -> None:
    layout = PartitionLayout.from_strings(["region", "days(ts)", "bucket(16, id)", "truncate( 4 , name )"])

    spec = layout.to_pyiceberg_spec(
        schema_of(id=LongType(), ts=TimestamptzType(), region=StringType(), name=StringType())
    )

    assert fields_of(spec) == [
        ("region", "identity", 3),
        ("ts_day", "day", 2),
        ("id_bucket_16", "bucket[16]", 1),
        ("name_trunc_4", "truncate[4]", 4),
    ]


@pytest.mark.parametrize("text", ["region", "day(ts)", "bucket(16, id)", "truncate(4, name)", "my col", "month(a.b c)"])
def test_a_field_reads_what_it_writes(text: str) -> None:
    assert str(PartitionLayout.from_strings([text]).fields[0]) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("week(ts)", "'week' is unknown: use identity, year, month, day, hour, bucket, truncate"),
        ("bucket(id)", r'bucket needs a number: write "bucket\(16, id\)"'),
        ("day(3, ts)", r'day takes no number: write "day\(ts\)"'),
        ("bucket(0, id)", "greater than or equal to 1"),
        ("", "at least 1 character"),
    ],
)
def test_a_field_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PartitionLayout.from_strings([text])


def test_names_with_dots_spaces_and_quotes_are_just_names() -> None:
    schema = Schema(
        NestedField(1, "a.b", StringType()),
        NestedField(2, "o'brien é", StringType()),
        NestedField(3, "s", StructType(NestedField(4, "inner", StringType()))),
    )

    spec = PartitionLayout.from_strings(["a.b", "o'brien é", "s.inner"]).to_pyiceberg_spec(schema)

    assert fields_of(spec) == [("a.b", "identity", 1), ("o'brien é", "identity", 2), ("s.inner", "identity", 4)]


def test_a_field_never_takes_the_name_of_a_column() -> None:
    spec = PartitionLayout.from_strings(["day(ts)"]).to_pyiceberg_spec(schema_of(ts=TimestampType(), ts_day=DateType()))

    assert fields_of(spec) == [("ts_day_partition", "day", 1)]


@pytest.mark.parametrize("column_type", [StringType(), IntegerType()])
def test_a_column_that_holds_the_key_of_a_time_window_is_split_by_its_value(column_type: IcebergType) -> None:
    spec = derive_layout(DAILY, partition_expr="day").to_pyiceberg_spec(schema_of(day=column_type))

    assert fields_of(spec) == [("day", "identity", 1)]


@pytest.mark.parametrize(
    "transform", [transform.value for transform in (PartitionTransform.DAY, PartitionTransform.YEAR)]
)
def test_a_declared_time_field_on_a_text_is_refused(transform: str) -> None:
    with pytest.raises(ValidationError, match=f"'day' of type string cannot be partitioned by {transform}"):
        PartitionLayout.from_strings([f"{transform}(day)"]).to_pyiceberg_spec(schema_of(day=StringType()))


def test_hours_of_a_date_are_refused() -> None:
    hourly = dg.HourlyPartitionsDefinition("2024-01-01-00:00")

    with pytest.raises(ValidationError, match="'day' is a date, but several partitions start on the same day"):
        derive_layout(hourly, partition_expr="day").to_pyiceberg_spec(schema_of(day=DateType()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nowhere", "'nowhere' is not in the table, which has tags, score, id"),
        ("tags.element", "'tags.element' is not in the table"),
        ("tags", "'tags' of type list<string> cannot be partitioned by identity"),
        ("day(id)", "'id' of type uuid cannot be partitioned by day"),
    ],
)
def test_a_column_that_cannot_be_split_is_refused(text: str, message: str) -> None:
    schema = schema_of(tags=ListType(10, StringType()), score=DoubleType(), id=UUIDType())

    with pytest.raises(ValidationError, match=message):
        PartitionLayout.from_strings([text]).to_pyiceberg_spec(schema)


@pytest.mark.parametrize("module", [layout_module, partition_layout])
def test_examples_run(module: Any) -> None:
    assert doctest.testmod(module).failed == 0
