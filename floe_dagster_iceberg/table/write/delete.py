"""Rows matching a filter removed: fully matching files dropped, partially matching ones rewritten."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg._pyiceberg.arrow_reader import FileReader
from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.manifest_reader import reading_files
from floe_dagster_iceberg._pyiceberg.scan_planner import NullSafeScan
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget, commit, new_snapshot_id
from floe_dagster_iceberg.table.commit.refs import fork_branch, head_of
from floe_dagster_iceberg.table.filter.file_pruning import FileMatcher
from floe_dagster_iceberg.table.filter.row_filter import compares_uuids, mask_rows
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.write.data_file_writer import DataFileWriter
from floe_dagster_iceberg.table.write.uncommitted_files import UncommittedFiles


def remove_matching_rows(
    metadata: TableMetadata,
    io: FileIO,
    snapshot: Snapshot | None,
    row_filter: BooleanExpression,
    open_writer: Callable[[], DataFileWriter],
) -> FileChanges:
    """Plan the removal of all rows matching a filter.

    Fully matching files are dropped unread. The remaining rows of partially matching files are written to new ones.
    """
    changes = FileChanges.read(metadata, io, snapshot, may_hold=row_filter)
    if isinstance(row_filter, AlwaysFalse) or not changes.opened:
        return changes
    partially_matching: list[DataFile] = []
    matches = FileMatcher(metadata, row_filter)
    for entry in changes.live_entries():
        # Most files hold none of the rows, so that is checked first.
        if matches.no_row(entry.data_file):
            continue
        if matches.all_rows(entry.data_file):
            changes.remove([entry.data_file])
        else:
            partially_matching.append(entry.data_file)
    if snapshot is not None and partially_matching:
        writer = open_writer()
        for task in tasks_for(metadata, io, snapshot, partially_matching, row_filter):
            rows = read_task(metadata, io, task)
            kept = rows.filter(pc.invert(mask_rows(rows, metadata.schema(), row_filter)))
            if kept.num_rows < rows.num_rows:
                changes.remove([task.file])
                writer.write(ArrowRows(kept))
        changes.added = writer.finish()
    return changes


def tasks_for(
    metadata: TableMetadata,
    io: FileIO,
    snapshot: Snapshot,
    files: Iterable[DataFile],
    row_filter: BooleanExpression,
) -> Iterator[FileScanTask]:
    """Scan tasks of some files, with the delete files that apply to them."""
    wanted = {file.file_path for file in files}
    where = AlwaysTrue() if compares_uuids(metadata.schema(), row_filter) else row_filter
    scan = NullSafeScan(table_metadata=metadata, io=io, row_filter=where, snapshot_id=snapshot.snapshot_id)
    return (task for task in scan.plan_files() if task.file.file_path in wanted)


def read_task(metadata: TableMetadata, io: FileIO, task: FileScanTask) -> pa.Table:
    """All live rows of one file, in the table's current schema."""
    scan = FileReader(table_metadata=metadata, io=io, projected_schema=metadata.schema(), row_filter=AlwaysTrue())
    with reading_files(metadata.location):
        return scan.to_table([task])


def delete_rows(
    table: Table,
    where: BooleanExpression,
    budget: CommitBudget,
    *,
    snapshot_properties: Mapping[str, str],
    branch: str = MAIN_BRANCH,
) -> Snapshot | None:
    """Delete all rows matching a filter; None when no row matches and nothing was committed."""
    name, snapshot_id = table_name(table), new_snapshot_id()
    with UncommittedFiles(name, table.io) as files, translate_errors(table.catalog.name, table=name):

        def stage(transaction: TableTransaction) -> None:
            files.next_attempt()
            metadata = transaction.table_metadata
            head = head_of(metadata, branch, name)
            open_writer = partial(files.open_writer, metadata, for_attempt=True)
            changes = remove_matching_rows(metadata, table.io, head, where, open_writer)
            if changes.removed:
                fork_branch(transaction, branch, head)
                SnapshotProducer(
                    transaction,
                    changes,
                    operation=changes.operation,
                    snapshot_id=snapshot_id,
                    snapshot_properties=dict(snapshot_properties),
                    branch=branch,
                ).commit()
                files.send()

        committed = commit(table, stage, budget=budget, snapshot_id=snapshot_id, on_lost_response=files.response_lost)
    return committed.table.metadata.snapshot_by_id(snapshot_id)
