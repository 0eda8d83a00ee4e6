"""Merges: rows matched by key, then inserted, updated, deleted or left in place, as the rules of the merge say.

An upsert is the merge whose rules are the keys alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

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
from floe_dagster_iceberg.models.writing import MergeRules
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.filter.row_filter import mask_rows
from floe_dagster_iceberg.table.write.data_file_writer import DataFileWriter
from floe_dagster_iceberg.table.write.delete import read_task, tasks_for
from floe_dagster_iceberg.table.write.merge_source import SelectedRows, comparable, key_values

_MOST_KEYS_LISTED: Final = 200
# No column of a table has these names.
_HERE, _THERE = "floe:here", "floe:there"


@dataclass(frozen=True)
class MergeCounts:
    """What a merge did.

    Attributes:
        inserted: Rows that are new in the table.
        updated: Rows of the table that changed.
        deleted: Rows of the table that went.
        unchanged: Rows of the data that changed nothing: equal to the table's, older, or not to be applied.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0

    @classmethod
    def of(cls, *, given: int, inserted: int, updated: int, deleted: int, missing: int) -> "MergeCounts":
        """The counts of rows that were given; `missing` of those that were deleted were not among them."""
        # Fewer than none if several rows of the table have one key.
        unchanged = max(0, given - inserted - updated - (deleted - missing))
        return cls(inserted, updated, deleted, unchanged)


@dataclass(frozen=True)
class _RowChanges:
    """What becomes of the rows of one file, by their positions in it.

    Attributes:
        matched: Positions of the rows of the source whose key is in the file.
        updated: Rows that change.
        by: For each of them, the position of the row of the source that changes it.
        deleted: Rows that a row of the source deletes.
        missing: Rows that are deleted because their key is not in the source.
    """

    matched: pa.Array
    updated: pa.Array
    by: pa.Array
    deleted: pa.Array
    missing: pa.Array

    @property
    def removed(self) -> pa.Array:
        """Rows that are not as they were."""
        return pa.concat_arrays([self.updated, self.deleted, self.missing])


def plan_merge(
    metadata: TableMetadata,
    io: FileIO,
    snapshot: Snapshot | None,
    selected: SelectedRows,
    *,
    rules: MergeRules,
    out: DataFileWriter,
    within: expr.BooleanExpression | None = None,
) -> tuple[FileChanges, MergeCounts]:
    """Plan a merge on one snapshot; new and changed rows go to `out`, which the caller finishes and adds.

    Columns that the rows lack keep their values. Files without a changed row are not rewritten.
    """
    within = within or expr.AlwaysTrue()
    target = schema_to_pyarrow(metadata.schema(), include_field_ids=False)
    # Rows that delete may have NULL in any column.
    wanted = [target.field(name).with_nullable(nullable=True) for name in selected.rows.column_names]
    source = selected.rows.cast(pa.schema(wanted))
    matcher = _Matcher(source, selected.deletes, rules)
    may_match = _files_of_interest(source, rules, within)
    changes = FileChanges.read(metadata, io, snapshot, may_hold=may_match)
    matched = [pa.array([], pa.int64())]
    updated = deleted = missing = 0
    if snapshot is not None and not isinstance(may_match, expr.AlwaysFalse):
        files = [entry.data_file for entry in changes.live_entries()]
        for task in tasks_for(metadata, io, snapshot, files, may_match):
            there = read_task(metadata, io, task).cast(target)
            found = matcher.match(there, _inside(there, metadata.schema(), within))
            matched.append(found.matched)
            if len(found.removed):
                updated += len(found.updated)
                deleted += len(found.deleted)
                missing += len(found.missing)
                changes.remove([task.file])
                out.write(ArrowRows(_without(there, found.removed)))
                out.write(ArrowRows(matcher.update(there.take(found.updated), found.by)))
    new = _without(source, pa.concat_arrays([*matched, _positions(source).filter(selected.deletes)]))
    out.write(ArrowRows(new))
    counts = MergeCounts.of(
        given=selected.given, inserted=new.num_rows, updated=updated, deleted=deleted + missing, missing=missing
    )
    return changes, counts


class _Matcher:
    """Compares the rows of a merge with those of one file after the other."""

    def __init__(self, source: pa.Table, deletes: pa.Array, rules: MergeRules) -> None:
        self._source, self._deletes, self._rules = source, deletes, rules
        self._keys = key_values(source, rules.keys).append_column(_HERE, _positions(source))
        self._updated = [name for name in rules.update_columns or source.column_names if name not in rules.keys]

    def match(self, there: pa.Table, inside: pa.Table) -> _RowChanges:
        """What becomes of the rows of a file, of which those `inside` may change."""
        here, at = self._pairs(inside)
        missing = pa.array([], pa.int64())
        if self._rules.on_missing == "delete":
            position = inside.column(_THERE).combine_chunks()
            missing = position.filter(pc.invert(pc.is_in(position, value_set=at)))
        ours, theirs = self._source.take(here), there.take(at)
        applies = pc.invert(_is_older(ours, theirs, self._rules.order_by))
        deletes = pc.and_(applies, self._deletes.take(here))
        updates = pa.repeat(value=False, size=len(here))
        if self._rules.on_match == "update":
            updates = pc.and_(pc.and_not(applies, self._deletes.take(here)), _differs(ours, theirs, self._updated))
        return _RowChanges(here, at.filter(updates), here.filter(updates), at.filter(deletes), missing)

    def update(self, rows: pa.Table, by: pa.Array) -> pa.Table:
        """Rows of the table with the values of the source; keys stay as they are in the table."""
        source = self._source.take(by)
        columns = [(source if name in self._updated else rows).column(name) for name in rows.column_names]
        return pa.Table.from_arrays(columns, names=rows.column_names)

    def _pairs(self, inside: pa.Table) -> tuple[pa.Array, pa.Array]:
        """Positions, in the source and in the file, of rows with the same key."""
        keys = key_values(inside, self._rules.keys)
        names, right = keys.column_names, keys.append_column(_THERE, inside.column(_THERE))
        joined = self._keys.join(right, keys=names, join_type="inner")
        return joined.column(_HERE).combine_chunks(), joined.column(_THERE).combine_chunks()


def _files_of_interest(source: pa.Table, rules: MergeRules, within: expr.BooleanExpression) -> expr.BooleanExpression:
    """A filter that every row which the merge may change passes."""
    if rules.on_missing == "delete":
        return within
    return expr.And(within, _key_filter(source, rules.keys)) if source.num_rows else expr.AlwaysFalse()


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
    """Rows of a file that the merge may touch, with their position in the file."""
    numbered = there.append_column(_THERE, _positions(there))
    if isinstance(within, expr.AlwaysTrue):
        return numbered
    return numbered.filter(mask_rows(there, schema, within))


def _is_older(ours: pa.Table, theirs: pa.Table, columns: Sequence[str]) -> pa.Array:
    """For each pair of rows, whether ours is older; NULL and NaN of the table are older than anything."""
    older = pa.repeat(value=False, size=ours.num_rows)
    ours, theirs = comparable(ours.select(columns)), comparable(theirs.select(columns))
    for name in reversed(columns):
        mine, other = ours.column(name).combine_chunks(), theirs.column(name).combine_chunks()
        less, equal = (pc.fill_null(compare(mine, other), fill_value=False) for compare in (pc.less, pc.equal))
        older = pc.or_(less, pc.and_(equal, older))
    return older


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


def _without(rows: pa.Table, positions: pa.Array) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(_positions(rows), value_set=positions)))


def _positions(rows: pa.Table) -> pa.Array:
    return pa.arange(0, rows.num_rows)
