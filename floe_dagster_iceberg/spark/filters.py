"""Iceberg filters as Spark SQL conditions.

Both engines filter with the same PyIceberg expression, so they select the same rows. NULL matches no
comparison, NaN is not larger than anything, and 0.0 equals -0.0.

Spark knows that, but it passes the condition to Iceberg, which skips, replaces and deletes files by their partition, in
an order of its own: NULL comes first and is less than any value, and -0.0 is less than 0.0. So NULL is excluded
explicitly, and a zero is compared as the range of both.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from pyiceberg import types as iceberg
from pyiceberg.expressions import BooleanExpression, BoundTerm
from pyiceberg.expressions.visitors import BoundBooleanExpressionVisitor, bind, visit
from pyiceberg.schema import Schema

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.spark.types import quote, to_spark_type

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

# Text that reads the same under every setting of Spark's parser.
_PLAIN_TEXT: Final = re.compile(r"[\w .,:;/+-]*", re.ASCII)


def to_condition(row_filter: BooleanExpression, schema: Schema, *, for_overwrite: bool = False) -> str:
    """Translate an unbound filter for `expr()` and SQL statements; the schema's types decide the literals.

    Iceberg's Java compares UUIDs as numbers with a sign, and skips files that have the rows. Conditions on them are
    written so that Spark evaluates them itself, which only an overwrite cannot do.

    Raises:
        EngineCapabilityError: A column has a type that Spark does not support.
    """
    return visit(bind(schema, row_filter, case_sensitive=True), _ToCondition(schema, for_overwrite=for_overwrite))


class _ToCondition(BoundBooleanExpressionVisitor[str]):
    def __init__(self, schema: Schema, *, for_overwrite: bool) -> None:
        self._paths, self._for_overwrite = column_paths(schema), for_overwrite

    def visit_true(self) -> str:
        return "TRUE"

    def visit_false(self) -> str:
        return "FALSE"

    def visit_not(self, child_result: str) -> str:
        return f"NOT ({child_result})"

    def visit_and(self, left_result: str, right_result: str) -> str:
        return f"({left_result} AND {right_result})"

    def visit_or(self, left_result: str, right_result: str) -> str:
        return f"({left_result} OR {right_result})"

    def visit_is_null(self, term: BoundTerm) -> str:
        return f"{self._column(term)} IS NULL"

    def visit_not_null(self, term: BoundTerm) -> str:
        return f"{self._column(term)} IS NOT NULL"

    def visit_is_nan(self, term: BoundTerm) -> str:
        return f"isnan({self._column(term)})"

    def visit_not_nan(self, term: BoundTerm) -> str:
        return f"({self._column(term)} IS NOT NULL AND NOT isnan({self._column(term)}))"

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> str:
        others = {literal for literal in literals if not _is_zero(term, literal)}
        listed = [f"{self._column(term)} IN ({self._list(term, others)})"] if others else []
        zero = [self.visit_equal(term, 0.0)] if len(others) < len(literals) else []
        return f"({' OR '.join([*listed, *zero])})"

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> str:
        others = {literal for literal in literals if not _is_zero(term, literal)}
        listed = [f"{self._column(term)} NOT IN ({self._list(term, others)})"] if others else []
        zero = [self.visit_not_equal(term, 0.0)] if len(others) < len(literals) else []
        return self._unless_null(term, " AND ".join([*listed, *zero]))

    def visit_equal(self, term: BoundTerm, literal: Any) -> str:
        if _is_zero(term, literal):
            column = self._column(term)
            return f"({column} >= {self._literal(term, -0.0)} AND {column} <= {self._literal(term, 0.0)})"
        return f"{self._column(term)} = {self._literal(term, literal)}"

    def visit_not_equal(self, term: BoundTerm, literal: Any) -> str:
        if _is_zero(term, literal):
            column = self._column(term)
            either = f"({column} < {self._literal(term, -0.0)} OR {column} > {self._literal(term, 0.0)})"
            return self._unless_null(term, either)
        return self._unless_null(term, f"{self._column(term)} <> {self._literal(term, literal)}")

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Any) -> str:
        lowest = -0.0 if _is_zero(term, literal) else literal
        return self._unless_nan(term, f"{self._column(term)} >= {self._literal(term, lowest)}")

    def visit_greater_than(self, term: BoundTerm, literal: Any) -> str:
        highest = 0.0 if _is_zero(term, literal) else literal
        return self._unless_nan(term, f"{self._column(term)} > {self._literal(term, highest)}")

    def visit_less_than(self, term: BoundTerm, literal: Any) -> str:
        lowest = -0.0 if _is_zero(term, literal) else literal
        return self._unless_null(term, f"{self._column(term)} < {self._literal(term, lowest)}")

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Any) -> str:
        highest = 0.0 if _is_zero(term, literal) else literal
        return self._unless_null(term, f"{self._column(term)} <= {self._literal(term, highest)}")

    def visit_starts_with(self, term: BoundTerm, literal: Any) -> str:
        return f"startswith({self._column(term)}, {self._literal(term, literal)})"

    def visit_not_starts_with(self, term: BoundTerm, literal: Any) -> str:
        return self._unless_null(term, f"NOT {self.visit_starts_with(term, literal)}")

    def _column(self, term: BoundTerm) -> str:
        column = quote(*self._paths[term.ref().field.field_id])
        is_uuid = isinstance(term.ref().field.field_type, iceberg.UUIDType)
        return f"concat({column}, '')" if is_uuid and not self._for_overwrite else column

    def _unless_null(self, term: BoundTerm, comparison: str) -> str:
        return f"({self._column(term)} IS NOT NULL AND {comparison})"

    def _unless_nan(self, term: BoundTerm, comparison: str) -> str:
        if not _is_float(term):
            return comparison
        return f"({comparison} AND NOT isnan({self._column(term)}))"

    def _list(self, term: BoundTerm, literals: set[Any]) -> str:
        return ", ".join(sorted(self._literal(term, literal) for literal in literals))

    def _literal(self, term: BoundTerm, literal: Any) -> str:
        # PyIceberg passes a literal or its bare value, depending on the predicate.
        return to_sql_literal(getattr(literal, "value", literal), term.ref().field.field_type)


def _is_float(term: BoundTerm) -> bool:
    return isinstance(term.ref().field.field_type, iceberg.FloatType | iceberg.DoubleType)


def _is_zero(term: BoundTerm, literal: Any) -> bool:
    return _is_float(term) and getattr(literal, "value", literal) == 0


def to_sql_literal(value: Any, column_type: iceberg.IcebergType) -> str:
    """Write a value in Iceberg's representation as a SQL literal of the same value and type.

    Raises:
        EngineCapabilityError: Spark does not support the type.
    """
    write = _WRITERS.get(type(column_type))
    if write is None:
        raise EngineCapabilityError(
            f"Spark cannot compare columns of type {column_type}. Use the Arrow engine for this table.", engine="spark"
        )
    return write(value, column_type)


def _timestamp(microseconds: int) -> str:
    timestamp = _EPOCH + timedelta(microseconds=microseconds)
    return f"{timestamp.year:04}-{timestamp:%m-%d %H:%M:%S.%f}"


def _text(value: str) -> str:
    # Escapes in string literals depend on Spark's settings, hexadecimal does not.
    return f"'{value}'" if _PLAIN_TEXT.fullmatch(value) else f"CAST(X'{value.encode().hex()}' AS STRING)"


def column_paths(schema: Schema) -> dict[int, tuple[str, ...]]:
    """The path of each column and of each field of a struct, by field id."""
    return dict(_paths(schema.as_struct(), ()))


def _paths(struct: iceberg.StructType, parent: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...]]]:
    for field in struct.fields:
        path = (*parent, field.name)
        yield field.field_id, path
        if isinstance(field.field_type, iceberg.StructType):
            yield from _paths(field.field_type, path)


def _number(value: Any, column_type: iceberg.IcebergType) -> str:
    return f"CAST('{value}' AS {to_spark_type(column_type)})"


_WRITERS: Final[Mapping[type[iceberg.IcebergType], Callable[[Any, iceberg.IcebergType], str]]] = {
    iceberg.BooleanType: lambda value, _: "TRUE" if value else "FALSE",
    **dict.fromkeys((iceberg.IntegerType, iceberg.LongType), _number),
    **dict.fromkeys((iceberg.FloatType, iceberg.DoubleType, iceberg.DecimalType), _number),
    iceberg.DateType: lambda value, _: f"CAST('{_EPOCH.date() + timedelta(days=value)}' AS DATE)",
    iceberg.TimestampType: lambda value, _: f"CAST('{_timestamp(value)}' AS TIMESTAMP_NTZ)",
    iceberg.TimestamptzType: lambda value, _: f"CAST('{_timestamp(value)}Z' AS TIMESTAMP)",
    iceberg.StringType: lambda value, _: _text(value),
    iceberg.UUIDType: lambda value, _: _text(str(UUID(bytes=value) if isinstance(value, bytes) else value)),
    iceberg.BinaryType: lambda value, _: f"X'{bytes(value).hex()}'",
    iceberg.FixedType: lambda value, _: f"X'{bytes(value).hex()}'",
}
