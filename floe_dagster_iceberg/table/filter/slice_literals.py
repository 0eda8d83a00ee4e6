"""Converts the constraints of a partition slice to values of a column's Iceberg type.

Times become nanoseconds since the epoch, whatever the column's unit, so that one exact integer
works for Iceberg's literals and for all Arrow types.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

from pyiceberg import types as iceberg
from pyiceberg.expressions import literals
from pyiceberg.schema import Schema

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import Constraint, TimeRange

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
                return _local_dates(constraint)
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


def _local_dates(window: TimeRange) -> Bounds:
    if window.sub_daily:
        raise ValidationError(
            f"Partition column '{window.column}' is a date, but several partitions start on the same day and would "
            "contain the same rows. Use a timestamp column, or daily partitions."
        )
    zone = ZoneInfo(window.timezone)
    return Bounds(*(_midnight(edge.astimezone(zone).date()) for edge in (window.start, window.end)))


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
