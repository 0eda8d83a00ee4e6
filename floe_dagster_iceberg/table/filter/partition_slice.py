"""The rows of a partition slice, as a filter on a table and as a mask on Arrow rows.

A dot in a column name may be part of the name or lead into a struct: the whole name is tried first. Times become
nanoseconds since the epoch, whatever the column's unit, so that one exact integer works for Iceberg's literals and for
all Arrow types.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from itertools import chain
from operator import attrgetter
from typing import Any, Final, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as expr, types as iceberg
from pyiceberg.expressions import literals
from pyiceberg.expressions.visitors import IN_PREDICATE_LIMIT
from pyiceberg.schema import Schema

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import Constraint, PartitionSlice, TimeRange

COLUMN_HINT = (
    'Name an existing column in metadata "partition_expr" or "iceberg/partition_spec", such as '
    '{"partition_expr": "event_time"}, or in the IO manager\'s partition_column.'
)
Value: TypeAlias = str | int | bool | Decimal | bytes
NANOSECOND_TYPES: Final = (iceberg.TimestampNanoType, iceberg.TimestamptzNanoType)
INSTANT_TYPES: Final = (iceberg.TimestamptzType, iceberg.TimestamptzNanoType)
WALL_CLOCK_TYPES: Final = (iceberg.TimestampType, iceberg.TimestampNanoType)
TIME_TYPES: Final = (iceberg.DateType, *WALL_CLOCK_TYPES, *INSTANT_TYPES)
NANOSECONDS_PER_MICROSECOND: Final = 1_000
NANOSECONDS_PER_DAY: Final = 86_400_000_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")

# Iceberg's decimals have up to 38 digits, Python's default context rounds at 28.
_DECIMALS: Final = Context(prec=38)
_BOOLEANS: Final = {"true": True, "false": False}


def find_column(schema: Schema, name: str) -> iceberg.NestedField:
    """Find a column by name; dots lead to fields of structs.

    Raises:
        ValidationError: There is no such column, or it is inside a list or map.
    """
    try:
        field = schema.find_field(name)
        schema.accessor_for_field(field.field_id)
    except ValueError as error:
        known = ", ".join(field.name for field in schema.fields)
        raise ValidationError(
            f"Partition column '{name}' is not in the table, which has {known}. {COLUMN_HINT}"
        ) from error
    return field


@dataclass(frozen=True)
class Bounds:
    """Half-open bounds of a time column, in nanoseconds since the epoch."""

    lower: int
    upper: int


@dataclass(frozen=True)
class Values:
    """The values a column may hold; times in nanoseconds since the epoch, UUIDs as bytes."""

    values: tuple[Value, ...]


class NanosecondLiteral(literals.LongLiteral):
    """A time in nanoseconds, for which PyIceberg has no literal of its own."""

    def to(self, type_var: iceberg.IcebergType) -> literals.Literal[Any]:
        return self if isinstance(type_var, NANOSECOND_TYPES) else super().to(type_var)


def to_typed(constraint: Constraint, column_type: iceberg.IcebergType, *, naive_timezone: str) -> Bounds | Values:
    """Convert a constraint to bounds or values of a column of that type.

    Raises:
        ValidationError: A column of that type cannot distinguish the partitions.
    """
    if isinstance(constraint, TimeRange):
        match column_type:
            case iceberg.TimestamptzType() | iceberg.TimestamptzNanoType():
                return Bounds(_nanoseconds(constraint.start), _nanoseconds(constraint.end))
            case iceberg.TimestampType() | iceberg.TimestampNanoType():
                zone = ZoneInfo(naive_timezone)
                edges = (constraint.start, constraint.end)
                return Bounds(*(_wall_clock(constraint.column, edge, zone) for edge in edges))
            case iceberg.DateType():
                if constraint.sub_daily:
                    raise too_short_for_dates(constraint.column)
                zone = ZoneInfo(constraint.timezone)
                days = (constraint.start.astimezone(zone).date(), constraint.end.astimezone(zone).date())
                return Bounds(*map(_midnight, days))
        if not constraint.keys:
            raise ValidationError(
                f"Partition column '{constraint.column}' of type {column_type} does not hold times. "
                "Use a date or timestamp column for time-window partitions."
            )
    values = (_parse(key, column_type, constraint.column) for key in constraint.keys)
    return Values(tuple(dict.fromkeys(values)))


def to_literal(value: Value, column_type: iceberg.IcebergType) -> literals.Literal[Any]:
    """Return the PyIceberg literal of a value or bound of a column of that type."""
    match column_type, value:
        case iceberg.DateType(), int():
            return literals.DateLiteral(value // NANOSECONDS_PER_DAY)
        case iceberg.TimestampType() | iceberg.TimestamptzType(), int():
            return literals.TimestampLiteral(value // NANOSECONDS_PER_MICROSECOND)
        case iceberg.TimestampNanoType() | iceberg.TimestamptzNanoType(), int():
            return NanosecondLiteral(value)
        case iceberg.UUIDType(), bytes():
            return literals.UUIDLiteral(value)
        case iceberg.DecimalType(), Decimal():
            return literals.DecimalLiteral(value)
        case _:
            return literals.literal(value)


def _nanoseconds(timestamp: datetime) -> int:
    return (timestamp - _EPOCH) // _MICROSECOND * NANOSECONDS_PER_MICROSECOND


def _wall_clock(column: str, instant: datetime, zone: ZoneInfo) -> int:
    wall = instant.astimezone(zone)
    # When clocks go back, wall-clock times occur twice. The first of them still separates before from
    # after; any later one would put rows of both passes on the same side.
    if _is_ambiguous(wall) and (wall.fold or _is_ambiguous(wall - _MICROSECOND)):
        raise ValidationError(
            f"Partition column '{column}' has no time zone, and {wall:%Y-%m-%d %H:%M} occurs twice in {zone.key}: "
            "its partitions cannot be distinguished. Use timestamps with a time zone, or metadata "
            '{"iceberg/naive_timezone": "UTC"} with times in UTC.'
        )
    return _nanoseconds(wall.replace(tzinfo=UTC))


def _is_ambiguous(wall: datetime) -> bool:
    first, second = wall.replace(fold=0).utcoffset(), wall.replace(fold=1).utcoffset()
    return first is not None and second is not None and first > second


def too_short_for_dates(column: str) -> ValidationError:
    """The error for partitions of less than a day on a date column."""
    return ValidationError(
        f"Partition column '{column}' is a date, but several partitions start on the same day and would "
        "contain the same rows. Use a timestamp column, or daily partitions."
    )


def _midnight(day: date) -> int:
    return (day - _EPOCH.date()).days * NANOSECONDS_PER_DAY


def _parse(key: str, column_type: iceberg.IcebergType, column: str) -> Value:
    parse = _PARSERS.get(type(column_type))
    if parse is None:
        raise ValidationError(
            f"Partition column '{column}' of type {column_type} cannot hold partition keys. Use a string, int, long, "
            "boolean, decimal, date, timestamp or uuid column."
        )
    try:
        return parse(key, column_type)
    except (KeyError, ValueError, InvalidOperation) as error:
        raise ValidationError(
            f"Partition key '{key}' is not a valid {column_type}, the type of partition column '{column}'. "
            "Change the keys, or name another column in metadata 'partition_expr'."
        ) from error


def _whole_number(key: str, column_type: iceberg.IntegerType | iceberg.LongType) -> int:
    number = int(key) if _WHOLE_NUMBER.fullmatch(key) else None
    if number is None or not column_type.min <= number <= column_type.max:
        raise ValueError(f"not a whole number that fits {column_type}")
    return number


def _decimal(key: str, column_type: iceberg.DecimalType) -> Decimal:
    number = Decimal(key)
    scaled = number.quantize(Decimal(1).scaleb(-column_type.scale), context=_DECIMALS)
    if scaled != number or len(scaled.as_tuple().digits) > column_type.precision:
        raise ValueError(f"does not fit {column_type}")
    return scaled


def _timestamp(key: str, column_type: iceberg.IcebergType) -> int:
    timestamp, has_zone = datetime.fromisoformat(key), isinstance(column_type, INSTANT_TYPES)
    # A bare date would silently mean midnight, which is hardly ever what a partition contains.
    if len(key) <= len("2024-01-01") or (timestamp.tzinfo is not None) is not has_zone:
        raise ValueError("not a full timestamp" + (" with offset" if has_zone else " without offset"))
    return _nanoseconds(timestamp if has_zone else timestamp.replace(tzinfo=UTC))


_PARSERS: Final[dict[type[iceberg.IcebergType], Callable[[str, Any], Value]]] = {
    iceberg.StringType: lambda key, _: key,
    iceberg.IntegerType: _whole_number,
    iceberg.LongType: _whole_number,
    iceberg.BooleanType: lambda key, _: _BOOLEANS[key.lower()],
    iceberg.DecimalType: _decimal,
    iceberg.UUIDType: lambda key, _: UUID(key).bytes,
    iceberg.DateType: lambda key, _: _midnight(date.fromisoformat(key)),
    iceberg.TimestampType: _timestamp,
    iceberg.TimestampNanoType: _timestamp,
    iceberg.TimestamptzType: _timestamp,
    iceberg.TimestamptzNanoType: _timestamp,
}


def column_values(rows: pa.Table | pa.RecordBatch, name: str) -> pa.ChunkedArray:
    """Return a column of Arrow rows by name, with NULL where a struct around it is NULL.

    Raises:
        ValidationError: The rows have no such column.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    values = _descend(columns, name)
    if values is None:
        raise ValidationError(
            f"Partition column '{name}' is not in the data, which has {', '.join(columns)}. {COLUMN_HINT}"
        )
    return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])


def _descend(columns: dict[str, pa.ChunkedArray | pa.Array], name: str) -> pa.ChunkedArray | pa.Array | None:
    if name in columns:
        return columns[name]
    for parent, values in columns.items():
        if name.startswith(f"{parent}.") and pa.types.is_struct(values.type):
            children = {child.name: pc.struct_field(values, [child.name]) for child in values.type}
            found = _descend(children, name.removeprefix(f"{parent}."))
            if found is not None:
                return found
    return None


DEFAULT_NAIVE_TIMEZONE: Final = "UTC"
_NANOSECONDS_PER_TICK: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_INT64: Final = range(-(2**63), 2**63)
_MAX_DECIMAL_PRECISION: Final = 38


@dataclass(frozen=True)
class SliceMembership:
    """Which rows belong to a slice.

    Attributes:
        inside: True for each row of the slice, else False; a mask for `rows.filter`.
        rows_outside: Rows that do not belong to the slice, including `null_rows`.
        null_rows: Rows outside because a partition column is NULL.
    """

    inside: pa.ChunkedArray
    rows_outside: int
    null_rows: int


def to_expression(
    rows: PartitionSlice, schema: Schema, *, naive_timezone: str = DEFAULT_NAIVE_TIMEZONE
) -> expr.BooleanExpression:
    """Return the filter that selects exactly the slice's rows from a table with this schema.

    Args:
        rows: The slice.
        schema: Schema of the table; its types determine the literals.
        naive_timezone: Time zone of timestamps without one.

    Raises:
        ValidationError: A column is missing, or its type cannot distinguish the partitions.
    """
    any_of: list[expr.BooleanExpression] = []
    for conjunction in rows.any_of:
        met: expr.BooleanExpression = expr.AlwaysTrue()
        for constraint in conjunction:
            met = expr.And(met, _to_predicate(constraint, schema, naive_timezone))
        any_of.append(met)
    return _any_of(any_of)


def match_rows(
    rows: PartitionSlice,
    data: pa.Table | pa.RecordBatch,
    schema: Schema,
    *,
    naive_timezone: str = DEFAULT_NAIVE_TIMEZONE,
) -> SliceMembership:
    """Find the Arrow rows that belong to the slice once they are in a table with this schema.

    Raises:
        ValidationError: A column is missing in table or data, or its type cannot distinguish the partitions.
    """
    nowhere = pa.chunked_array([pa.repeat(value=False, size=data.num_rows)], type=pa.bool_())
    columns, has_null, inside = dict[str, _ArrowColumn](), nowhere, nowhere
    for name in dict.fromkeys(map(attrgetter("column"), chain.from_iterable(rows.any_of))):
        column = columns[name] = _ArrowColumn.load(data, find_column(schema, name), name)
        has_null = pc.or_(has_null, column.values.is_null())
    for conjunction in rows.any_of:
        met = pc.invert(nowhere)
        for constraint in conjunction:
            column = columns[constraint.column]
            met = pc.and_(
                met,
                column.mask(to_typed(constraint, column.iceberg_type, naive_timezone=naive_timezone)),
            )
        inside = pc.or_(inside, met)
    outside = pc.invert(inside)
    return SliceMembership(
        inside=inside,
        rows_outside=int(pc.sum(outside, min_count=0).as_py()),
        null_rows=int(pc.sum(pc.and_(has_null, outside), min_count=0).as_py()),
    )


def _to_predicate(constraint: Constraint, schema: Schema, naive_timezone: str) -> expr.BooleanExpression:
    field = find_column(schema, constraint.column)
    reference, column_type = expr.Reference(constraint.column), field.field_type
    match to_typed(constraint, column_type, naive_timezone=naive_timezone):
        case Bounds(lower, upper):
            return expr.And(
                expr.GreaterThanOrEqual(term=reference, value=to_literal(lower, column_type)),
                expr.LessThan(term=reference, value=to_literal(upper, column_type)),
            )
        case Values(values):
            wanted = [to_literal(value, column_type) for value in values]
            # PyIceberg does not prune files by larger sets, but it does by several smaller ones.
            starts = range(0, len(wanted), IN_PREDICATE_LIMIT)
            chunks = (set(wanted[start : start + IN_PREDICATE_LIMIT]) for start in starts)
            return _any_of([expr.In(term=reference, literals=chunk) for chunk in chunks])


def _any_of(expressions: list[expr.BooleanExpression]) -> expr.BooleanExpression:
    return expr.Or(*expressions) if len(expressions) > 1 else next(iter(expressions), expr.AlwaysFalse())


@dataclass(frozen=True)
class _ArrowColumn:
    """A column of Arrow rows in a comparable form: times as whole ticks, keys in one type per Iceberg type."""

    values: pa.ChunkedArray
    iceberg_type: iceberg.IcebergType
    tick: int = 1

    @classmethod
    def load(cls, data: pa.Table | pa.RecordBatch, field: iceberg.NestedField, name: str) -> "_ArrowColumn":
        values = column_values(data, name)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        comparable = _comparable_type(values.type, field.field_type)
        if comparable is None:
            raise ValidationError(
                f"Partition column '{name}' is {values.type} in the data and {field.field_type} in the table. "
                "Cast it in the asset."
            )
        tick = _tick(values.type) if isinstance(field.field_type, TIME_TYPES) else 1
        return cls(_cast(values, comparable, name), field.field_type, tick)

    def mask(self, wanted: Bounds | Values) -> pa.ChunkedArray:
        match wanted:
            case Bounds(lower, upper):
                above = pc.greater_equal(self.values, self._first_tick(lower))
                found = pc.and_(above, pc.less(self.values, self._first_tick(upper)))
            case Values(values):
                found = pc.is_in(self.values, value_set=pa.array(self._ticks(values), type=self.values.type))
        return pc.fill_null(found, fill_value=False)

    def _first_tick(self, nanoseconds: int) -> pa.Scalar:
        # Rounded up: the first value of a coarser unit at or after the bound.
        tick = -(-nanoseconds // self.tick)
        return pa.scalar(min(max(tick, _INT64.start), _INT64.stop - 1), pa.int64())

    def _ticks(self, values: tuple[Value, ...]) -> list[Any]:
        if not isinstance(self.iceberg_type, TIME_TYPES):
            return list(values)
        # Values between two ticks cannot be in the data.
        return [value // self.tick for value in values if isinstance(value, int) and value % self.tick == 0]


def _tick(arrow_type: pa.DataType) -> int:
    if pa.types.is_timestamp(arrow_type):
        return _NANOSECONDS_PER_TICK[arrow_type.unit]
    return NANOSECONDS_PER_DAY if pa.types.is_date32(arrow_type) else _NANOSECONDS_PER_TICK["ms"]


def _comparable_type(arrow_type: pa.DataType, iceberg_type: iceberg.IcebergType) -> pa.DataType | None:
    """The Arrow type to compare in; None if the data does not match the table's type."""
    if isinstance(iceberg_type, iceberg.DecimalType):
        fits, comparable = pa.types.is_decimal, pa.decimal128(_MAX_DECIMAL_PRECISION, iceberg_type.scale)
    else:
        fits, comparable = _COMPARABLE.get(type(iceberg_type), (lambda _: False, None))
    return comparable if fits(arrow_type) else None


def _is_instant(arrow_type: pa.DataType) -> bool:
    return pa.types.is_timestamp(arrow_type) and arrow_type.tz is not None


def _is_wall_clock(arrow_type: pa.DataType) -> bool:
    return pa.types.is_timestamp(arrow_type) and arrow_type.tz is None


_COMPARABLE: Final[dict[type[iceberg.IcebergType], tuple[Callable[[pa.DataType], bool], pa.DataType]]] = {
    iceberg.StringType: (lambda arrow: arrow in (pa.string(), pa.large_string(), pa.string_view()), pa.large_string()),
    iceberg.IntegerType: (pa.types.is_integer, pa.int64()),
    iceberg.LongType: (pa.types.is_integer, pa.int64()),
    iceberg.BooleanType: (pa.types.is_boolean, pa.bool_()),
    iceberg.UUIDType: (lambda arrow: arrow in (pa.uuid(), pa.binary(16)), pa.binary(16)),
    iceberg.DateType: (pa.types.is_date, pa.int64()),
    iceberg.TimestampType: (_is_wall_clock, pa.int64()),
    iceberg.TimestampNanoType: (_is_wall_clock, pa.int64()),
    iceberg.TimestamptzType: (_is_instant, pa.int64()),
    iceberg.TimestamptzNanoType: (_is_instant, pa.int64()),
}


def _cast(values: pa.ChunkedArray, target: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        if pa.types.is_date32(values.type):
            # Arrow casts 32-bit dates to 32-bit integers only.
            return values.cast(pa.int32()).cast(target)
        return values.cast(target)
    except pa.ArrowInvalid as error:
        raise ValidationError(
            f"Partition column '{name}' holds values of {values.type} that do not fit the table's type. "
            "Cast it in the asset."
        ) from error
