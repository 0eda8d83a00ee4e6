"""One write of rows: schema changes, removed rows and new files in one commit, or nothing at all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from pyiceberg.expressions import AlwaysFalse, BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertCurrentSchemaId

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, summary_property
from floe_dagster_iceberg.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    EngineCapabilityError,
    SchemaEvolutionError,
    ValidationError,
)
from floe_dagster_iceberg.models import PartitionSpec, SnapshotInfo, TableIdentifier, WriteMode, snapshot_properties
from floe_dagster_iceberg.models.writing import DEFAULT_FORMAT_VERSION, FORMAT_VERSION, EvolutionMode, MergeRules
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import (
    CommitBudget,
    Committed,
    commit,
    refresh,
    refuse_newer_format,
    snapshot_id_for,
)
from floe_dagster_iceberg.table.commit.refs import fork_branch, head_of
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.properties import check_properties
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout
from floe_dagster_iceberg.table.schema.reconcile import ColumnChange, apply_changes, integers_for_floats, reconcile
from floe_dagster_iceberg.table.write.data_file_writer import DataFileWriter
from floe_dagster_iceberg.table.write.delete import files_to_leave, remove_matching_rows
from floe_dagster_iceberg.table.write.merge import MergeCounts, plan_merge
from floe_dagster_iceberg.table.write.merge_source import MergeSource, SelectedRows
from floe_dagster_iceberg.table.write.row_scope import PartitionCheck, RowScope
from floe_dagster_iceberg.table.write.uncommitted_files import UncommittedFiles

Layout = PartitionLayout | PartitionSpec
_EQUALITY_DELETES: Final = "total-equality-deletes"
_TOTAL_RECORDS: Final = "total-records"


@dataclass(frozen=True)
class TableWrite:
    """A write of rows into one table; the same for every engine.

    Attributes:
        table: The table.
        mode: What happens to existing rows.
        scope: The rows that an overwrite replaces, or that an upsert may touch.
        idempotency_key: Identifies this piece of work: the same key is never written twice.
        layout: Partitioning of a new table, or a function that computes it when it is needed.
        merge: What an upsert does.
        evolution: Schema changes that the rows may cause.
        properties: Table properties to set; others stay.
        default_properties: Table properties of a new table, below `properties`.
        snapshot_properties: Properties of the snapshot summary.
        branch: Branch to write to.
        merge_manifests: Whether the commit merges small manifests.
        sort_by: Columns by which the rows of each file are sorted; `write_once` sorts the rows of a table.
        column_docs: Descriptions of columns, which become their docs in the table.
        create: Whether a missing table, and its namespace, is created.
        last_write_wins: Whether an overwrite also replaces rows that others committed after it began.
        format_version: Format version of a new table; an existing one keeps its own.
        is_format_version_set: Whether someone asked for that version.
        environment: The environment that the branch belongs to; such a write changes nothing that branches share.
        precondition: Checks the newest version of the table and the branch for each attempt, and raises
            CommitConflictError if the rows do not fit it. The commit fails if the branch moves after that.
    """

    table: TableIdentifier
    mode: WriteMode
    scope: RowScope = field(default_factory=RowScope)
    idempotency_key: str | None = None
    layout: Layout | Callable[[], Layout] = field(default_factory=PartitionLayout)
    merge: MergeRules = field(default_factory=MergeRules)
    evolution: EvolutionMode = EvolutionMode.WIDEN
    properties: Mapping[str, str] = field(default_factory=dict)
    default_properties: Mapping[str, str] = field(default_factory=dict)
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    branch: str = MAIN_BRANCH
    merge_manifests: bool = False
    sort_by: Sequence[str] = ()
    column_docs: Mapping[str, str] = field(default_factory=dict)
    create: bool = True
    last_write_wins: bool = False
    format_version: int = DEFAULT_FORMAT_VERSION
    is_format_version_set: bool = False
    environment: str | None = None
    precondition: Callable[[TableMetadata, str], None] | None = None

    @property
    def summary_properties(self) -> dict[str, str]:
        """The snapshot properties, with the key that identifies the write, and its mode unless that is an append."""
        key = {} if self.idempotency_key is None else {snapshot_properties.IDEMPOTENCY_KEY: self.idempotency_key}
        mode = {} if self.mode is WriteMode.APPEND else {snapshot_properties.WRITE_MODE: self.mode.value}
        return {**self.snapshot_properties, **key, **mode}


@dataclass(frozen=True)
class TableWriteResult:
    """The result of a write.

    Attributes:
        table: The table after the write.
        snapshot: The snapshot of this write, or of an earlier attempt at it.
        rows: Number of written rows.
        attempts: How often the commit was sent.
        schema_changes: Changes of the schema that the rows caused.
        rows_outside: Rows outside the scope, written or not.
        rows_dropped: Those of them that were dropped.
        created: Whether the table is new.
        deduplicated: Whether another attempt at the same work made the snapshot, so that nothing was written.
        merged: What an upsert did, if that is known.
        handed_over: Why Spark wrote Arrow rows, if it did.
    """

    table: Table
    snapshot: SnapshotInfo
    rows: int | None = None
    attempts: int = 1
    schema_changes: tuple[str, ...] = ()
    rows_outside: int = 0
    rows_dropped: int = 0
    created: bool = False
    deduplicated: bool = False
    merged: MergeCounts | None = None
    handed_over: str | None = None


@dataclass(frozen=True)
class PreparedFiles:
    """Files that are written already, the table metadata they were written for, and how many rows were given."""

    metadata: TableMetadata
    writer: DataFileWriter
    check: PartitionCheck
    given: int


def check_write(table: Table | None, write: TableWrite) -> None:
    """Refuse a write that PyIceberg certainly cannot do, before rows are read; `table` is None for a new one.

    Raises:
        EngineCapabilityError: Of the format version, or of equality deletes that an upsert would have to read.
    """
    refuse_newer_format(write.table, write.format_version if table is None else table.metadata.format_version)
    if table is not None and write.mode is WriteMode.UPSERT:
        _refuse_equality_deletes(table, write.branch)


def _refuse_equality_deletes(table: Table, branch: str) -> None:
    """By the summary of the newest snapshot; where it says nothing, planning finds them."""
    name = table_name(table)
    head = head_of(table.metadata, branch, name)
    count = None if head is None else summary_property(head, _EQUALITY_DELETES)
    if count is not None and count != "0":
        raise EngineCapabilityError(
            f"Table '{name}' has equality deletes, which only Spark can read. Give the IO manager an "
            "IcebergSparkResource (pyspark), or use the table manager of one.",
            engine="arrow",
            table=name,
            reason="the table has equality deletes, which only Spark can read",
        )


class _SchemaMovedError(Exception):
    """Another writer changed the schema or spec, so that the written files no longer fit."""


def write_rows(
    table: Table, rows: ArrowRows, write: TableWrite, budget: CommitBudget, *, prepared: PreparedFiles | None = None
) -> TableWriteResult:
    """Write rows into a table in one commit.

    Args:
        table: The table as last seen.
        rows: The rows.
        write: How they are written.
        budget: How often to try against other writers.
        prepared: Files with the rows, written in an attempt to create this table.

    Raises:
        SchemaEvolutionError: The rows do not fit the table and may not change it.
        RowsOutsidePartitionError: Rows lie outside the scope, and that is an error.
        CommitConflictError: Other writers won, or changed the rows being replaced.
        CommitOutcomeUnknownError: The catalog became unreachable; the files are kept and listed.
        WriteError: Storage refused the files; those written are deleted.
        EngineCapabilityError: PyIceberg does not write the table's format version.
        ValidationError: A table property has a value that cannot be used.
    """
    name, snapshot_id = str(write.table), snapshot_id_for(write.idempotency_key, table.metadata)
    # Also if `check_write` came before: another process may have created this table since.
    refuse_newer_format(name, table.metadata.format_version)
    for attempt in range(1, budget.retries + 2):
        try:
            with UncommittedFiles(name, table.io) as files, translate_errors(table.catalog.name, table=name):
                run = _WriteRun(table, name, rows, write, files)
                return run.commit(budget, snapshot_id, prepared)
        except _SchemaMovedError:
            if not rows.replayable or attempt > budget.retries:
                break
            prepared = None
            refresh(table)
    raise CommitConflictError(
        name, attempts=attempt, reason="another writer changed the schema or partitioning meanwhile"
    )


class _WriteRun:
    """One run of a write against the schema that the table has now."""

    def __init__(self, table: Table, name: str, rows: ArrowRows, write: TableWrite, files: UncommittedFiles) -> None:
        self._table, self._name, self._rows, self._write, self._files = table, name, rows, write, files
        self._head = head_of(table.metadata, write.branch, name)
        if floats := integers_for_floats(table.metadata.schema(), rows.columns):
            rows.store_integers_as(floats)
        self._merge = (
            MergeSource(name, rows, write.merge, table.metadata.schema()) if write.mode is WriteMode.UPSERT else None
        )
        self._planned_on = self._target = table.metadata
        self._changes = self._reconcile(table.metadata)
        if self._changes or write.properties:
            planned = TableTransaction(table)
            if self._changes:
                apply_changes(name, planned, self._changes)
            stage_properties(planned, write.properties)
            self._target = planned.table_metadata
        check_properties(self._target.properties, name)
        self._check = PartitionCheck(write.scope, name, self._target.schema())
        self._selected: SelectedRows | None = None
        self._merged: MergeCounts | None = None

    def commit(self, budget: CommitBudget, snapshot_id: int, prepared: PreparedFiles | None) -> TableWriteResult:
        if self._merge is not None:
            self._selected = self._merge.select(self._check, self._target.schema())
        elif prepared is not None:
            self._target, self._writer, self._check = prepared.metadata, prepared.writer, prepared.check
        else:
            self._writer = self._files.open_writer(self._target, sort_by=self._write.sort_by)
            self._writer.write(self._rows, self._check.filter)
            self._check.finish()
            # They are encoded while the commit is planned.
            self._writer.begin_finish()
        committed = commit(
            self._table,
            partial(self._stage, snapshot_id),
            budget=budget,
            snapshot_id=snapshot_id,
            on_lost_response=self._files.response_lost,
        )
        if not committed.committed_by_this_process:
            self._files.discard()
        return TableWriteResult(
            committed.table,
            committed_snapshot(committed, snapshot_id),
            rows=self._writer.rows if self._selected is None else self._selected.given,
            attempts=committed.attempts,
            schema_changes=tuple(map(str, self._changes)),
            rows_outside=self._check.rows_outside,
            rows_dropped=self._check.rows_dropped,
            deduplicated=not committed.committed_by_this_process,
            merged=self._merged if committed.committed_by_this_process else None,
        )

    def _stage(self, snapshot_id: int, transaction: TableTransaction) -> None:
        write, head = self._write, self._head
        self._files.next_attempt()
        metadata, changes = transaction.table_metadata, self._changes
        if write.precondition is not None:
            write.precondition(metadata, write.branch)
        if metadata is not self._planned_on:
            changes = self._reconcile(metadata)
            head = head_of(metadata, write.branch, self._name)
        if changes:
            apply_changes(self._name, transaction, changes)
            metadata = transaction.table_metadata
        else:
            # A column that another writer makes required must not get NULLs.
            transaction.stage([], [AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id)])
        if metadata is not self._target and not files_fit(self._target, metadata):
            raise _SchemaMovedError
        if write.properties:
            stage_properties(transaction, write.properties)
        if write.branch != MAIN_BRANCH:
            fork_branch(transaction, write.branch, head)
        where = AlwaysFalse() if write.mode is WriteMode.APPEND else write.scope.expression(metadata.schema())
        unseen: frozenset[str] = frozenset()
        if write.mode is WriteMode.OVERWRITE and not write.last_write_wins:
            asset_key = write.snapshot_properties.get(snapshot_properties.ASSET_KEY)
            unseen = files_to_leave(
                transaction, write.branch, seen=self._head, head=head, row_filter=where, asset_key=asset_key
            )
        planned = self._plan(metadata, head, where, unseen)
        producer = SnapshotProducer(
            transaction,
            planned,
            operation=planned.operation,
            snapshot_id=snapshot_id,
            snapshot_properties=write.summary_properties,
            branch=write.branch,
            merge_manifests=write.merge_manifests,
        )
        producer.commit()
        self._files.send()

    def _plan(
        self, metadata: TableMetadata, head: Snapshot | None, where: BooleanExpression, unseen: frozenset[str]
    ) -> FileChanges:
        io, sort_by = self._table.io, self._write.sort_by
        open_writer = partial(self._files.open_writer, metadata, sort_by=sort_by, for_attempt=True)
        if self._selected is not None:
            out = open_writer()
            changes, self._merged = plan_merge(
                metadata, io, head, self._selected, rules=self._write.merge, out=out, within=where
            )
            changes.added = out.finish()
        else:
            changes = remove_matching_rows(metadata, io, head, where, open_writer, leave=unseen)
            changes.added = [*self._writer.finish(), *changes.added]
        return changes

    def _reconcile(self, metadata: TableMetadata) -> list[ColumnChange]:
        stored = self._rows if self._merge is None else self._merge.stored
        changes = reconcile(
            self._name,
            metadata.schema(),
            stored.columns,
            null_count=(self._rows if self._merge is None else self._merge).null_count,
            mode=self._write.evolution,
            docs=docs_to_write(self._write, metadata),
        )
        refuse_shared_changes(self._write, metadata, changes)
        return changes


def committed_snapshot(committed: Committed, snapshot_id: int) -> SnapshotInfo:
    """The snapshot that a commit made.

    Raises:
        CommitOutcomeUnknownError: The table does not have it.
    """
    snapshot = committed.table.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        name = table_name(committed.table)
        raise CommitOutcomeUnknownError(name, snapshot_id=snapshot_id, reason="it is not in the response")
    return SnapshotInfo.from_pyiceberg_snapshot(snapshot)


def stage_properties(transaction: TableTransaction, properties: Mapping[str, str]) -> None:
    """Stage the table properties that the table lacks or has with another value."""
    if changed := _changed_properties(transaction.table_metadata, properties):
        transaction.set_properties(changed)


def _changed_properties(metadata: TableMetadata, properties: Mapping[str, str]) -> dict[str, str]:
    """Without the format version: it is no property of the table, and setting it would upgrade the table."""
    present = metadata.properties
    return {key: value for key, value in properties.items() if present.get(key) != value and key != FORMAT_VERSION}


def docs_to_write(write: TableWrite, metadata: TableMetadata) -> Mapping[str, str]:
    """The descriptions of columns; none in an environment, where they would change the table for everyone."""
    return write.column_docs if _may_change_table(write, metadata) else {}


def refuse_shared_changes(write: TableWrite, metadata: TableMetadata, changes: Sequence[ColumnChange]) -> None:
    """Refuse a write of an environment that would change what all branches of a table share.

    Raises:
        SchemaEvolutionError: It would change the schema.
        ValidationError: It would change table properties.
    """
    if _may_change_table(write, metadata):
        return
    shared = f"which branch '{write.branch}' shares with '{MAIN_BRANCH}'. Nothing was written. "
    if changes:
        raise SchemaEvolutionError(
            f"A write of environment '{write.environment}' would change the schema of '{write.table}' "
            f"({'; '.join(map(str, changes))}), {shared}Change the schema first, with evolve_schema() of the table "
            "manager or by a run without an environment, or leave the columns as they are.",
            table=write.table,
        )
    if names := sorted(_changed_properties(metadata, write.properties)):
        raise ValidationError(
            f"A write of environment '{write.environment}' would change properties of '{write.table}' "
            f"({', '.join(names)}), {shared}Set them by a run without an environment, or leave them as they are.",
            table=write.table,
        )


def _may_change_table(write: TableWrite, metadata: TableMetadata) -> bool:
    """Whether a write may change schema and properties: in production, or if only its environment has rows."""
    if write.environment is None:
        return True
    main = metadata.current_snapshot()
    is_empty = main is None or (main.parent_snapshot_id is None and summary_property(main, _TOTAL_RECORDS) == "0")
    return is_empty and metadata.refs.keys() <= {MAIN_BRANCH, write.branch}


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
