"""Where a branch stands, and how one begins."""

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.table._pyiceberg import AssertRefSnapshotId, SnapshotProducer, StagedTransaction, point_ref
from floe_dagster_iceberg.table.commit import new_snapshot_id
from floe_dagster_iceberg.table.file_changes import FileChanges


def head_of(metadata: TableMetadata, branch: str, table: str) -> Snapshot | None:
    """The snapshot that a write to a branch builds on; a branch that is not there begins at main.

    Raises:
        ValidationError: The name is a tag's.
    """
    ref = metadata.refs.get(branch) or metadata.refs.get(MAIN_BRANCH)
    if ref is None:
        return None
    if ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
        raise ValidationError(
            f"'{branch}' is a tag of '{table}', and tags do not move. Write to a branch.", table=table
        )
    return metadata.snapshot_by_id(ref.snapshot_id)


def new_branch(snapshot_id: int) -> SnapshotRef:
    """A branch at a snapshot, with the table's own retention."""
    return SnapshotRef(
        snapshot_id=snapshot_id,
        snapshot_ref_type=SnapshotRefType.BRANCH,
        min_snapshots_to_keep=None,
        max_snapshot_age_ms=None,
        max_ref_age_ms=None,
    )


def fork_branch(transaction: StagedTransaction, branch: str, head: Snapshot | None) -> None:
    """Stage the creation of a branch that is not there yet, at the snapshot it builds on.

    A table that was never written gets an empty first snapshot on main: a branch has to begin
    somewhere, and main must not show the branch's rows.
    """
    if branch == MAIN_BRANCH or branch in transaction.table_metadata.refs:
        return
    root = head.snapshot_id if head is not None else _stage_empty_main(transaction)
    transaction.stage(
        [point_ref(branch, new_branch(root))],
        [AssertRefSnapshotId(ref=branch, snapshot_id=None)],
    )


def _stage_empty_main(transaction: StagedTransaction) -> int:
    snapshot_id = new_snapshot_id()
    SnapshotProducer(
        transaction,
        FileChanges(),
        operation=Operation.APPEND,
        snapshot_id=snapshot_id,
        snapshot_properties={},
        branch=MAIN_BRANCH,
    ).commit()
    return snapshot_id
