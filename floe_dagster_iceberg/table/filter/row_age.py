"""Rows that are older than an age: the column that it is counted from, and the filter."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from zoneinfo import ZoneInfo

from pyiceberg import expressions as expr
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform, TimeTransform
from pyiceberg.types import DateType, NestedField, PrimitiveType

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import TimeRange
from floe_dagster_iceberg.table.filter import partition_slice as times


@dataclass(frozen=True)
class AgeLimit:
    """Rows of days that were over at some time; NULL has no age.

    Attributes:
        column: Name of the date or timestamp column.
        field: The column.
        cutoff: Midnight in the time zone: the first instant that is not old enough.
        upper: The same as a value of the column, in nanoseconds since the epoch.
    """

    column: str
    field: NestedField
    cutoff: datetime
    upper: int

    @property
    def expression(self) -> expr.BooleanExpression:
        return expr.LessThan(
            term=expr.Reference(self.column), value=times.to_literal(self.upper, self.field.field_type)
        )

    def days_overdue(self, files: Sequence[DataFile]) -> float:
        """Days by which the oldest row of some files is older than the limit, by the files' statistics."""
        bounds = (file.lower_bounds.get(self.field.field_id) for file in files if file.lower_bounds)
        oldest = min((self._nanoseconds(bound) for bound in bounds if bound is not None), default=self.upper)
        return max(0.0, (self.upper - oldest) / times.NANOSECONDS_PER_DAY)

    def _nanoseconds(self, bound: bytes) -> int:
        kind = cast("PrimitiveType", self.field.field_type)
        value = int(from_bytes(kind, bound))
        if isinstance(kind, DateType):
            return value * times.NANOSECONDS_PER_DAY
        return value if isinstance(kind, times.NANOSECOND_TYPES) else value * times.NANOSECONDS_PER_MICROSECOND


def find_age_limit(
    metadata: TableMetadata, column: str | None, *, max_age: timedelta, now: datetime, timezone: str, table: str
) -> AgeLimit:
    """The limit of an age, counted from a column or from the one that the table is partitioned by.

    The age is rounded up to whole days in the time zone, so that files of a day go unread.

    Raises:
        ValidationError: The column does not exist or holds no dates or timestamps, or none is named and the table is
            not partitioned by exactly one such column.
    """
    field, name = _find_column(metadata, column, table)
    zone = ZoneInfo(timezone)
    day = (now - max_age).astimezone(zone).date()
    cutoff = datetime(day.year, day.month, day.day, tzinfo=zone)
    before = TimeRange(column=name, start=cutoff - timedelta(days=2), end=cutoff, timezone=timezone)
    bounds = times.to_typed(before, field.field_type, naive_timezone=timezone)
    return AgeLimit(name, field, cutoff, cast("times.Bounds", bounds).upper)


def _find_column(metadata: TableMetadata, column: str | None, table: str) -> tuple[NestedField, str]:
    schema = metadata.schema()
    known = ", ".join(
        schema.find_column_name(field.field_id) or field.name
        for field in schema.fields
        if isinstance(field.field_type, times.TIME_TYPES)
    )
    hint = f"Set retention.column to a date or timestamp column: {known or 'the table has none'}."
    if column is None:
        columns = list(dict.fromkeys(_partition_columns(metadata)))
        if len(columns) != 1:
            found = "by no date or timestamp column" if not columns else f"by {' and '.join(map(repr, columns))}"
            raise ValidationError(
                f"Table '{table}' is partitioned {found}, so it is not known what the age of a row is. {hint}",
                table=table,
            )
        column = columns[0]
    try:
        field = schema.find_field(column)
        schema.accessor_for_field(field.field_id)
    except ValueError:
        missing = f"Table '{table}' has no column '{column}' to count the age of rows from."
        raise ValidationError(f"{missing} {hint}", table=table) from None
    if not isinstance(field.field_type, times.TIME_TYPES):
        raise ValidationError(
            f"Column '{column}' of table '{table}' is {field.field_type}, which has no age. {hint}", table=table
        )
    return field, column


def _partition_columns(metadata: TableMetadata) -> list[str]:
    """The date and timestamp columns of the current partitioning, which follows the asset's `partition_expr`."""
    schema, names = metadata.schema(), []
    for field in metadata.spec().fields:
        name = schema.find_column_name(field.source_id)
        if name is None or not isinstance(field.transform, IdentityTransform | TimeTransform):
            continue
        if isinstance(schema.find_type(field.source_id), times.TIME_TYPES):
            names.append(name)
    return names
