"""Writes that happen exactly once: a new table, an existing one, or a write that is committed already."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg._pyiceberg.transaction import CreateTransaction, find_snapshot
from floe_dagster_iceberg.errors import (
    EngineCapabilityError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from floe_dagster_iceberg.models import SnapshotInfo, WriteMode, snapshot_properties
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget, NewTable, commit, load_table_or_none, snapshot_id_for
from floe_dagster_iceberg.table.write import create_table, write as writes
from floe_dagster_iceberg.table.write.handover import HandoverProvider, hand_over
from floe_dagster_iceberg.table.write.merge import MergeCounts
from floe_dagster_iceberg.table.write.merge_source import MergeSource
from floe_dagster_iceberg.table.write.row_scope import PartitionCheck
from floe_dagster_iceberg.table.write.uncommitted_files import UncommittedFiles
from floe_dagster_iceberg.table.write.write import PreparedFiles, TableWrite, TableWriteResult


def find_committed_write(metadata: TableMetadata, branch: str, key: str | None) -> Snapshot | None:
    """The snapshot in a branch's history that has a key; a write that was rolled back does not count."""
    return None if key is None else find_snapshot(metadata, branch, {snapshot_properties.IDEMPOTENCY_KEY: {key}})


def write_once(
    catalog: Catalog, rows: ArrowRows, write: TableWrite, budget: CommitBudget, handover: HandoverProvider | None = None
) -> TableWriteResult:
    """Write rows into their table in one commit.

    A failure leaves no table, no column, no snapshot and no file. Repeating a committed write writes nothing.

    Args:
        catalog: The catalog.
        rows: The rows.
        write: How they are written.
        budget: How often to try against other writers.
        handover: Does what PyIceberg cannot.

    Raises:
        NoSuchTableError: The table is missing and may not be created.
        EngineCapabilityError: PyIceberg cannot do it, and there is no handover.
        SchemaEvolutionError: The rows do not fit the table and may not change it.
        RowsOutsidePartitionError: Rows lie outside the partitions, and that is an error.
        CommitConflictError: Other writers won, or changed the rows being replaced.
        CommitOutcomeUnknownError: The catalog became unreachable during the commit.
    """
    table = load_table_or_none(catalog, write.table)
    if table is None and not write.create:
        raise NoSuchTableError(write.table)
    if write.mode is WriteMode.UPSERT:
        # Keys are compared with each other and with the table, so the rows are read more than once. Not before the
        # table is loaded: a repair of its metadata repeats the write, and a stream is read only once.
        rows = ArrowRows(rows.to_table())
    try:
        writes.check_write(table, write)
        if write.sort_by:
            write = replace(write, sort_by=sort_columns(rows.columns, write, table))
            rows = rows.sorted_by(write.sort_by)
        if table is None:
            return _create(catalog, rows, write, budget)
        return _into_existing(table, rows, write, budget)
    except EngineCapabilityError as limit:
        # An earlier attempt may have committed before the table became one that PyIceberg cannot write.
        if table is not None and (written := already_written(table, write)) is not None:
            return written
        spark, reason = hand_over(limit, handover, possible=rows.readable)
    return replace(spark.write(catalog, rows, write, budget, loaded=table), handed_over=reason)


def sort_columns(rows: pa.Schema, write: TableWrite, table: Table | None) -> Sequence[str]:
    """The sort columns that the rows have with a type; the others are NULL in every row."""
    known = {*rows.names, *(table.schema().column_names if table is not None else ())}
    if unknown := [column for column in write.sort_by if column not in known]:
        raise ValidationError(
            f"Sort column '{unknown[0]}' of '{write.table}' does not exist. The rows have: {', '.join(rows.names)}.",
            table=write.table,
        )
    typed = {column.name for column in rows if not pa.types.is_null(column.type)}
    return [column for column in write.sort_by if column in typed]


def already_written(table: Table, write: TableWrite) -> TableWriteResult | None:
    """The result of a write that an earlier attempt committed; None if there is none."""
    earlier = find_committed_write(table.metadata, write.branch, write.idempotency_key)
    if earlier is None:
        return None
    return TableWriteResult(table, SnapshotInfo.from_pyiceberg_snapshot(earlier), attempts=0, deduplicated=True)


def _into_existing(
    table: Table, rows: ArrowRows, write: TableWrite, budget: CommitBudget, *, prepared: PreparedFiles | None = None
) -> TableWriteResult:
    return already_written(table, write) or writes.write_rows(table, rows, write, budget, prepared=prepared)


def _create(catalog: Catalog, rows: ArrowRows, write: TableWrite, budget: CommitBudget) -> TableWriteResult:
    """Create the table with its first rows, or write into the one that another process has created."""
    name, snapshot_id = str(write.table), snapshot_id_for(write.idempotency_key, None)
    merge = MergeSource(name, rows, write.merge, None) if write.mode is WriteMode.UPSERT else None
    stage = partial(create_table.open_new_table, catalog, (rows if merge is None else merge.stored).data_schema, write)
    with translate_errors(catalog.name, table=name):
        create_table.check_new_table(catalog, write.table)
        create_table.ensure_namespace(catalog, write.table.namespace_parts)
        try:
            staged = NewTable(catalog, write.table, stage).open()
        except TableAlreadyExistsError:
            # A REST catalog refuses to stage a table that another process has created since it was looked up.
            if (table := load_table_or_none(catalog, write.table)) is None:
                raise
            return _into_existing(table, rows, write, budget)
        with UncommittedFiles(name, staged.table.io) as files, translate_errors(catalog.name, table=name):
            prepared = _prepare(staged, rows if merge is None else merge, write, files)
            first = partial(
                create_table.stage_first_snapshot, write=write, snapshot_id=snapshot_id, prepared=prepared, files=files
            )
            unused = [staged]
            committed = commit(
                # Staged once more only for another attempt.
                NewTable(catalog, write.table, lambda: unused.pop() if unused else stage()),
                first,
                budget=budget,
                snapshot_id=snapshot_id,
                on_lost_response=files.response_lost,
            )
            if committed.committed_by_this_process:
                return TableWriteResult(
                    committed.table,
                    writes.committed_snapshot(committed, snapshot_id),
                    rows=prepared.given,
                    attempts=committed.attempts,
                    rows_outside=prepared.check.rows_outside,
                    rows_dropped=prepared.check.rows_dropped,
                    created=True,
                    merged=None
                    if merge is None
                    else MergeCounts(inserted=prepared.writer.rows, unchanged=prepared.given - prepared.writer.rows),
                )
            if not rows.replayable:
                result = _into_existing(committed.table, rows, write, budget, prepared=prepared)
                if result.deduplicated:
                    files.discard()
                return result
            files.discard()
    return _into_existing(committed.table, rows, write, budget)


def _prepare(
    transaction: CreateTransaction, rows: ArrowRows | MergeSource, write: TableWrite, files: UncommittedFiles
) -> PreparedFiles:
    metadata, name = transaction.table_metadata, str(write.table)
    check = PartitionCheck(write.scope, name, metadata.schema())
    if isinstance(rows, MergeSource):
        selected = rows.select(check, metadata.schema())
        writer = files.open_writer(metadata, sort_by=write.sort_by)
        writer.write(ArrowRows(selected.first_rows))
    else:
        selected = None
        writer = files.open_writer(metadata, sort_by=write.sort_by)
        writer.write(rows, check.filter)
        check.finish()
    writer.finish()
    return PreparedFiles(metadata, writer, check, writer.rows if selected is None else selected.given)
