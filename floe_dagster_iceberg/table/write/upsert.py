"""Upserts: rows matched by key, changed ones replaced, new ones added, equal ones left in place."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as expr
from pyiceberg.expressions.literals import literal
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.quantities import counted
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.filter.row_filter import mask_rows
from floe_dagster_iceberg.table.write.data_file_writer import DataFileWriter
from floe_dagster_iceberg.table.write.delete import read_task, tasks_for

_MOST_KEYS_LISTED = 200
_HERE, _THERE = "__here", "__there"


@dataclass(frozen=True)
class UpsertCounts:
    """What became of the rows of an upsert: new in the table, changed there, or equal to what it had."""

    inserted: int = 0
    updated: int = 0
    unchanged: int = 0


def check_keys(table: str, schema: Schema, rows: pa.Table, keys: Sequence[str]) -> None:
    """Refuse keys that cannot identify rows.

    Raises:
        ValidationError: A key column is missing, holds NULL, or several rows share a key.
    """
    for key in keys:
        if key not in schema.column_names or key not in rows.column_names:
            where = "table" if key not in schema.column_names else "rows"
            raise ValidationError(
                f"Join column '{key}' is not in the {where} (table '{table}'). Name a column that table and rows have; "
                f"the rows have {', '.join(rows.column_names)}.",
                table=table,
            )
        if pa.types.is_nested(rows.column(key).type):
            raise ValidationError(
                f"Join column '{key}' of '{table}' is a {rows.column(key).type}, which cannot be compared. "
                "Join by columns of single values.",
                table=table,
            )
        if nulls := rows.column(key).null_count:
            raise null_keys_error(table, key, rows=nulls)
    distinct = _key_values(rows, keys).group_by(list(keys)).aggregate([]).num_rows
    if distinct < rows.num_rows:
        raise repeated_keys_error(table, keys, rows=rows.num_rows - distinct)


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
        "Deduplicate the rows: an upsert cannot tell which of them to keep.",
        table=table,
    )


def plan_upsert(
    metadata: TableMetadata,
    io: FileIO,
    snapshot: Snapshot | None,
    rows: pa.Table,
    *,
    keys: Sequence[str],
    out: DataFileWriter,
    within: expr.BooleanExpression | None = None,
) -> tuple[FileChanges, UpsertCounts]:
    """Plan an upsert on one snapshot; new and changed rows go to `out`, which the caller finishes and adds.

    Columns that the rows lack keep their values. Files without a changed row are not rewritten.
    """
    within = within or expr.AlwaysTrue()
    target = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    source = rows.cast(pa.schema([target.field(name) for name in rows.column_names]))
    may_match = expr.And(within, _key_filter(source, keys)) if source.num_rows else expr.AlwaysFalse()
    changes = FileChanges.read(metadata, io, snapshot, may_hold=may_match)
    matched: list[pa.Array] = []
    updated = 0
    if snapshot is not None and source.num_rows:
        files = [entry.data_file for entry in changes.live_entries()]
        for task in tasks_for(metadata, io, snapshot, files, may_match):
            there = read_task(metadata, io, task).cast(target)
            here, at = _pairs(source, _inside(there, metadata.schema(), within), keys)
            matched.append(here)
            differs = _differs(
                source.take(here), there.take(at), [name for name in rows.column_names if name not in keys]
            )
            if pc.any(differs).as_py():
                updated += pc.sum(differs).as_py()
                changes.remove([task.file])
                changed_here, changed_at = here.filter(differs), at.filter(differs)
                out.write(ArrowRows(_without(there, changed_at)))
                out.write(ArrowRows(_updated(source.take(changed_here), there.take(changed_at), keys)))
    new = _without(source, pa.concat_arrays(matched)) if matched else source
    out.write(ArrowRows(new))
    return changes, UpsertCounts(new.num_rows, updated, sum(map(len, matched)) - updated)


def _key_filter(rows: pa.Table, keys: Sequence[str]) -> expr.BooleanExpression:
    """A filter that every row with one of the keys passes; it only serves to skip files."""
    filters: list[expr.BooleanExpression] = [expr.AlwaysTrue(), expr.AlwaysTrue()]
    for key in keys:
        column = rows.column(key)
        # PyIceberg finds no file by NaN, and compares a UUID with bytes.
        is_number_or_bool = pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)
        if is_number_or_bool or isinstance(column.type, pa.UuidType):
            continue
        distinct, term = column.unique(), expr.Reference(key)
        if len(distinct) <= _MOST_KEYS_LISTED:
            filters.append(expr.In(term=term, literals=set(map(literal, distinct.to_pylist()))))
        else:
            bounds = pc.min_max(column).as_py()
            filters.append(expr.GreaterThanOrEqual(term=term, value=literal(bounds["min"])))
            filters.append(expr.LessThanOrEqual(term=term, value=literal(bounds["max"])))
    return reduce(expr.And, filters)


def _inside(there: pa.Table, schema: Schema, within: expr.BooleanExpression) -> pa.Table:
    """Rows of a file that the upsert may touch, with their position in the file."""
    numbered = there.append_column(_THERE, _positions(there))
    if isinstance(within, expr.AlwaysTrue):
        return numbered
    return numbered.filter(mask_rows(there, schema, within))


def _pairs(source: pa.Table, there: pa.Table, keys: Sequence[str]) -> tuple[pa.Array, pa.Array]:
    """Positions, in the source and in the file, of rows with the same key."""
    left = _key_values(source, keys).append_column(_HERE, _positions(source))
    right = _key_values(there, keys).append_column(_THERE, there.column(_THERE))
    joined = left.join(right, keys=list(keys), join_type="inner")
    return joined.column(_HERE).combine_chunks(), joined.column(_THERE).combine_chunks()


def _differs(source: pa.Table, there: pa.Table, columns: Sequence[str]) -> pa.Array:
    """For each pair of rows, whether any column differs; NULL equals NULL and NaN equals NaN, but not 0.0 -0.0."""
    result = pa.repeat(value=False, size=source.num_rows)
    ours, theirs = comparable(source.select(columns)), comparable(there.select(columns))
    for name in columns:
        differs = _values_differ(ours.column(name).combine_chunks(), theirs.column(name).combine_chunks())
        result = pc.or_(result, differs)
    return result


def _values_differ(ours: pa.Array, theirs: pa.Array) -> pa.Array:
    if pa.types.is_nested(ours.type):
        # By their text, in which NaN equals NaN and 0.0 differs from -0.0.
        pairs = zip(map(repr, ours.to_pylist()), map(repr, theirs.to_pylist()), strict=True)
        return pa.array([mine != other for mine, other in pairs], pa.bool_())
    either_null = pc.xor(ours.is_null(), theirs.is_null())
    if pa.types.is_floating(ours.type):
        bits = pa.int32() if ours.type == pa.float32() else pa.int64()
        both_nan = pc.and_(pc.is_nan(ours), pc.is_nan(theirs))
        differs = pc.and_not(pc.not_equal(ours.view(bits), theirs.view(bits)), both_nan)
    else:
        differs = pc.not_equal(ours, theirs)
    return pc.or_(either_null, pc.fill_null(differs, fill_value=False))


def comparable(rows: pa.Table) -> pa.Table:
    """The rows with UUIDs as the bytes that they are stored as; Arrow compares no extension types."""
    fields = [
        field.with_type(field.type.storage_type) if isinstance(field.type, pa.BaseExtensionType) else field
        for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def _key_values(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The keys as SQL compares them: 0.0 equals -0.0, and NaN equals NaN. Arrow compares their bits."""
    values = comparable(rows.select(list(keys)))
    for number, field in enumerate(values.schema):
        if pa.types.is_floating(field.type):
            column = values.column(number)
            nan, zero = pa.scalar(math.nan, field.type), pa.scalar(0.0, field.type)
            # -0.0 + 0.0 is 0.0.
            values = values.set_column(number, field, pc.if_else(pc.is_nan(column), nan, pc.add(column, zero)))
    return values


def _updated(source: pa.Table, there: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The rows of the table with the values of the source; keys stay as they are in the table."""
    replaced = set(source.column_names) - set(keys)
    columns = [source.column(name) if name in replaced else there.column(name) for name in there.column_names]
    return pa.Table.from_arrays(columns, names=there.column_names)


def _without(rows: pa.Table, positions: pa.Array) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(_positions(rows), value_set=positions)))


def _positions(rows: pa.Table) -> pa.Array:
    return pa.arange(0, rows.num_rows)
