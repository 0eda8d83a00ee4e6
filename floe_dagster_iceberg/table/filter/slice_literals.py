"""What a slice's constraint means for a column of one Iceberg type.

Times become nanoseconds since the epoch whatever the column's unit, so that one exact
integer serves Iceberg's literals and every Arrow type a frame may bring.
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
from pyiceberg.expressions.literals import (
    DateLiteral,
    DecimalLiteral,
    Literal,
    LongLiteral,
    TimestampLiteral,
    UUIDLiteral,
    literal,
)

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import Constraint, TimeRange

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


@dataclass(frozen=True)
class Bounds:
    """Half-open bounds of a time column, in nanoseconds since the epoch."""

    lower: int
    upper: int


@dataclass(frozen=True)
class Values:
    """The values a column may hold; times in nanoseconds since the epoch, UUIDs as bytes."""

    values: tuple[Value, ...]


class NanosecondLiteral(LongLiteral):
    """A time in nanoseconds, which PyIceberg can compare but has no literal for."""

    def to(self, type_var: iceberg.IcebergType) -> Literal[Any]:
        return self if isinstance(type_var, NANOSECOND_TYPES) else super().to(type_var)


def to_typed(constraint: Constraint, column_type: iceberg.IcebergType, *, naive_timezone: str) -> Bounds | Values:
    """Return what the constraint asks of a column of that type.

    Raises:
        ValidationError: A column of that type cannot tell the partitions apart.
    """
    if isinstance(constraint, TimeRange):
        match column_type:
            case iceberg.TimestamptzType() | iceberg.TimestamptzNanoType():
                return Bounds(_nanoseconds(constraint.start), _nanoseconds(constraint.end))
            case iceberg.TimestampType() | iceberg.TimestampNanoType():
                zone = ZoneInfo(naive_timezone)
                return Bounds(*(_wall_clock(constraint.column, edge, zone) for edge in _edges(constraint)))
            case iceberg.DateType():
                return _local_dates(constraint)
        if not constraint.keys:
            raise ValidationError(
                f"Partition column '{constraint.column}' of type {column_type} holds no time. "
                "Use a date or timestamp column for time-window partitions."
            )
    values = (_parse(key, column_type, constraint.column) for key in constraint.keys)
    return Values(tuple(dict.fromkeys(values)))


def to_literal(value: Value, column_type: iceberg.IcebergType) -> Literal[Any]:
    """Return the PyIceberg literal of a value or bound of a column of that type."""
    match column_type, value:
        case iceberg.DateType(), int():
            return DateLiteral(value // NANOSECONDS_PER_DAY)
        case iceberg.TimestampType() | iceberg.TimestamptzType(), int():
            return TimestampLiteral(value // NANOSECONDS_PER_MICROSECOND)
        case iceberg.TimestampNanoType() | iceberg.TimestamptzNanoType(), int():
            return NanosecondLiteral(value)
        case iceberg.UUIDType(), bytes():
            return UUIDLiteral(value)
        case iceberg.DecimalType(), Decimal():
            return DecimalLiteral(value)
        case _:
            return literal(value)


def _edges(window: TimeRange) -> tuple[datetime, datetime]:
    return window.start, window.end


def _nanoseconds(timestamp: datetime) -> int:
    return (timestamp - _EPOCH) // _MICROSECOND * NANOSECONDS_PER_MICROSECOND


def _wall_clock(column: str, instant: datetime, zone: ZoneInfo) -> int:
    wall = instant.astimezone(zone)
    # Where clocks go back, a wall-clock time comes twice. Its first timestamp still separates what is
    # before from what is after; any later one would put rows of both passes on the same side.
    if _is_ambiguous(wall) and (wall.fold or _is_ambiguous(wall - _MICROSECOND)):
        raise ValidationError(
            f"Partition column '{column}' has no time zone, and {wall:%Y-%m-%d %H:%M} comes twice in {zone.key}: "
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
            f"Partition column '{window.column}' is a date, but several partitions start on one day and would own the "
            "same rows. Use a timestamp column, or daily partitions."
        )
    zone = ZoneInfo(window.timezone)
    lower, upper = (_midnight(edge.astimezone(zone).date()) for edge in _edges(window))
    return Bounds(lower, upper)


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
    except (ValueError, InvalidOperation) as error:
        raise ValidationError(
            f"Partition key '{key}' cannot be read as {column_type}, the type of partition column '{column}'. "
            "Change the keys, or name another column in metadata 'partition_expr'."
        ) from error


def _whole_number(key: str, column_type: iceberg.IntegerType | iceberg.LongType) -> int:
    number = int(key) if _WHOLE_NUMBER.fullmatch(key) else None
    if number is None or not column_type.min <= number <= column_type.max:
        raise ValueError(f"not a whole number that fits {column_type}")
    return number


def _boolean(key: str, _: iceberg.BooleanType) -> bool:
    if key.lower() not in _BOOLEANS:
        raise ValueError("neither true nor false")
    return _BOOLEANS[key.lower()]


def _decimal(key: str, column_type: iceberg.DecimalType) -> Decimal:
    number = Decimal(key)
    scaled = number.quantize(Decimal(1).scaleb(-column_type.scale), context=_DECIMALS)
    if scaled != number or len(scaled.as_tuple().digits) > column_type.precision:
        raise ValueError(f"does not fit {column_type}")
    return scaled


def _timestamp(key: str, column_type: iceberg.IcebergType) -> int:
    timestamp, has_zone = datetime.fromisoformat(key), isinstance(column_type, INSTANT_TYPES)
    # A bare date would silently mean midnight only, which is hardly ever what a partition holds.
    if len(key) <= len("2024-01-01") or (timestamp.tzinfo is not None) is not has_zone:
        raise ValueError("not a full timestamp" + (" with offset" if has_zone else " without offset"))
    return _nanoseconds(timestamp if has_zone else timestamp.replace(tzinfo=UTC))


_PARSERS: Final[dict[type[iceberg.IcebergType], Callable[[str, Any], Value]]] = {
    iceberg.StringType: lambda key, _: key,
    iceberg.IntegerType: _whole_number,
    iceberg.LongType: _whole_number,
    iceberg.BooleanType: _boolean,
    iceberg.DecimalType: _decimal,
    iceberg.UUIDType: lambda key, _: UUID(key).bytes,
    iceberg.DateType: lambda key, _: _midnight(date.fromisoformat(key)),
    iceberg.TimestampType: _timestamp,
    iceberg.TimestampNanoType: _timestamp,
    iceberg.TimestamptzType: _timestamp,
    iceberg.TimestamptzNanoType: _timestamp,
}
