"""Rows matching a filter, taken out of a table: whole files dropped, partially matching files rewritten."""

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg.table._pyiceberg import FileReader
from floe_dagster_iceberg.table._pyiceberg.planning import NullSafeScan
from floe_dagster_iceberg.table.arrow_rows import ArrowRows
from floe_dagster_iceberg.table.damaged_files import reading_files
from floe_dagster_iceberg.table.data_files import DataFileWriter
from floe_dagster_iceberg.table.file_changes import FileChanges
from floe_dagster_iceberg.table.file_matcher import FileMatcher
from floe_dagster_iceberg.table.row_mask import compares_uuids, mask_rows


def remove_matching_rows(
    metadata: TableMetadata,
    io: FileIO,
    snapshot: Snapshot | None,
    row_filter: BooleanExpression,
    open_writer: Callable[[], DataFileWriter],
) -> FileChanges:
    """Plan the removal of all rows matching a filter.

    Files whose rows all match are dropped unread. Of files where only some match, the rows
    that stay are written by a writer that is opened for them, and its files are added.
    """
    changes = FileChanges.read(metadata, io, snapshot, may_hold=row_filter)
    if isinstance(row_filter, AlwaysFalse) or not changes.opened:
        return changes
    partially_matching: list[DataFile] = []
    matches = FileMatcher(metadata, row_filter)
    for entry in changes.live_entries():
        # Most files that are looked at hold none of the rows, so that is asked first.
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
