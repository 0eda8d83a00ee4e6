"""Users' row filters: checked against a table's columns, applied to Arrow rows and to whole files."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as expr
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.literals import Literal, LongLiteral, literal
from pyiceberg.expressions.visitors import BooleanExpressionVisitor, bind, extract_field_ids, rewrite_not, visit
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import FixedType, NestedField, UUIDType

from floe_dagster_iceberg._pyiceberg.evaluators import MetricsMatcher, residual_evaluator
from floe_dagster_iceberg._pyiceberg.parquet import to_file_schema
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import RowFilter
from floe_dagster_iceberg.table.filter.filter_literals import EXAMPLES, UnfitLiteralError, fit_predicate, from_text
from floe_dagster_iceberg.table.names import table_name


@dataclass(frozen=True)
class CheckedFilter:
    """A filter that needs no check: built by this package, or returned by `to_row_filter`."""

    expression: expr.BooleanExpression


def to_row_filter(table: Table, row_filter: RowFilter) -> expr.BooleanExpression:
    """Parse a row filter and convert its literals to the types of the table's columns.

    Raises:
        ValidationError: The text is not a valid filter, a column does not exist, or a literal is no value of its
            column's type. The message names columns, never the filter's values.
    """
    return fit_filter(table_name(table), table.schema(), row_filter)


def fit_filter(
    table: str, schema: Schema, row_filter: RowFilter, *, subject: str = "row filter"
) -> expr.BooleanExpression:
    """Parse a filter of rows with this schema, which are the table's or are written to it.

    Raises:
        ValidationError: As `to_row_filter` says.
    """
    if isinstance(row_filter, str):
        try:
            expression = expr.parser.parse(row_filter)
        except Exception as error:  # noqa: BLE001 - pyparsing's errors show the text, and their class is not part of PyIceberg's API
            where = _describe_position(row_filter, getattr(error, "loc", 0), schema.column_names)
            raise ValidationError(
                f"The {subject} for '{table}' cannot be parsed {where}. Write it like "
                "\"region = 'EU' and amount > 10\".",
                table=table,
            ) from None
    elif isinstance(row_filter, expr.BooleanExpression):
        expression = row_filter
    else:
        raise ValidationError(
            f"The {subject} for '{table}' must be a string or a PyIceberg expression, not {type(row_filter).__name__}.",
            table=table,
        )
    fit = _Fit(table, schema, subject, is_text=isinstance(row_filter, str))
    return visit(rewrite_not(_balanced(expression)), fit)


# Quoted text, words and numbers, of which only keywords and columns may be shown.
_WORDS: Final = re.compile(r"'[^']*'?|\"[^\"]*\"?|[\w.+-]+")
# The parser reports the start of a comparison that it cannot parse: its column and operator are what it has understood.
_COMPARISON: Final = re.compile(r"\s*[\w.]+\s*(?:<=|>=|!=|<>|==|=|<|>|(?:is|in|like|between)\b)\s*", re.IGNORECASE)
_CONNECTIVE: Final = re.compile(r"(?:\b(?:and|or|not)|\()\s*$", re.IGNORECASE)
_KEYWORDS: Final = frozenset({"and", "or", "not", "in", "is", "null", "nan", "like", "between", "true", "false"})


def _describe_position(text: str, position: int, columns: Iterable[str]) -> str:
    """Where a filter cannot be parsed, with its columns and operators; its values are replaced by dots."""
    known = {*_KEYWORDS, *(column.lower() for column in columns)}

    def masked(part: str) -> str:
        return _WORDS.sub(lambda word: word[0] if word[0].lower() in known else "…", part).strip()

    # A position inside a word is that of the word.
    start = next((word.start() for word in _WORDS.finditer(text) if word.start() < position < word.end()), position)
    if start == 0 or _CONNECTIVE.search(text[:start]):
        understood = _COMPARISON.match(text, start)
        start = start if understood is None else understood.end()
    shown = f"{masked(text[:start])} >>> {masked(text[start:])}".strip()
    return f"at character {start + 1}, after '>>>': {shown}"


def _balanced(expression: expr.BooleanExpression) -> expr.BooleanExpression:
    """The filter with a balanced tree in place of each long chain of `and` or `or`, which recursion could not visit."""
    if not isinstance(expression, expr.And | expr.Or):
        return expression
    kind, operands = type(expression), list[expr.BooleanExpression]()
    waiting: list[expr.BooleanExpression] = [expression]
    while waiting:
        each = waiting.pop()
        if isinstance(each, kind):
            waiting += [each.right, each.left]
        else:
            operands.append(_balanced(each))
    return kind(*operands)


class _Fit(BooleanExpressionVisitor[expr.BooleanExpression]):
    """Rewrites a filter so that its literals fit the table's columns and Arrow evaluates it correctly.

    Arrow skips rows by the minimum and maximum of a Parquet row group. The minimum of zeros is -0.0,
    which it does not find in a list with 0.0. And for Arrow NULL matches "not in", for Iceberg it
    does not.
    """

    def __init__(self, table: str, schema: Schema, subject: str, *, is_text: bool) -> None:
        self._table, self._schema, self._subject, self._is_text = table, schema, subject, is_text

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
        column = self._column(predicate)
        try:
            fitted = fit_predicate(from_text(predicate, column) if self._is_text else predicate, column)
        except UnfitLiteralError as error:
            example = EXAMPLES.get(type(column.field_type))
            name = self._schema.find_column_name(column.field_id)
            hint = (
                f"Write it like {name} = {example}."
                if example
                else "Use a PyIceberg expression with a value of that type, or a null check."
            )
            compared = f"column '{name}' of type {column.field_type} with {error}"
            raise ValidationError(
                f"The {self._subject} for '{self._table}' compares {compared}. {hint}", table=self._table
            ) from None
        match fitted:
            case expr.In(term=term, literals=literals):
                return _any_of(term, literals)
            case expr.NotIn(term=term, literals=literals):
                return expr.And(expr.NotNull(term=term), ~_any_of(term, literals))
            case _:
                return fitted

    def visit_bound_predicate(self, predicate: expr.BoundPredicate) -> expr.BooleanExpression:
        raise ValidationError(
            f"The {self._subject} for '{self._table}' is bound to a schema already ({type(predicate).__name__}). "
            "Pass the unbound expression.",
            table=self._table,
        )

    def _column(self, predicate: expr.UnboundPredicate) -> NestedField:
        try:
            return predicate.term.bind(self._schema, case_sensitive=True).ref().field
        except ValueError:
            columns = ", ".join(self._schema.column_names)
            raise ValidationError(
                f"The {self._subject} for '{self._table}' names a column that does not exist, or a field inside a list "
                f"or map. Columns: {columns}.",
                table=self._table,
            ) from None


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
    named = to_file_schema(comparable)
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


def selects_whole_partitions(metadata: TableMetadata, row_filter: BooleanExpression) -> bool:
    """Whether a filter depends on partition values alone, so that no file has rows inside and outside of it.

    Answered without reading manifests, for all specs that files may have. False means that the files have to be looked
    at.
    """
    schema = metadata.schema()
    bound = bind(schema, rewrite_not(row_filter), case_sensitive=True)
    return all(_is_exact(bound, spec) for spec in metadata.specs().values())


def _is_exact(bound: BooleanExpression, spec: PartitionSpec) -> bool:
    match bound:
        case AlwaysTrue() | AlwaysFalse():
            return True
        case expr.And(left=left, right=right) | expr.Or(left=left, right=right):
            return _is_exact(left, spec) and _is_exact(right, spec)
        case expr.BoundPredicate():
            fields = spec.fields_by_source_id(bound.term.ref().field.field_id)
            return any(_is_exact_for(field, bound) for field in fields)
        case _:
            return False


def _is_exact_for(field: PartitionField, predicate: expr.BoundPredicate) -> bool:
    """Whether the partitions that may have matching rows are those that have no others."""
    try:
        some, every = (
            project(field.name, predicate) for project in (field.transform.project, field.transform.strict_project)
        )
    except (ValueError, TypeError):
        return False
    return some is not None and every is not None and _with_open_end(some) == _with_open_end(every)


def _with_open_end(predicate: expr.UnboundPredicate) -> expr.UnboundPredicate:
    """A comparison with a whole number, such as a day, in one of its two forms."""
    match predicate:
        case expr.LessThanOrEqual(literal=LongLiteral(value=value)):
            return expr.LessThan(term=predicate.term, value=literal(value + 1))
        case expr.GreaterThan(literal=LongLiteral(value=value)):
            return expr.GreaterThanOrEqual(term=predicate.term, value=literal(value + 1))
        case _:
            return predicate


class FileMatcher:
    """Decides for the files of a table, without reading them, whether their rows match a filter."""

    def __init__(self, metadata: TableMetadata, row_filter: BooleanExpression) -> None:
        schema = metadata.schema()
        self._always = isinstance(row_filter, AlwaysTrue)
        self._metrics = MetricsMatcher(schema, row_filter)
        # PyIceberg compares a UUID partition value with the filter's bytes, and they never match.
        self._ignores_partitions = compares_uuids(schema, row_filter)
        self._row_filter = row_filter
        self._residuals = {
            spec_id: residual_evaluator(spec, row_filter, schema) for spec_id, spec in metadata.specs().items()
        }
        # Computing a residual is the expensive part; files of one partition share it.
        self._known: dict[tuple[int, Record], BooleanExpression] = {}

    def all_rows(self, file: DataFile) -> bool:
        """Whether every row certainly matches."""
        return self._always or isinstance(self._residual(file), AlwaysTrue) or self._metrics.all_rows_match(file)

    def no_row(self, file: DataFile) -> bool:
        """Whether certainly no row matches."""
        if self._always:
            return False
        # Statistics first: comparing two bounds is cheaper.
        return self._metrics.no_row_matches(file) or isinstance(self._residual(file), AlwaysFalse)

    def _residual(self, file: DataFile) -> BooleanExpression:
        """What is left of the filter once the file's partition is known."""
        if self._ignores_partitions:
            return self._row_filter
        key = (file.spec_id, file.partition)
        if (residual := self._known.get(key)) is None:
            residual = self._known[key] = self._residuals[file.spec_id].residual_for(file.partition)
        return residual
