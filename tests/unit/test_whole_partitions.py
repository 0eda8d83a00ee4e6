"""Filters that select whole partitions, told from the table's partition specs alone."""

from typing import Any

import pytest
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, In, LessThan
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
)
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestamptzType

from floe_dagster_iceberg.table.filter.row_filter import selects_whole_partitions

SCHEMA = Schema(
    NestedField(1, "ts", TimestamptzType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "region", StringType()),
    NestedField(4, "id", LongType()),
)


def table_by(column: str, transform: Transform[Any, Any]) -> TableMetadata:
    source = SCHEMA.find_field(column).field_id
    name = column if isinstance(transform, IdentityTransform) else f"{column}_part"
    spec = PartitionSpec(PartitionField(source, 1000, transform, name))
    return new_table_metadata(SCHEMA, spec, UNSORTED_SORT_ORDER, "file:///t", {})


def between(column: str, low: str, high: str) -> BooleanExpression:
    return And(GreaterThanOrEqual(column, low), LessThan(column, high))


UTC_DAY = between("ts", "2024-01-01T00:00:00+00:00", "2024-01-02T00:00:00+00:00")
LOCAL_DAY = between("ts", "2024-01-01T05:00:00+00:00", "2024-01-02T05:00:00+00:00")
JANUARY = between("day", "2024-01-01", "2024-02-01")
FIRST_OF_JANUARY = between("day", "2024-01-01", "2024-01-02")


@pytest.mark.parametrize(
    ("column", "transform", "row_filter", "expected"),
    [
        ("ts", DayTransform(), UTC_DAY, True),
        ("ts", DayTransform(), LOCAL_DAY, False),
        ("ts", HourTransform(), LOCAL_DAY, True),
        ("day", DayTransform(), FIRST_OF_JANUARY, True),
        ("day", MonthTransform(), JANUARY, True),
        ("day", MonthTransform(), FIRST_OF_JANUARY, False),
        ("region", IdentityTransform(), EqualTo("region", "EU"), True),
        ("region", IdentityTransform(), In("region", {"EU", "US"}), True),
        ("region", IdentityTransform(), And(EqualTo("region", "EU"), FIRST_OF_JANUARY), False),
        ("region", TruncateTransform(2), EqualTo("region", "Europe"), False),
        ("id", BucketTransform(4), EqualTo("id", 1), False),
        ("day", DayTransform(), EqualTo("id", 1), False),
    ],
)
def test_a_filter_that_is_about_partition_values_alone_selects_whole_partitions(
    column: str,
    transform: Transform[Any, Any],
    row_filter: BooleanExpression,
    expected: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert selects_whole_partitions(table_by(column, transform), row_filter) is expected


def test_files_of_an_earlier_spec_count_too() -> None:
    by_day = table_by("day", DayTransform())
    unpartitioned = PartitionSpec(spec_id=7)
    evolved = by_day.model_copy(update={"partition_specs": [*by_day.partition_specs, unpartitioned]})

    assert not selects_whole_partitions(evolved, FIRST_OF_JANUARY)
