"""Converts the literals of a row filter to the types of the columns they are compared with.

PyIceberg converts literals when it binds a filter, and some comparisons change their meaning: it rounds 1.5 for a
whole number and 0.105 for a decimal with two places, compares the bounds of a 32-bit column with a 64-bit value, lets
NULL match `n < 3000000000` if the column is an int, and finds the largest int in a list of larger numbers.
"""

import struct
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal, InvalidOperation
from typing import Any, Final

from pyiceberg import expressions as expr, types as iceberg
from pyiceberg.expressions import literals
from pyiceberg.expressions.literals import AboveMax, BelowMin, Literal
from pyiceberg.utils.datetime import timestamp_to_nanos, timestamptz_to_nanos

from floe_dagster_iceberg.table.filter.partition_slice import NANOSECONDS_PER_MICROSECOND, NanosecondLiteral

_FLOATS: Final = (iceberg.FloatType, iceberg.DoubleType)
# Iceberg's decimals have up to 38 digits, Python's default context rounds at 28.
_DECIMALS: Final = Context(prec=38)
# PyIceberg's parser reads a number with a point as a 64-bit float, which keeps this many digits.
_DIGITS_OF_A_FLOAT: Final = 15

EXAMPLES: Final[Mapping[type[iceberg.IcebergType], str]] = {
    iceberg.BooleanType: "true",
    iceberg.IntegerType: "42",
    iceberg.LongType: "42",
    iceberg.FloatType: "1.5",
    iceberg.DoubleType: "1.5",
    iceberg.DecimalType: "'1.50'",
    iceberg.StringType: "'text'",
    iceberg.DateType: "'2024-01-31'",
    iceberg.TimeType: "'14:30:00'",
    iceberg.TimestampType: "'2024-01-31T14:30:00'",
    iceberg.TimestampNanoType: "'2024-01-31T14:30:00'",
    iceberg.TimestamptzType: "'2024-01-31T14:30:00+00:00'",
    iceberg.TimestamptzNanoType: "'2024-01-31T14:30:00+00:00'",
    iceberg.UUIDType: "'f79c3e09-677c-4bbd-a479-3f349cb785e7'",
}
"""How a literal of each type is written in a text filter; bytes cannot be."""


class UnfitLiteralError(ValueError):
    """A literal is no value of its column's type. The message describes it as the end of a sentence, never shows it."""


def fit_predicate(predicate: expr.UnboundPredicate, column: iceberg.NestedField) -> expr.BooleanExpression:
    """The predicate with literals of the column's type.

    Raises:
        UnfitLiteralError: A literal is no value of that type, or the type has no such comparison.
    """
    match predicate:
        case expr.StartsWith() | expr.NotStartsWith() if not isinstance(column.field_type, iceberg.StringType):
            raise UnfitLiteralError("'like', which is for text only")
        case expr.LiteralPredicate(term=term):
            return _comparison(predicate, term, _to_literal(predicate.literal, column.field_type), column)
        case expr.In(term=term, literals=values):
            return expr.In(term=term, literals=_representable(values, column))
        case expr.NotIn(term=term, literals=values):
            kept = _representable(values, column)
            return expr.NotIn(term=term, literals=kept) if kept else expr.NotNull(term=term)
        case _:
            return predicate


def from_text(predicate: expr.UnboundPredicate, column: iceberg.NestedField) -> expr.UnboundPredicate:
    """The predicate of a text filter with its numbers as they were written, not as the nearest 64-bit float.

    Raises:
        UnfitLiteralError: A number has more digits than the parser keeps, and the column could tell the difference.
    """
    match predicate:
        case expr.LiteralPredicate(term=term, value=value):
            return type(predicate)(term=term, value=_as_written(value, column))
        case expr.In(term=term, literals=values) | expr.NotIn(term=term, literals=values):
            return type(predicate)(term=term, literals={_as_written(value, column) for value in values})
        case _:
            return predicate


def _as_written(value: Literal[Any], column: iceberg.NestedField) -> Literal[Any]:
    if not isinstance(value, literals.DecimalLiteral):
        return value
    number = Decimal(repr(float(value.value)))
    if isinstance(column.field_type, iceberg.DecimalType) and len(number.as_tuple().digits) > _DIGITS_OF_A_FLOAT:
        raise UnfitLiteralError(f"a number of more than {_DIGITS_OF_A_FLOAT} digits, which has to be quoted")
    return literals.DecimalLiteral(number)


def _comparison(
    predicate: expr.LiteralPredicate, term: Any, literal: Literal[Any], column: iceberg.NestedField
) -> expr.BooleanExpression:
    match literal, predicate:
        case (AboveMax(), expr.LessThan() | expr.LessThanOrEqual()) | (
            BelowMin(),
            expr.GreaterThan() | expr.GreaterThanOrEqual(),
        ):
            return expr.NotNaN(term=term) if isinstance(column.field_type, _FLOATS) else expr.NotNull(term=term)
        case AboveMax() | BelowMin(), expr.NotEqualTo():
            return expr.NotNull(term=term)
        case AboveMax() | BelowMin(), _:
            return expr.AlwaysFalse()
        case _:
            return type(predicate)(term=term, value=literal)


def _representable(values: Iterable[Literal[Any]], column: iceberg.NestedField) -> set[Literal[Any]]:
    """The literals of a list, without those that the column is too small to hold."""
    converted = (_to_literal(value, column.field_type) for value in values)
    return {literal for literal in converted if not isinstance(literal, AboveMax | BelowMin)}


def _to_literal(value: Literal[Any], kind: iceberg.IcebergType) -> Literal[Any]:
    try:
        match kind:
            case iceberg.IntegerType() | iceberg.LongType():
                return _whole_number(value, kind)
            case iceberg.FloatType():
                return _single_precision(value.to(kind))
            case iceberg.DecimalType():
                return _decimal(value, kind)
            case iceberg.TimestampNanoType() | iceberg.TimestamptzNanoType():
                return _nanoseconds(value, kind)
            case _:
                converted: Literal[Any] = value.to(kind)
                return converted
    except UnfitLiteralError:
        raise
    # Not chained: messages of PyIceberg show the value.
    except (TypeError, ValueError, ArithmeticError):
        raise UnfitLiteralError(f"a value that is no {kind}") from None


def _whole_number(value: Literal[Any], kind: iceberg.IcebergType) -> Literal[Any]:
    if isinstance(value, literals.DecimalLiteral | literals.StringLiteral):
        number = Decimal(value.value)
        if number.is_finite() and number != number.to_integral_value():
            raise UnfitLiteralError("a value that is no whole number")
    converted: Literal[Any] = value.to(kind)
    return converted


def _single_precision(literal: Literal[Any]) -> Literal[Any]:
    if isinstance(literal, AboveMax | BelowMin):
        return literal
    return literals.FloatLiteral(struct.unpack("<f", struct.pack("<f", literal.value))[0])


def _decimal(value: Literal[Any], kind: iceberg.DecimalType) -> Literal[Any]:
    if not isinstance(value.value, str | int | float | Decimal) or isinstance(value.value, bool):
        raise TypeError(f"not a number: {type(value.value)}")
    number = Decimal(repr(value.value) if isinstance(value.value, float) else value.value)
    try:
        scaled = number.quantize(Decimal(1).scaleb(-kind.scale), context=_DECIMALS)
    except InvalidOperation:
        scaled = None
    if scaled is None or len(scaled.as_tuple().digits) > kind.precision:
        raise UnfitLiteralError(f"a value that is too large for {kind}")
    if scaled != number:
        raise UnfitLiteralError(f"a value that has more than {kind.scale} decimal places")
    return literals.DecimalLiteral(scaled)


def _nanoseconds(value: Literal[Any], kind: iceberg.IcebergType) -> Literal[Any]:
    match value:
        case NanosecondLiteral():
            return value
        case literals.TimestampLiteral():
            return NanosecondLiteral(value.value * NANOSECONDS_PER_MICROSECOND)
        case literals.StringLiteral():
            has_zone = isinstance(kind, iceberg.TimestamptzNanoType)
            return NanosecondLiteral((timestamptz_to_nanos if has_zone else timestamp_to_nanos)(value.value))
        case _:
            raise TypeError(f"not a timestamp: {type(value).__name__}")
