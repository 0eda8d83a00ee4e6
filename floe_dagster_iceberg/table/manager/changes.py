"""The table manager's operations that read what changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyiceberg.table import Table

from floe_dagster_iceberg.errors import NoSuchTableError, ScanError, ValidationError
from floe_dagster_iceberg.models import ChangesMode, Cursor, RowFilter, SnapshotInfo
from floe_dagster_iceberg.table.changes.changelog import CHANGE_COLUMNS, ChangelogReader
from floe_dagster_iceberg.table.changes.cursors import cursor_key, newest_cursors
from floe_dagster_iceberg.table.changes.partitions import changed_partitions, changed_rows
from floe_dagster_iceberg.table.changes.plan import ChangesPlan, check_appends, plan_changes
from floe_dagster_iceberg.table.filter.row_filter import CheckedFilter, to_row_filter
from floe_dagster_iceberg.table.manager.base import table_attributes
from floe_dagster_iceberg.table.manager.scan import ScanOperations, refuse_foreign_columns, version_to_read
from floe_dagster_iceberg.table.names import TableRef, table_name, to_identifier
from floe_dagster_iceberg.telemetry import traced


@dataclass(frozen=True)
class TableChanges:
    """What changed in a table between two snapshots. Rows are read when they are asked for.

    Attributes:
        plan: The snapshots.
        options: Which rows of theirs, and how.
        columns: Columns to read; all if empty.
        partition_keys: The Dagster partitions of the upstream asset in which rows changed; empty if it has none, or if
            everything is read.
        whole_partitions: The filter for all rows of these; None if the upstream asset has no partitions.
    """

    plan: ChangesPlan
    options: ChangelogReader
    _manager: ScanOperations = field(repr=False)
    columns: Sequence[str] = ()
    partition_keys: Sequence[str] = ()
    whole_partitions: BooleanExpression | None = None

    @property
    def cursor(self) -> Cursor:
        """Where the reader stands when it has these changes: its snapshot is `since` of the next call."""
        return Cursor(table_uuid=str(self.plan.table.metadata.table_uuid), snapshot_id=self.plan.until)

    @property
    def snapshot_properties(self) -> dict[str, str]:
        """Properties for the snapshot that the reader writes, where `find_cursor` finds the cursor again."""
        return {cursor_key(table_name(self.plan.table)): str(self.cursor)}

    @property
    def reads_everything(self) -> bool:
        """Whether these are all rows of the table, for a reader that has none."""
        return self.plan.reads_everything

    @property
    def snapshots(self) -> list[SnapshotInfo]:
        """The snapshots that changed rows, in the order in which their changes are read."""
        return [SnapshotInfo.from_pyiceberg_snapshot(step.snapshot) for step in self.plan.steps]

    @property
    def partitions(self) -> list[Mapping[str, str]]:
        """The Iceberg partitions in which rows changed, as the names and values of their fields."""
        return changed_partitions(self.plan)

    @property
    def row_filter(self) -> BooleanExpression:
        """The filter for all rows of the partitions that changed: Dagster's if there are some, else Iceberg's."""
        return changed_rows(self.plan) if self.whole_partitions is None else self.whole_partitions

    def to_arrow(self) -> pa.Table:
        """Read the changes into memory."""
        return self.to_batches().read_all()

    def to_batches(self) -> pa.RecordBatchReader:
        """Read the changes as a stream.

        A snapshot that replaces files is compared with the one before it, partition by partition, in bounded memory.
        """
        if self.plan.mode is ChangesMode.PARTITIONS:
            where = CheckedFilter(And(self.row_filter, self.options.row_filter))
            return self._manager.scan_batches(
                self.plan.table, self.columns or None, where, snapshot_id=self.plan.until, current_columns=True
            )
        remedy = "Rows are compared by all columns: read the changes as a Spark DataFrame."
        refuse_foreign_columns(self.plan.table, self.plan.table.schema(), remedy=remedy)
        names = [*self.columns, *CHANGE_COLUMNS] if self.columns else self.options.schema.names
        wanted = [name for name in names if name in self.options.schema.names]
        schema = pa.schema([self.options.schema.field(name) for name in wanted])
        # Selected afterwards: rows are compared by all columns.
        batches = (batch.select(wanted) for batch in self.options.batches())
        return pa.RecordBatchReader.from_batches(schema, batches)


class ChangeOperations(ScanOperations):
    """Reading what changed between two snapshots."""

    @traced("scan_changes", table_attributes)
    def scan_changes(
        self,
        table: TableRef,
        since: int | Cursor | None = None,
        until: int | None = None,
        *,
        mode: ChangesMode | str = ChangesMode.CHANGELOG,
        columns: Sequence[str] | None = None,
        row_filter: RowFilter | CheckedFilter | None = None,
        ref: str | None = None,
        net_changes: bool = False,
        identifier_columns: Sequence[str] = (),
        limit: int | str | None = None,
    ) -> TableChanges:
        """Plan which changes to read; compaction and other rewrites of files are none.

        In a changelog, rows have `_change_type` (INSERT or DELETE), `_change_ordinal` (0 for the first snapshot) and
        `_commit_snapshot_id`, as in Spark's procedure `create_changelog_view`. A table that was rolled back yields
        the inverse of what was rolled back. Rows have the table's current columns.

        Args:
            table: The table.
            since: The snapshot that the reader has already, or its cursor; all rows are read if not given.
            until: The last snapshot to read; the newest of main if not given.
            mode: `appends`, `changelog`, or `partitions`: all rows of the partitions that changed.
            columns: Columns to read; all if not given.
            row_filter: Rows to read, as text or PyIceberg expression; all if not given.
            ref: A branch or tag whose newest snapshot is `until`.
            net_changes: Leave out rows that come and go within the range; only for a changelog.
            identifier_columns: Columns that identify a row. A row that one snapshot deletes and inserts is then
                UPDATE_BEFORE and UPDATE_AFTER; only for a changelog.
            limit: Read at most this many snapshots, or a size of added files such as "10GB", but at least one
                snapshot. The rest comes after the `cursor` of the result.

        Raises:
            NoSuchTableError: There is no such table.
            ValidationError: The table has no snapshot, rows were not only appended, or arguments do not fit.
            SnapshotNotFoundError: There is no such snapshot, branch or tag.
            ScanError: Snapshots of the range have expired, the cursor is that of an earlier table of the same name,
                or, while rows are read, a file cannot be read.
            EngineCapabilityError: While rows are read: the table has equality deletes, or a column of a type that only
                Spark can read.
        """
        loaded = self._load(table)
        name = table_name(loaded)
        check_options(
            name,
            mode := to_mode(name, mode),
            net_changes=net_changes,
            identifier_columns=identifier_columns,
            filters=row_filter is not None,
            known=loaded.schema().column_names,
            columns=columns or (),
        )
        head = version_to_read(loaded, snapshot_id=until, as_of=None, ref=ref)
        position = _snapshot_of(loaded, since) if isinstance(since, Cursor) else since
        plan = plan_changes(loaded, mode=mode, since=position, until=head).limited(limit)
        check_appends(plan)
        if isinstance(row_filter, CheckedFilter):
            where = row_filter.expression
        else:
            where = AlwaysTrue() if row_filter is None else to_row_filter(loaded, row_filter)
        options = ChangelogReader(plan, where, net_changes, tuple(identifier_columns))
        return TableChanges(plan, options, self, tuple(columns or ()))

    @traced("find_cursor", table_attributes)
    def find_cursor(self, table: TableRef, source: TableRef) -> Cursor | None:
        """How far the snapshots of a table's main branch have read another table; None if they have not.

        Args:
            table: The table that is written from the changes of another; it may not exist yet.
            source: The table whose changes are read.
        """
        try:
            metadata = self._load(table).metadata
        except NoSuchTableError:
            return None
        found = newest_cursors(metadata).get(str(to_identifier(source)))
        return None if found is None else found[0]


def _snapshot_of(table: Table, cursor: Cursor) -> int:
    if cursor.table_uuid != str(table.metadata.table_uuid):
        name = table_name(table)
        raise ScanError(
            f"Table '{name}' was dropped and created again since its changes were read, so it is unknown what changed. "
            "Read everything again, with the run tag 'iceberg/full_refresh'.",
            table=name,
        )
    return cursor.snapshot_id


def to_mode(table: str, mode: ChangesMode | str) -> ChangesMode:
    """The mode of a name.

    Raises:
        ValidationError: There is no such mode.
    """
    try:
        return ChangesMode(mode)
    except ValueError:
        known = ", ".join(ChangesMode)
        raise ValidationError(
            f"Changes of '{table}' cannot be read as '{mode}'. Use one of: {known}.", table=table
        ) from None


def check_options(
    table: str,
    mode: ChangesMode,
    *,
    net_changes: bool,
    identifier_columns: Sequence[str],
    filters: bool,
    known: Sequence[str],
    columns: Sequence[str] = (),
) -> None:
    """Refuse options that do not fit the mode, each other or the table.

    Raises:
        ValidationError: It says which.
    """
    given: dict[str, Any] = {"net_changes": net_changes, "identifier_columns": identifier_columns}
    asked = [word for word, value in given.items() if value]
    if asked and mode is not ChangesMode.CHANGELOG:
        raise ValidationError(f"{asked[0]} is for a changelog of '{table}', not for {mode}.", table=table)
    if len(asked) > 1:
        raise ValidationError(
            f"Changes of '{table}' are either net changes or have update images, as in Spark. Choose one.", table=table
        )
    if identifier_columns and filters:
        raise ValidationError(
            f"Update images of '{table}' cannot be filtered: a filter may match one of the two. Filter the result.",
            table=table,
        )
    if missing := [column for column in (*identifier_columns, *columns) if column not in known]:
        raise ValidationError(
            f"Table '{table}' has no column {', '.join(map(repr, missing))}. It has: {', '.join(known)}.", table=table
        )
