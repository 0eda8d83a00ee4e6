"""The rows of a merge: checked, the newest of each key, and which of them delete.

As in SQL, NULL is no key, 0.0 is -0.0, and NaN is NaN.
"""

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as expr
from pyiceberg.expressions.literals import literal
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from floe_dagster_iceberg._pyiceberg.foreign_types import ForeignArrowType
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.quantities import counted
from floe_dagster_iceberg.models.writing import MergeRules
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.filter.row_filter import fit_filter, mask_rows
from floe_dagster_iceberg.table.schema.convert import to_iceberg_schema
from floe_dagster_iceberg.table.write.row_scope import PartitionCheck

# No column of a table has this name beside those of the rows.
_DELETES: Final = "floe:deletes"
_ROW, _RANK, _NEWEST = "row", "rank", "newest"
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True)
class SelectedRows:
    """One row per key, with the columns that the table stores.

    Attributes:
        rows: The rows.
        deletes: For each of them, whether it deletes the row of its key.
        given: Number of rows of the data, with those that a newer one supersedes.
    """

    rows: pa.Table
    deletes: pa.Array
    given: int

    @property
    def first_rows(self) -> pa.Table:
        """The rows that they leave in a new table."""
        return self.rows.filter(pc.invert(self.deletes))


class MergeSource:
    """The rows of a merge in memory.

    Args:
        table: Name of the table, for messages.
        rows: The rows; a stream is read to its end.
        rules: What the merge does.
        schema: The table's schema; None for a new one.

    Attributes:
        stored: The rows with the columns that the table gets.

    Raises:
        ValidationError: `delete_when` does not fit the rows.
    """

    def __init__(self, table: str, rows: ArrowRows, rules: MergeRules, schema: Schema | None) -> None:
        self._name, self._rules = table, rules
        self._data = rows.to_table()
        self._deletes = _find_deletes(table, self._data, rules, schema)
        unstored = unstored_column(rules, self._data.column_names, schema)
        self.stored = ArrowRows(self._data if unstored is None else self._data.drop_columns([unstored]))

    def null_count(self, column: str) -> int | None:
        """NULLs in a column, of the rows that do not delete: the others are not stored."""
        if column not in self._data.column_names:
            return None
        values = self._data.column(column)
        return int(values.null_count and values.filter(pc.invert(self._deletes)).null_count)

    def select(self, check: PartitionCheck, schema: Schema) -> SelectedRows:
        """The newest row of each key, of those that belong to the partitions.

        Args:
            check: Of the partitions.
            schema: The table's schema after the write.

        Raises:
            ValidationError: A column is missing or cannot be compared, a key or order is NULL, or rows of one key
                cannot be told apart.
            RowsOutsidePartitionError: Rows are outside, and that is an error.
        """
        rows = ArrowRows(self._data.append_column(_DELETES, self._deletes)).to_table(check.filter)
        check.finish()
        rules, stored = self._rules, rows.select(self.stored.columns.names)
        check_columns(self._name, schema, stored.schema, rules)
        for key in rules.keys:
            if nulls := stored.column(key).null_count:
                raise null_keys_error(self._name, key, rows=nulls)
        for column in rules.order_by:
            if unordered := _count_unordered(stored.column(column)):
                raise null_order_error(self._name, column, rows=unordered)
        deletes = rows.column(_DELETES).combine_chunks()
        if (newest := self._find_newest(stored)) is not None:
            return SelectedRows(stored.take(newest), deletes.take(newest), stored.num_rows)
        return SelectedRows(stored, deletes, stored.num_rows)

    def _find_newest(self, rows: pa.Table) -> pa.Array | None:
        """Positions of the newest row of each key, in their order; None if no key repeats."""
        keys = key_values(rows, self._rules.keys)
        names = keys.column_names
        distinct = keys.group_by(names).aggregate([]).num_rows
        if distinct == rows.num_rows:
            return None
        if not self._rules.order_by:
            raise repeated_keys_error(self._name, self._rules.keys, rows=rows.num_rows - distinct)
        ranked = keys.append_column(_RANK, _ranks(rows.select(self._rules.order_by)))
        newest = ranked.group_by(names).aggregate([(_RANK, "max")]).rename_columns([*names, _NEWEST])
        pairs = ranked.append_column(_ROW, pa.arange(0, rows.num_rows)).join(newest, names, join_type="inner")
        found = pairs.filter(pc.equal(pairs.column(_RANK), pairs.column(_NEWEST))).column(_ROW).combine_chunks()
        if len(found) > distinct:
            raise tied_order_error(self._name, self._rules, rows=len(found) - distinct)
        return pc.take(found, pc.sort_indices(found))


def check_columns(table: str, schema: Schema, rows: pa.Schema, rules: MergeRules) -> None:
    """Refuse columns that are missing, or that cannot be compared.

    Args:
        table: Name of the table, for messages.
        schema: Its schema after the write.
        rows: The rows' columns that are stored.
        rules: What the merge does.

    Raises:
        ValidationError: With the name of the column.
    """
    for key in rules.keys:
        if key not in schema.column_names or key not in rows.names:
            where = "table" if key not in schema.column_names else "rows"
            raise ValidationError(
                f"Join column '{key}' is not in the {where} (table '{table}'). Name a column that table and rows have; "
                f"the rows have {', '.join(rows.names)}.",
                table=table,
            )
        if pa.types.is_nested(rows.field(key).type):
            raise ValidationError(
                f"Join column '{key}' of '{table}' is a {rows.field(key).type}, which cannot be compared. "
                "Join by columns of single values.",
                table=table,
            )
    for option, columns in (("order_by", rules.order_by), ("update_columns", rules.update_columns)):
        if missing := next((name for name in columns if name not in rows.names), None):
            raise ValidationError(
                f"Column '{missing}' of '{option}' is not in the rows for '{table}', which have "
                f"{', '.join(rows.names)}. Add it to the rows, or leave it out of '{option}'.",
                table=table,
            )
    for name in rules.order_by:
        if pa.types.is_nested(rows.field(name).type):
            raise ValidationError(
                f"Column '{name}' of 'order_by' for '{table}' is a {rows.field(name).type}, which has no order. "
                "Order by columns of single values, such as a timestamp or a sequence number.",
                table=table,
            )


def unstored_column(rules: MergeRules, columns: Collection[str], schema: Schema | None) -> str | None:
    """The boolean column that `delete_when` names: it is of the change and not of the row, unless the table has it."""
    name = rules.delete_when
    is_known = schema is not None and name in schema.column_names
    return name if isinstance(name, str) and name in columns and not is_known else None


def fit_delete_filter(
    table: str, rules: MergeRules, columns: pa.Schema, schema: Schema | None
) -> tuple[Schema, expr.BooleanExpression]:
    """`delete_when` as a filter of the rows, and the columns in terms of which it is written.

    Raises:
        ValidationError: It names a column that the rows lack or that is not boolean, or cannot be parsed.
    """
    delete_when = rules.delete_when
    if delete_when is None:
        return Schema(), expr.AlwaysFalse()
    known = (
        {} if schema is None else {field.name: field for field in schema_to_pyarrow(schema, include_field_ids=False)}
    )
    comparable = [
        # Of a column that is NULL in every row nothing else is known.
        known.get(field.name, field.with_type(pa.string())) if pa.types.is_null(field.type) else field
        for field in columns
        if not isinstance(field.type, ForeignArrowType)
    ]
    typed = to_iceberg_schema(table, pa.schema(comparable))
    if not isinstance(delete_when, str) or (delete_when not in columns.names and not _WORD.fullmatch(delete_when)):
        return typed, fit_filter(table, typed, delete_when, subject="filter 'delete_when'")
    kind = columns.field(delete_when).type if delete_when in columns.names else None
    if kind is None or not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        has = "which the rows do not have" if kind is None else f"which is of type {kind}"
        raise ValidationError(
            f"'delete_when' for '{table}' names column '{delete_when}', {has}. Name a boolean column of the rows, or "
            f"write a filter such as \"op = 'D'\"; the rows have {', '.join(columns.names)}.",
            table=table,
        )
    if pa.types.is_null(kind):
        return typed, expr.AlwaysFalse()
    return typed, expr.EqualTo(term=expr.Reference(delete_when), value=literal(value=True))


def _find_deletes(table: str, rows: pa.Table, rules: MergeRules, schema: Schema | None) -> pa.ChunkedArray:
    typed, where = fit_delete_filter(table, rules, rows.schema, schema)
    if isinstance(where, expr.AlwaysFalse):
        return pa.chunked_array([pa.repeat(value=False, size=rows.num_rows)])
    columns = schema_to_pyarrow(typed, include_field_ids=False)
    return mask_rows(rows.select(columns.names).cast(columns), typed, where)


def null_keys_error(table: str, key: str, *, rows: int) -> ValidationError:
    """The error for rows without a key."""
    return ValidationError(
        f"{counted(rows, 'row')} for '{table}' {'has' if rows == 1 else 'have'} NULL in join column '{key}' and would "
        "match nothing. Fill or drop them.",
        table=table,
    )


def repeated_keys_error(table: str, keys: Sequence[str], *, rows: int) -> ValidationError:
    """The error for rows that share a key."""
    return ValidationError(
        f"{counted(rows, 'row')} for '{table}' {'repeats' if rows == 1 else 'repeat'} a key of ({', '.join(keys)}). "
        "Deduplicate the rows, or name the columns that say which is the newest in 'order_by': an upsert cannot tell "
        "which of them to keep.",
        table=table,
    )


def null_order_error(table: str, column: str, *, rows: int) -> ValidationError:
    """The error for rows that cannot be put in an order."""
    return ValidationError(
        f"{counted(rows, 'row')} for '{table}' {'has' if rows == 1 else 'have'} NULL or NaN in column '{column}' of "
        "'order_by', and could be older or newer than any other. Fill or drop them.",
        table=table,
    )


def tied_order_error(table: str, rules: MergeRules, *, rows: int) -> ValidationError:
    """The error for several newest rows of a key."""
    return ValidationError(
        f"{counted(rows, 'row')} for '{table}' {'has' if rows == 1 else 'have'} the key ({', '.join(rules.keys)}) and "
        f"the order ({', '.join(rules.order_by)}) of another row, and neither is the newest. Deduplicate the rows, or "
        "add a column to 'order_by' in which they differ, such as a sequence number.",
        table=table,
    )


def comparable(rows: pa.Table) -> pa.Table:
    """The rows with UUIDs as the bytes that they are stored as; Arrow compares no extension types."""
    fields = [
        field.with_type(field.type.storage_type) if isinstance(field.type, pa.BaseExtensionType) else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def key_values(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The keys as SQL compares them, numbered: 0.0 equals -0.0, and NaN equals NaN. Arrow compares their bits."""
    values = comparable(rows.select(list(keys))).rename_columns([f"key_{number}" for number in range(len(keys))])
    for number, field in enumerate(values.schema):
        if pa.types.is_floating(field.type):
            column = values.column(number)
            nan, zero = pa.scalar(math.nan, field.type), pa.scalar(0.0, field.type)
            # -0.0 + 0.0 is 0.0.
            values = values.set_column(number, field, pc.if_else(pc.is_nan(column), nan, pc.add(column, zero)))
    return values


def _count_unordered(values: pa.ChunkedArray) -> int:
    nan = pc.sum(pc.is_nan(values)).as_py() if pa.types.is_floating(values.type) else 0
    return int(values.null_count + (nan or 0))


def _ranks(rows: pa.Table) -> pa.Array:
    """The place of each row in the order of its columns; equal rows have the same."""
    order = key_values(rows, rows.column_names)
    indices = pc.sort_indices(order, sort_keys=[(name, "ascending") for name in order.column_names])
    placed = order.take(indices).combine_chunks()
    steps = [
        pc.not_equal(values.slice(1), values.slice(0, rows.num_rows - 1))
        for values in (column.combine_chunks() for column in placed.columns)
    ]
    ranks = pc.cumulative_sum(pa.concat_arrays([pa.array([0]), reduce(pc.or_, steps).cast(pa.int64())]))
    return ranks.take(pc.sort_indices(indices))
