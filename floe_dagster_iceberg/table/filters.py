"""Row filters as users write them, checked against a table's columns."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    EqualTo,
    In,
    NotIn,
    NotNull,
    Or,
    UnboundPredicate,
    parser,
)
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, bind, rewrite_not, visit
from pyiceberg.table import Table

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import RowFilter
from floe_dagster_iceberg.table.names import table_name


@dataclass(frozen=True)
class CheckedFilter:
    """A filter that needs no check: one of our own, or of those that `to_row_filter` returned."""

    expression: BooleanExpression


def to_row_filter(table: Table, row_filter: RowFilter) -> BooleanExpression:
    """A PyIceberg expression whose columns and literals fit the table.

    Raises:
        ValidationError: The text is no filter, a column is not there, or a literal is of another type.
            The message names columns, never the filter's values.
    """
    name = table_name(table)
    if isinstance(row_filter, str):
        try:
            expression = parser.parse(row_filter)
        except Exception:  # noqa: BLE001 - pyparsing's own errors show the text, and its class is not PyIceberg's API
            raise ValidationError(
                f"The row filter for '{name}' cannot be read. Write it like \"region = 'EU' and amount > 10\".",
                table=name,
            ) from None
    elif isinstance(row_filter, BooleanExpression):
        expression = row_filter
    else:
        raise ValidationError(
            f"The row filter for '{name}' is a text or a PyIceberg expression, not a {type(row_filter).__name__}.",
            table=name,
        )
    try:
        bind(table.schema(), expression, case_sensitive=True)
    except (ValueError, TypeError):
        columns = ", ".join(table.schema().column_names)
        raise ValidationError(
            f"The row filter for '{name}' names a column that is not there, or compares one with a value of "
            f"another type. Columns: {columns}.",
            table=name,
        ) from None
    return visit(rewrite_not(expression), _FitForArrow())


class _FitForArrow(BooleanExpressionVisitor[BooleanExpression]):
    """The same filter, as Arrow answers it rightly.

    Arrow skips rows by the smallest and largest value of a Parquet file. The smallest zero is -0.0,
    which it does not find in a list with 0.0. NULL is not in any list and not out of any either; to
    Arrow it is out.
    """

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        return ~child_result

    def visit_and(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return And(left_result, right_result)

    def visit_or(self, left_result: BooleanExpression, right_result: BooleanExpression) -> BooleanExpression:
        return Or(left_result, right_result)

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        match predicate:
            case In(term=term, literals=literals):
                return _any_of(term, literals)
            case NotIn(term=term, literals=literals):
                return And(NotNull(term=term), ~_any_of(term, literals))
            case _:
                return predicate

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        return predicate


def _any_of(term: Any, literals: Iterable[Literal[Any]]) -> BooleanExpression:
    """Whether a value is one of these, zero compared by itself."""
    others = set(literals)
    zeros = {one for one in others if type(one.value) in {int, float, Decimal} and one.value == 0}
    found: BooleanExpression = In(term=term, literals=others - zeros)
    for zero in zeros:
        found = Or(found, EqualTo(term=term, value=zero))
    return found
