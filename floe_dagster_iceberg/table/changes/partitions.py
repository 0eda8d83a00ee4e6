"""The Iceberg partitions in which something changed, from manifests, and a filter for all of their rows."""

import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

from pyiceberg import expressions as expr
from pyiceberg.expressions.literals import LongLiteral, literal
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import DateType, IcebergType, IntegerType, LongType, TimestampType, TimestamptzType

from floe_dagster_iceberg.table.changes.plan import ChangesPlan

_EPOCH: Final = date(1970, 1, 1)
_MICROSECONDS_PER_HOUR: Final = 3_600_000_000
_MICROSECONDS_PER_DAY: Final = 24 * _MICROSECONDS_PER_HOUR


def changed_partitions(plan: ChangesPlan) -> list[Mapping[str, str]]:
    """The partitions with changes, each as the names and values of its fields; of an unpartitioned table one, {}."""
    metadata = plan.table.metadata
    now = {(field.source_id, str(field.transform)): field.name for field in metadata.spec().fields}
    found = {
        # Files of an older spec have its names.
        tuple(
            (now.get((field.source_id, str(field.transform)), field.name), _shown(metadata, field, value))
            for field, value in fields
        )
        for fields in _changed(metadata, changed_files(plan))
    }
    return [dict(fields) for fields in sorted(found)]


def changed_rows(plan: ChangesPlan) -> expr.BooleanExpression:
    """A filter for all rows of the partitions with changes.

    Partition fields that no filter can express, such as buckets, do not narrow it down.
    """
    return expr.AlwaysTrue() if plan.reads_everything else partitions_filter(plan.table.metadata, changed_files(plan))


def changed_files(plan: ChangesPlan) -> list[DataFile]:
    """Files that were added or removed, of any content."""
    return [file for step in plan.steps for file, _ in step.files]


def partitions_filter(metadata: TableMetadata, files: Sequence[DataFile]) -> expr.BooleanExpression:
    """A filter for all rows of the partitions of files."""
    schema = metadata.schema()
    filters = {
        str(where): where
        for fields in _changed(metadata, files)
        for where in [_all([_of_field(schema, field, value) for field, value in fields])]
    }
    return _any(list(filters.values()))


def _changed(metadata: TableMetadata, files: Sequence[DataFile]) -> list[list[tuple[PartitionField, Any]]]:
    specs = metadata.specs()
    found = {(file.spec_id, str(file.partition)): file for file in files}
    return [
        [(field, file.partition[at]) for at, field in enumerate(specs[file.spec_id].fields)] for file in found.values()
    ]


def _shown(metadata: TableMetadata, field: PartitionField, value: Any) -> str:
    schema = metadata.schema()
    if value is None or field.source_id not in schema.field_ids:
        return str(value).lower() if value is None else str(value)
    transform: Transform[Any, Any] = field.transform
    return transform.to_human_string(transform.result_type(schema.find_type(field.source_id)), value)


def _of_field(schema: Schema, field: PartitionField, value: Any) -> expr.BooleanExpression:
    """A filter that all rows with a partition value pass."""
    if field.source_id not in schema.field_ids:
        return expr.AlwaysTrue()
    column, kind = str(schema.find_column_name(field.source_id)), schema.find_type(field.source_id)
    transform, where = field.transform, expr.Reference(column)
    match transform, value:
        case IdentityTransform(), _:
            return _equals(where, value)
        case TruncateTransform(), str():
            return expr.StartsWith(term=where, value=literal(value))
    bounds = _bounds(transform, kind, value or 0)
    if bounds is None:
        # Such as a bucket; and a void field is NULL for every row.
        return expr.AlwaysTrue()
    if value is None:
        return expr.IsNull(term=where)
    first, end = map(LongLiteral, bounds)
    return expr.And(expr.GreaterThanOrEqual(term=where, value=first), expr.LessThan(term=where, value=end))


def _equals(column: expr.Reference, value: Any) -> expr.BooleanExpression:
    if value is None:
        return expr.IsNull(term=column)
    is_nan = isinstance(value, float) and math.isnan(value)
    return expr.IsNaN(term=column) if is_nan else expr.EqualTo(term=column, value=literal(value))


def _bounds(transform: Transform[Any, Any], kind: IcebergType, value: Any) -> tuple[int, int] | None:
    """The first value of a partition and the first one after it, as Iceberg stores them; None if not known."""
    match transform, kind:
        case TruncateTransform(), IntegerType() | LongType():
            return value, value + transform.width
        case YearTransform(), _:
            days = _days(1970 + value, 0), _days(1971 + value, 0)
        case MonthTransform(), _:
            days = _days(1970, value), _days(1970, value + 1)
        case DayTransform(), _:
            number = value if isinstance(value, int) else (value - _EPOCH).days
            days = number, number + 1
        case HourTransform(), TimestampType() | TimestamptzType():
            return value * _MICROSECONDS_PER_HOUR, (value + 1) * _MICROSECONDS_PER_HOUR
        case _:
            return None
    match kind:
        case DateType():
            return days
        case TimestampType() | TimestamptzType():
            return days[0] * _MICROSECONDS_PER_DAY, days[1] * _MICROSECONDS_PER_DAY
        case _:
            return None


def _days(year: int, months: int) -> int:
    """Days from 1970 to the first day of the month that is this many months after January."""
    first = datetime(year + months // 12, months % 12 + 1, 1)  # noqa: DTZ001 - a date
    return (first.date() - _EPOCH).days


def _all(filters: Sequence[expr.BooleanExpression]) -> expr.BooleanExpression:
    where: expr.BooleanExpression = expr.AlwaysTrue()
    for each in filters:
        where = expr.And(where, each)
    return where


def _any(filters: Sequence[expr.BooleanExpression]) -> expr.BooleanExpression:
    # A balanced tree: PyIceberg walks it recursively.
    if len(filters) < 2:  # noqa: PLR2004 - nothing to split
        return filters[0] if filters else expr.AlwaysFalse()
    middle = len(filters) // 2
    return expr.Or(_any(filters[:middle]), _any(filters[middle:]))
