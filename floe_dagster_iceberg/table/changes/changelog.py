"""Changes read into Arrow: of replaced files only the rows that differ, a few files in memory at a time."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import FileScanTask

from floe_dagster_iceberg._pyiceberg.arrow_reader import FileReader
from floe_dagster_iceberg._pyiceberg.manifest_writer import PartitionKeys
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import ChangesMode
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.changes.plan import ChangesPlan, SnapshotChanges, read_everything
from floe_dagster_iceberg.table.changes.row_difference import RowDifference, key_columns
from floe_dagster_iceberg.table.filter.row_filter import compares_uuids, mask_rows
from floe_dagster_iceberg.table.names import table_name

CHANGE_TYPE: Final = "_change_type"
CHANGE_ORDINAL: Final = "_change_ordinal"
COMMIT_SNAPSHOT_ID: Final = "_commit_snapshot_id"
CHANGE_COLUMNS: Final = (CHANGE_TYPE, CHANGE_ORDINAL, COMMIT_SNAPSHOT_ID)
INSERT, DELETE, UPDATE_BEFORE, UPDATE_AFTER = "INSERT", "DELETE", "UPDATE_BEFORE", "UPDATE_AFTER"

_CHANGE_FIELDS: Final = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(CHANGE_ORDINAL, pa.int32(), nullable=False),
    pa.field(COMMIT_SNAPSHOT_ID, pa.int64(), nullable=False),
)
_DELETES: Final = "__deletes"
_INSERTS: Final = "__inserts"


@dataclass(frozen=True)
class ChangelogReader:
    """Reads the changes of a plan, in the table's current schema.

    Attributes:
        plan: What to read.
        row_filter: Rows to read.
        net_changes: Whether rows that come and go within the range are left out.
        identifier_columns: Columns that identify a row; a row that is deleted and inserted by one snapshot is then an
            update, with an image before and after.
    """

    plan: ChangesPlan
    row_filter: BooleanExpression = AlwaysTrue()  # noqa: RUF009 - it is immutable
    net_changes: bool = False
    identifier_columns: Sequence[str] = ()

    @property
    def schema(self) -> pa.Schema:
        """The table's columns and, in a changelog, those of the change."""
        return pa.schema([*self._rows, *_CHANGE_FIELDS]) if self._is_changelog else self._rows

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The changes, in the order of their snapshots."""
        table = self.plan.table
        with translate_errors(table.catalog.name, table=table_name(table)):
            is_net = self.net_changes and not self.plan.reads_everything
            for rows in self._net() if is_net else self._changes():
                yield from rows.cast(self.schema).to_batches()

    @property
    def _is_changelog(self) -> bool:
        return self.plan.mode is ChangesMode.CHANGELOG

    @property
    def _rows(self) -> pa.Schema:
        return schema_to_pyarrow(self.plan.table.schema(), include_field_ids=False)

    def _changes(self) -> Iterator[pa.Table]:
        if self.plan.reads_everything:
            for rows in self._read(read_everything(self.plan)):
                yield self._described(rows, INSERT, 0, self.plan.until)
        for ordinal, step in enumerate(self.plan.steps):
            changes = (
                self._described(rows, kind, ordinal, step.snapshot.snapshot_id) for kind, rows in self._of_step(step)
            )
            if self.identifier_columns:
                yield self._with_updates(pa.concat_tables([self.schema.empty_table(), *changes]))
            else:
                yield from changes

    def _net(self) -> Iterator[pa.Table]:
        tasks = (task for step in self.plan.steps for each in step.tasks() for task in each)
        with RowDifference(sum(task.file.record_count for task in tasks), self._rows.names) as difference:
            for rows in self._changes():
                is_insert = pc.equal(rows.column(CHANGE_TYPE), INSERT)
                difference.add(rows.filter(is_insert), 1)
                difference.add(rows.filter(pc.invert(is_insert)), -1)
            for sign, rows in difference.rows():
                kinds = pa.repeat(INSERT if sign > 0 else DELETE, rows.num_rows)
                yield rows.set_column(rows.column_names.index(CHANGE_TYPE), CHANGE_TYPE, kinds)

    def _of_step(self, step: SnapshotChanges) -> Iterator[tuple[str, pa.Table]]:
        """What changed in one snapshot; rows that it only moved to another file are left out."""
        before, after = step.tasks()
        for old, new in self._by_partition(before, after):
            if not old or not new:
                for rows in self._read(old or new):
                    yield (DELETE if old else INSERT), rows
                continue
            count = sum(task.file.record_count for task in (*old, *new))
            with RowDifference(count, self._rows.names) as difference:
                for tasks, sign in ((old, -1), (new, 1)):
                    for rows in self._read(tasks):
                        difference.add(rows, sign)
                for sign, rows in difference.rows():
                    yield (INSERT if sign > 0 else DELETE), rows

    def _by_partition(
        self, before: Sequence[FileScanTask], after: Sequence[FileScanTask]
    ) -> Iterable[tuple[list[FileScanTask], list[FileScanTask]]]:
        """Files whose rows are compared with each other: equal rows are in the same partition of a spec."""
        if len({task.file.spec_id for task in (*before, *after)}) > 1:
            return [([*before], [*after])]
        keys = PartitionKeys(self.plan.table.metadata)
        groups: dict[object, tuple[list[FileScanTask], list[FileScanTask]]] = {}
        for at, tasks in enumerate((before, after)):
            for task in tasks:
                groups.setdefault(keys.of(task.file), ([], []))[at].append(task)
        return groups.values()

    def _read(self, tasks: Iterable[FileScanTask]) -> Iterator[pa.Table]:
        table = self.plan.table
        schema, filters_itself = table.schema(), compares_uuids(table.schema(), self.row_filter)
        reader = FileReader(table.metadata, table.io, schema, AlwaysTrue() if filters_itself else self.row_filter)
        for batch in reader.stream(tasks):
            rows = pa.Table.from_batches([batch])
            if filters_itself:
                rows = rows.filter(mask_rows(rows, schema, self.row_filter))
            yield rows.cast(self._rows)

    def _described(self, rows: pa.Table, kind: str, ordinal: int, snapshot_id: int) -> pa.Table:
        if not self._is_changelog:
            return rows
        values = (kind, pa.scalar(ordinal, pa.int32()), snapshot_id)
        for field, value in zip(_CHANGE_FIELDS, values, strict=True):
            rows = rows.append_column(field, pa.repeat(value, rows.num_rows))
        return rows

    def _with_updates(self, changes: pa.Table) -> pa.Table:
        """The changes of one snapshot, in which a row that is deleted and inserted is an update."""
        keys = key_columns(changes.select(list(self.identifier_columns)))
        deletes = pc.equal(changes.column(CHANGE_TYPE), DELETE)
        counted = (
            keys.append_column(_DELETES, deletes.cast(pa.int64()))
            .append_column(_INSERTS, pc.invert(deletes).cast(pa.int64()))
            .group_by(keys.column_names)
            .aggregate([(_DELETES, "sum"), (_INSERTS, "sum")])
        )
        numbers = counted.column(f"{_DELETES}_sum"), counted.column(f"{_INSERTS}_sum")
        both = pc.and_(*(pc.greater(each, 0) for each in numbers))
        if pc.any(pc.and_(both, pc.or_(*(pc.greater(each, 1) for each in numbers)))).as_py():
            name = table_name(self.plan.table)
            raise ValidationError(
                f"Updates of '{name}' cannot be found: several rows of one snapshot share a key of "
                f"({', '.join(self.identifier_columns)}). Name columns that identify a row.",
                table=name,
            )
        return _replace_types(changes, keys, counted.filter(both).select(keys.column_names))


def _replace_types(changes: pa.Table, keys: pa.Table, updated: pa.Table) -> pa.Table:
    """The changes with update images for the keys that were updated."""
    marked = updated.append_column("__updated", pa.repeat(pa.scalar(1, pa.int8()), updated.num_rows))
    # A join drops the order and, of NULL keys, the match; grouping does neither.
    numbered = keys.append_column("__row", pa.arange(0, keys.num_rows))
    both = pa.concat_tables([numbered, marked], promote_options="default")
    groups = both.group_by(keys.column_names).aggregate([("__row", "list"), ("__updated", "max")])
    rows = pc.list_flatten(groups.filter(pc.is_valid(groups.column("__updated_max"))).column("__row_list"))
    is_update = pc.is_in(pa.arange(0, changes.num_rows), value_set=rows.combine_chunks().drop_null())
    types = changes.column(CHANGE_TYPE)
    images = pc.if_else(pc.equal(types, DELETE), UPDATE_BEFORE, UPDATE_AFTER)
    return changes.set_column(
        changes.column_names.index(CHANGE_TYPE), _CHANGE_FIELDS[0], pc.if_else(is_update, images, types)
    )
