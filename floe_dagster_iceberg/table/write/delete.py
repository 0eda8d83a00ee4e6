"""Rows matching a filter removed: fully matching files dropped, partially matching ones rewritten.

Rows that other writers committed after an overwrite began are kept or a conflict, by the table's isolation level.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import IsolationLevel, Snapshot

from floe_dagster_iceberg._pyiceberg.arrow_reader import FileReader
from floe_dagster_iceberg._pyiceberg.file_changes import ConcurrentChanges, FileChanges
from floe_dagster_iceberg._pyiceberg.manifest_reader import reading_files
from floe_dagster_iceberg._pyiceberg.scan_planner import NullSafeScan
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, summary_property
from floe_dagster_iceberg.errors import CommitConflictError, ValidationError
from floe_dagster_iceberg.models import snapshot_properties
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget, commit, new_snapshot_id, refuse_newer_format
from floe_dagster_iceberg.table.commit.refs import fork_branch, head_of
from floe_dagster_iceberg.table.filter.row_filter import FileMatcher, compares_uuids, mask_rows
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.properties import check_properties
from floe_dagster_iceberg.table.write.data_file_writer import DataFileWriter
from floe_dagster_iceberg.table.write.uncommitted_files import UncommittedFiles


def remove_matching_rows(
    metadata: TableMetadata,
    io: FileIO,
    snapshot: Snapshot | None,
    row_filter: BooleanExpression,
    open_writer: Callable[[], DataFileWriter],
    *,
    leave: Collection[str] = (),
) -> FileChanges:
    """Plan the removal of all rows matching a filter, but for the files to leave.

    Fully matching files are dropped unread. The remaining rows of partially matching files are written to new ones.
    """
    changes = FileChanges.read(metadata, io, snapshot, may_hold=row_filter)
    if isinstance(row_filter, AlwaysFalse) or not changes.opened:
        return changes
    partially_matching: list[DataFile] = []
    matches = FileMatcher(metadata, row_filter)
    for entry in changes.live_entries():
        # Most files hold none of the rows, so that is checked first.
        if matches.no_row(entry.data_file) or entry.data_file.file_path in leave:
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
    check: Callable[[TableMetadata, FileChanges], None] | None = None,
) -> Snapshot | None:
    """Delete all rows matching a filter; None when no row matches and nothing was committed.

    `check` is called with the newest metadata and the changes before each attempt to commit them, and may raise.
    """
    name, snapshot_id = table_name(table), new_snapshot_id()
    refuse_newer_format(name, table.metadata.format_version)
    check_properties(table.metadata.properties, name)
    with UncommittedFiles(name, table.io) as files, translate_errors(table.catalog.name, table=name):

        def stage(transaction: TableTransaction) -> None:
            files.next_attempt()
            metadata = transaction.table_metadata
            head = head_of(metadata, branch, name)
            open_writer = partial(files.open_writer, metadata, for_attempt=True)
            changes = remove_matching_rows(metadata, table.io, head, where, open_writer)
            if changes.removed:
                if check is not None:
                    check(metadata, changes)
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


# PyIceberg's choice for an overwrite. Deletes and upserts have no use for a level: they are planned again on the newest
# version, so that they never fail and their result is as if they had begun after the other commit.
_PROPERTY: Final = TableProperties.WRITE_UPDATE_ISOLATION_LEVEL


def files_to_leave(
    transaction: TableTransaction,
    branch: str,
    *,
    seen: Snapshot | None,
    head: Snapshot | None,
    row_filter: BooleanExpression,
    asset_key: str | None,
) -> frozenset[str]:
    """Data files with rows that match an overwrite's filter, but which it has not seen and must not remove.

    With serializable isolation, Iceberg's default, rows that changed are a conflict. With snapshot isolation, rows that
    others appended stay; the overwrite replaces those that it has seen. Rows that others removed or replaced are a
    conflict then too, and so are those of another run of the same asset: its rows would be there twice.

    Args:
        transaction: The newest version of the table.
        branch: The branch.
        seen: The snapshot of the branch when the overwrite began; None if it was empty.
        head: Its newest snapshot.
        row_filter: The rows that it replaces.
        asset_key: The asset that it belongs to.

    Raises:
        CommitConflictError: Rows matching the filter have changed.
        ValidationError: The table has an unknown isolation level.
    """
    metadata = transaction.table_metadata
    level = metadata.properties.get(_PROPERTY, TableProperties.WRITE_ISOLATION_LEVEL_DEFAULT).lower()
    if level not in list(IsolationLevel):
        raise ValidationError(
            f"Table property '{_PROPERTY}' is '{metadata.properties[_PROPERTY]}'. Set it to "
            f"{' or '.join(IsolationLevel)}."
        )
    since = None if seen is None else seen.snapshot_id
    if since == (None if head is None else head.snapshot_id):
        return frozenset()
    changes = ConcurrentChanges.since(since, transaction, branch, row_filter=row_filter)
    if not changes.added and not changes.rows_removed:
        return frozenset()
    is_mixed = not changes.rewritten.isdisjoint(changes.added)
    is_serializable = level == IsolationLevel.SERIALIZABLE
    if is_serializable or changes.rows_removed or is_mixed or _is_of_asset(metadata, changes, asset_key):
        raise CommitConflictError(
            table_name(transaction.table), attempts=1, reason="another writer changed rows that are being replaced"
        )
    return frozenset(changes.added)


def _is_of_asset(metadata: TableMetadata, changes: ConcurrentChanges, asset_key: str | None) -> bool:
    """Whether the asset itself added rows, in another run."""
    if asset_key is None:
        return False
    snapshots = (metadata.snapshot_by_id(snapshot_id or 0) for snapshot_id in set(changes.added.values()))
    keys = (snapshot and summary_property(snapshot, snapshot_properties.ASSET_KEY) for snapshot in snapshots)
    return asset_key in keys
