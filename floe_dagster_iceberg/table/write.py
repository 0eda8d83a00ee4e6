"""One write of rows: schema changes, removed rows and new files in one commit, or nothing at all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg.errors import CommitConflictError, CommitOutcomeUnknownError
from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.models.writing import EvolutionMode
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table._pyiceberg import AssertCurrentSchemaId, SnapshotProducer, TableTransaction
from floe_dagster_iceberg.table.arrow_rows import ArrowRows
from floe_dagster_iceberg.table.branches import fork_branch, head_of
from floe_dagster_iceberg.table.commit import CommitBudget, commit, new_snapshot_id, refresh
from floe_dagster_iceberg.table.data_files import DataFileWriter
from floe_dagster_iceberg.table.file_changes import FileChanges
from floe_dagster_iceberg.table.reconcile import ColumnChange, apply_changes, reconcile
from floe_dagster_iceberg.table.row_removal import remove_matching_rows
from floe_dagster_iceberg.table.scope import FilterScope, RowGuard, RowScope
from floe_dagster_iceberg.table.uncommitted import UncommittedFiles
from floe_dagster_iceberg.table.upsert import check_keys, plan_upsert

Plan = Callable[[TableMetadata, Snapshot | None], FileChanges]


@dataclass(frozen=True)
class RowWrite:
    """What is to be written, and how.

    Attributes:
        rows: The rows.
        mode: What happens to the rows that are there already.
        scope: The rows that an overwrite replaces, or that an upsert may touch.
        keys: Columns that match rows in an upsert.
        evolution: Schema changes that the rows may bring along.
        snapshot_properties: Kept in the summary of the snapshot.
        branch: Branch to write to.
        merge_manifests: Whether the commit folds small manifests together.
        sort_by: Columns by which the rows of a file are in order.
        properties: Table properties to set along with the rows; others stay.
        snapshot_id: Id of the snapshot to make.
    """

    rows: ArrowRows
    mode: WriteMode
    scope: RowScope = field(default_factory=lambda: FilterScope(AlwaysTrue()))
    keys: Sequence[str] = ()
    evolution: EvolutionMode = EvolutionMode.WIDEN
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    branch: str = MAIN_BRANCH
    merge_manifests: bool = False
    sort_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    snapshot_id: int = field(default_factory=new_snapshot_id)


@dataclass(frozen=True)
class RowsWritten:
    """What a write did.

    Attributes:
        table: The table as the write left it.
        snapshot: The snapshot it made.
        rows: Rows that were handed over and written.
        attempts: How often the commit was sent.
        schema_changes: What the rows changed in the schema.
        rows_outside: Rows that lay outside the scope, written or not.
        rows_dropped: Those of them that were left out.
        by_us: False when another process had made this very snapshot already.
    """

    table: Table
    snapshot: Snapshot
    rows: int | None = None
    attempts: int = 1
    schema_changes: tuple[str, ...] = ()
    rows_outside: int = 0
    rows_dropped: int = 0
    by_us: bool = True


@dataclass(frozen=True)
class PreparedFiles:
    """Files that are written already, and the version of the table they were written for."""

    metadata: TableMetadata
    writer: DataFileWriter
    guard: RowGuard


class _SchemaMovedError(Exception):
    """Another writer changed the schema or spec so that files already written do not fit any more."""


def write_rows(
    table: Table, write: RowWrite, budget: CommitBudget, *, prepared: PreparedFiles | None = None
) -> RowsWritten:
    """Write rows into a table in one commit.

    Args:
        table: The table as last seen.
        write: What is to be written.
        budget: How often to try against other writers.
        prepared: Files that hold the rows already, from an attempt to create this table.

    Raises:
        SchemaEvolutionError: The rows do not fit the table and may not change it.
        RowsOutsidePartitionError: Rows lie outside the scope, and that is an error.
        CommitConflictError: Other writers won, or changed the rows being replaced.
        CommitOutcomeUnknownError: The catalog went away in the middle; the files are left and listed.
        WriteError: Storage refused the files; those written are deleted.
    """
    name = ".".join(table.name())
    for attempt in range(1, budget.retries + 2):
        try:
            with UncommittedFiles(name, table.io) as files, translated(table.catalog.name, table=name):
                return _WriteRun(table, name, write, files, prepared).run(budget)
        except _SchemaMovedError:
            if not write.rows.replayable or attempt > budget.retries:
                break
            prepared = None
            refresh(table)
    raise CommitConflictError(
        name, attempts=attempt, reason="another writer changed the schema or partitioning meanwhile"
    )


class _WriteRun:
    """One run of a write against the schema that the table has now."""

    def __init__(
        self, table: Table, name: str, write: RowWrite, files: UncommittedFiles, prepared: PreparedFiles | None
    ) -> None:
        self._table, self._name, self._write, self._files = table, name, write, files
        self._changes = self._reconcile(table.metadata)
        self._target = self._with_changes(TableTransaction(table), self._changes)
        base = head_of(table.metadata, write.branch, name)
        self._base_id = base.snapshot_id if base is not None else None
        self._guard = write.scope.guard(name, self._target.schema())
        self._prepared = prepared
        self._rows: int | None = None

    def run(self, budget: CommitBudget) -> RowsWritten:
        snapshot_id = self._write.snapshot_id
        committed = commit(
            self._table,
            self._prepare(),
            budget=budget,
            snapshot_id=snapshot_id,
            on_lost_answer=self._files.keep_attempt,
        )
        snapshot = committed.table.metadata.snapshot_by_id(snapshot_id)
        if snapshot is None:
            raise CommitOutcomeUnknownError(self._name, snapshot_id=snapshot_id, reason="it is not in the answer")
        if not committed.by_us:
            self._files.discard()
        return RowsWritten(
            committed.table,
            snapshot,
            rows=self._rows,
            attempts=committed.attempts,
            schema_changes=tuple(str(change) for change in self._changes),
            rows_outside=self._guard.rows_outside,
            rows_dropped=self._guard.rows_dropped,
            by_us=committed.by_us,
        )

    def _prepare(self) -> Callable[[TableTransaction], None]:
        """Do what needs doing once, and return what each attempt does."""
        write = self._write
        rows = write.rows.sorted_by(write.sort_by).through(self._guard.admit)
        if write.mode is WriteMode.UPSERT:
            source = rows.to_table()
            self._guard.finish()
            self._rows = source.num_rows
            check_keys(self._name, self._target.schema(), source, write.keys)
            return partial(self._stage, plan=partial(self._plan_upsert, source))
        if self._prepared is not None:
            self._target, self._guard = self._prepared.metadata, self._prepared.guard
            return partial(self._stage, plan=partial(self._plan_replacement, self._prepared.writer))
        writer = self._files.open_writer(self._target, sort_by=write.sort_by)
        writer.write(rows)
        self._guard.finish()
        # They are encoded while the commit is being planned.
        writer.begin_finish()
        return partial(self._stage, plan=partial(self._plan_replacement, writer))

    def _stage(self, transaction: TableTransaction, *, plan: Plan) -> None:
        write = self._write
        self._files.next_attempt()
        changed = self._reconcile(transaction.table_metadata)
        metadata = self._with_changes(transaction, changed)
        if not files_fit(self._target, metadata):
            raise _SchemaMovedError
        if not changed:
            # A column that becomes required meanwhile must not get the NULLs that it allowed before.
            transaction.stage([], [AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id)])
        if missing := {key: value for key, value in write.properties.items() if metadata.properties.get(key) != value}:
            transaction.set_properties(missing)
        head = head_of(metadata, write.branch, self._name)
        fork_branch(transaction, write.branch, head)
        changes = plan(metadata, head)
        producer = SnapshotProducer(
            transaction,
            changes,
            operation=changes.operation,
            snapshot_id=write.snapshot_id,
            snapshot_properties=dict(write.snapshot_properties),
            branch=write.branch,
            merge_manifests=write.merge_manifests,
        )
        if write.mode is WriteMode.OVERWRITE:
            producer.validate_since(self._base_id, row_filter=write.scope.expression(metadata.schema()))
        producer.commit()
        self._files.send()

    def _plan_replacement(self, written: DataFileWriter, metadata: TableMetadata, head: Snapshot | None) -> FileChanges:
        replaces = self._write.mode is WriteMode.OVERWRITE
        where = self._write.scope.expression(metadata.schema()) if replaces else AlwaysFalse()
        rest = self._files.open_attempt_writer(metadata, sort_by=self._write.sort_by)
        changes = remove_matching_rows(metadata, self._table.io, head, where, rest)
        changes.added = [*written.finish(), *rest.finish()]
        self._rows = written.rows
        return changes

    def _plan_upsert(self, rows: pa.Table, metadata: TableMetadata, head: Snapshot | None) -> FileChanges:
        out = self._files.open_attempt_writer(metadata, sort_by=self._write.sort_by)
        within = self._write.scope.expression(metadata.schema())
        changes = plan_upsert(metadata, self._table.io, head, rows, keys=self._write.keys, out=out, within=within)
        changes.added = list(out.finish())
        return changes

    def _reconcile(self, metadata: TableMetadata) -> list[ColumnChange]:
        return reconcile(self._name, metadata.schema(), self._write.rows, mode=self._write.evolution)

    def _with_changes(self, transaction: TableTransaction, changes: list[ColumnChange]) -> TableMetadata:
        if changes:
            apply_changes(self._name, transaction, changes)
        return transaction.table_metadata


def files_fit(written_for: TableMetadata, now: TableMetadata) -> bool:
    """Whether files written for one version of the table are right in another."""
    if written_for.spec() != now.spec():
        return False
    before, after = written_for.schema(), now.schema()
    return all(
        field_id in after.field_ids
        and before.find_column_name(field_id) == after.find_column_name(field_id)
        and before.find_type(field_id) == after.find_type(field_id)
        and before.find_field(field_id).required >= after.find_field(field_id).required
        for field_id in before.field_ids
    )
