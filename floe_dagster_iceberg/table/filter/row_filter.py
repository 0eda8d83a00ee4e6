"""Users' row filters, checked against a table's columns and applied to Arrow rows."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as expr
from pyiceberg.expressions.literals import Literal
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, bind, extract_field_ids, rewrite_not, visit
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table
from pyiceberg.types import FixedType, UUIDType

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import RowFilter
from floe_dagster_iceberg.table.names import table_name


@dataclass(frozen=True)
class CheckedFilter:
    """A filter that needs no check: built by this package, or returned by `to_row_filter`."""

    expression: expr.BooleanExpression


def to_row_filter(table: Table, row_filter: RowFilter) -> expr.BooleanExpression:
    """Parse a row filter and check its columns and literals against the table.

    Raises:
        ValidationError: The text is not a valid filter, a column does not exist, or a literal has the wrong
            type. The message names columns, never the filter's values.
    """
    name = table_name(table)
    if isinstance(row_filter, str):
        try:
            expression = expr.parser.parse(row_filter)
        except Exception:  # noqa: BLE001 - pyparsing's errors show the text, and their class is not part of PyIceberg's API
            raise ValidationError(
                f"The row filter for '{name}' cannot be parsed. Write it like \"region = 'EU' and amount > 10\".",
                table=name,
            ) from None
    elif isinstance(row_filter, expr.BooleanExpression):
        expression = row_filter
    else:
        raise ValidationError(
            f"The row filter for '{name}' must be a string or a PyIceberg expression, not {type(row_filter).__name__}.",
            table=name,
        )
    try:
        bind(table.schema(), expression, case_sensitive=True)
    except (ValueError, TypeError):
        columns = ", ".join(table.schema().column_names)
        raise ValidationError(
            f"The row filter for '{name}' names a column that does not exist, or compares one with a "
            f"value of another type. Columns: {columns}.",
            table=name,
        ) from None
    return visit(rewrite_not(expression), _FitForArrow())


class _FitForArrow(BooleanExpressionVisitor[expr.BooleanExpression]):
    """Rewrites a filter so that Arrow evaluates it correctly.

    Arrow skips rows by the minimum and maximum of a Parquet row group. The minimum of zeros is -0.0,
    which it does not find in a list with 0.0. And for Arrow NULL matches "not in", for Iceberg it
    does not.
    """

    def visit_true(self) -> expr.BooleanExpression:
        return expr.AlwaysTrue()

    def visit_false(self) -> expr.BooleanExpression:
        return expr.AlwaysFalse()

    def visit_not(self, child_result: expr.BooleanExpression) -> expr.BooleanExpression:
        return ~child_result

    def visit_and(
        self, left_result: expr.BooleanExpression, right_result: expr.BooleanExpression
    ) -> expr.BooleanExpression:
        return expr.And(left_result, right_result)

    def visit_or(
        self, left_result: expr.BooleanExpression, right_result: expr.BooleanExpression
    ) -> expr.BooleanExpression:
        return expr.Or(left_result, right_result)

    def visit_unbound_predicate(self, predicate: expr.UnboundPredicate) -> expr.BooleanExpression:
        match predicate:
            case expr.In(term=term, literals=literals):
                return _any_of(term, literals)
            case expr.NotIn(term=term, literals=literals):
                return expr.And(expr.NotNull(term=term), ~_any_of(term, literals))
            case _:
                return predicate

    def visit_bound_predicate(self, predicate: expr.BoundPredicate) -> expr.BooleanExpression:
        return predicate


def _any_of(term: Any, literals: Iterable[Literal[Any]]) -> expr.BooleanExpression:
    """An IN filter that compares zeros separately."""
    others = set(literals)
    zeros = {one for one in others if type(one.value) in {int, float, Decimal} and one.value == 0}
    found: expr.BooleanExpression = expr.In(term=term, literals=others - zeros)
    for zero in zeros:
        found = expr.Or(found, expr.EqualTo(term=term, value=zero))
    return found


_UUID_BYTES = 16


def mask_rows(rows: pa.Table, schema: Schema, row_filter: expr.BooleanExpression) -> pa.ChunkedArray:
    """Return True for each row that matches the unbound filter, else False, also where NULL makes it unknown.

    The columns of `rows` must be those of the schema, in the same order.
    """
    if isinstance(row_filter, expr.AlwaysTrue | expr.AlwaysFalse):
        return pa.chunked_array([pa.repeat(isinstance(row_filter, expr.AlwaysTrue), rows.num_rows)])
    fields = (
        field.model_copy(update={"field_type": FixedType(_UUID_BYTES)})
        if isinstance(field.field_type, UUIDType)
        else field
        for field in schema.fields
    )
    comparable = Schema(*fields, schema_id=schema.schema_id)
    named = sanitize_column_names(comparable)
    condition = expression_to_pyarrow(bind(comparable, row_filter, case_sensitive=True), named)
    columns = [_comparable_column(column) for column in rows.columns[: len(named.fields)]]
    view = pa.Table.from_arrays(columns, names=[field.name for field in named.fields])
    position = pa.arange(0, rows.num_rows)
    matching = view.append_column("__row", position).filter(condition).column("__row")
    return pc.is_in(pa.chunked_array([position]), value_set=matching)


def compares_uuids(schema: Schema, row_filter: expr.BooleanExpression) -> bool:
    """Whether a filter uses a UUID column, which PyIceberg's scans do not support."""
    if isinstance(row_filter, expr.AlwaysTrue | expr.AlwaysFalse):
        return False
    used = extract_field_ids(bind(schema, row_filter, case_sensitive=True))
    return any(isinstance(schema.find_type(field_id), UUIDType) for field_id in used)


def _comparable_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not isinstance(column.type, pa.UuidType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
