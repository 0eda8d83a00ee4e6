"""Branches, tags and rollbacks, staged in a transaction."""

from datetime import UTC, datetime, timedelta

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate

from floe_dagster_iceberg._pyiceberg import transaction as transactions
from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import StagedTransaction, TableTransaction
from floe_dagster_iceberg.errors import RollbackError, SnapshotNotFoundError, ValidationError
from floe_dagster_iceberg.models.quantities import format_duration
from floe_dagster_iceberg.table.commit.commit import new_snapshot_id

_EPOCH = datetime.fromtimestamp(0, tz=UTC)


def to_timestamp_ms(timestamp: datetime, *, argument: str, table: str) -> int:
    """Milliseconds since 1970 UTC.

    Raises:
        ValidationError: It has no time zone.
    """
    if timestamp.utcoffset() is None:
        raise ValidationError(
            f"{argument} for '{table}' has no time zone. Use datetime.now(UTC) or add tzinfo.",
            table=table,
        )
    return (timestamp - _EPOCH) // timedelta(milliseconds=1)


def to_milliseconds(duration: timedelta | None, *, argument: str, table: str) -> int | None:
    """A duration in milliseconds, at least 1."""
    if duration is None:
        return None
    milliseconds = duration // timedelta(milliseconds=1)
    if milliseconds < 1:
        raise ValidationError(
            f"{argument} for '{table}' must be at least a millisecond, got {format_duration(duration)}.", table=table
        )
    return milliseconds


def head_of(metadata: TableMetadata, branch: str, table: str) -> Snapshot | None:
    """The snapshot that a write to a branch builds on; a new branch starts at main.

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
    """Stage the creation of a missing branch, at the snapshot it builds on.

    An empty table gets an empty first snapshot on main: a branch needs a snapshot, and main must not show its rows.
    """
    if branch == MAIN_BRANCH or branch in transaction.table_metadata.refs:
        return
    root = head.snapshot_id if head is not None else _stage_empty_main(transaction)
    transaction.stage(
        [transactions.point_ref(branch, new_branch(root))],
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


def create_ref(
    transaction: TableTransaction, table: str, name: str, snapshot_id: int | None, ref: SnapshotRef
) -> Snapshot:
    """Stage a new branch or tag with the kind and retention of `ref`, at a snapshot or at the newest one of main.

    Raises:
        ValidationError: The name is taken or empty, or the table has no snapshot yet.
        SnapshotNotFoundError: There is no such snapshot.
    """
    metadata = transaction.table_metadata
    if not name.strip() or name == MAIN_BRANCH:
        raise ValidationError(
            f"'{name}' cannot name a new branch or tag of '{table}'. Give it a name of its own.", table=table
        )
    if (taken := metadata.refs.get(name)) is not None:
        raise ValidationError(
            f"Table '{table}' already has a {taken.snapshot_ref_type} '{name}'. Choose another name, or remove it.",
            table=table,
        )
    snapshot = _snapshot(metadata, table, snapshot_id)
    transaction.stage(
        [transactions.point_ref(name, ref.model_copy(update={"snapshot_id": snapshot.snapshot_id}))],
        [
            AssertRefSnapshotId(ref=name, snapshot_id=None),
            *transactions.history_assertions(transaction, snapshot_ids=[snapshot.snapshot_id]),
        ],
    )
    return snapshot


def remove_ref(transaction: TableTransaction, table: str, name: str) -> None:
    """Stage the removal of a branch or tag; its snapshots stay until they expire.

    Raises:
        ValidationError: It is main.
        SnapshotNotFoundError: There is no such branch or tag.
    """
    if name == MAIN_BRANCH:
        raise ValidationError(
            f"Branch '{MAIN_BRANCH}' of '{table}' cannot be removed. Roll it back, or drop the table.",
            table=table,
        )
    ref = _ref(transaction.table_metadata, table, name)
    transaction.stage(
        [RemoveSnapshotRefUpdate(ref_name=name)], [AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id)]
    )


def fast_forward(transaction: TableTransaction, table: str, branch: str, to: str) -> Snapshot:
    """Stage the move of a branch to where another branch or tag stands.

    Raises:
        ValidationError: The branch holds commits that the other lacks, or is a tag.
        SnapshotNotFoundError: One of the two does not exist.
    """
    metadata = transaction.table_metadata
    target = _ref(metadata, table, to)
    # A table that was only written on a branch has no main; an empty history is part of any other.
    empty_main = branch == MAIN_BRANCH and MAIN_BRANCH not in metadata.refs
    ref = new_branch(target.snapshot_id) if empty_main else _ref(metadata, table, branch)
    if ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
        raise ValidationError(
            f"'{branch}' is a tag of '{table}', and tags do not move. Name a branch, or make a new tag.", table=table
        )
    if not transactions.is_in_history(metadata, ref.snapshot_id, of=target.snapshot_id):
        raise ValidationError(
            f"Branch '{branch}' of '{table}' cannot be forwarded to '{to}': it holds commits that '{to}' lacks. "
            f"Write them to '{to}' as well, or make '{to}' again from '{branch}'.",
            table=table,
        )
    if empty_main or ref.snapshot_id != target.snapshot_id:
        transaction.stage(
            [transactions.point_ref(branch, ref.model_copy(update={"snapshot_id": target.snapshot_id}))],
            [
                AssertRefSnapshotId(ref=branch, snapshot_id=None if empty_main else ref.snapshot_id),
                AssertRefSnapshotId(ref=to, snapshot_id=target.snapshot_id),
            ],
        )
    return _snapshot(metadata, table, target.snapshot_id)


def roll_back(transaction: TableTransaction, table: str, snapshot_id: int) -> Snapshot:
    """Stage a rollback of main to one of its earlier snapshots.

    Raises:
        SnapshotNotFoundError: There is no such snapshot.
        RollbackError: The snapshot is not part of main's history.
    """
    metadata = transaction.table_metadata
    target = find_in_history(metadata, table, snapshot_id)
    main = metadata.refs[MAIN_BRANCH]
    if main.snapshot_id != snapshot_id:
        transaction.stage(
            [transactions.point_ref(MAIN_BRANCH, main.model_copy(update={"snapshot_id": snapshot_id}))],
            [
                AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=main.snapshot_id),
                *transactions.history_assertions(transaction, snapshot_ids=[snapshot_id]),
            ],
        )
    return target


def roll_back_in_time(transaction: TableTransaction, table: str, timestamp_ms: int, *, timestamp: str) -> Snapshot:
    """Stage a rollback of main to its snapshot at a timestamp.

    Raises:
        RollbackError: Main's history, as far as it has not expired, starts later.
    """
    target = find_in_time(transaction.table_metadata, table, timestamp_ms, timestamp=timestamp)
    return roll_back(transaction, table, target.snapshot_id)


def find_in_history(metadata: TableMetadata, table: str, snapshot_id: int) -> Snapshot:
    """The snapshot of main's history with an id.

    Raises:
        SnapshotNotFoundError: There is no such snapshot.
        RollbackError: The snapshot is not part of main's history.
    """
    target = _snapshot(metadata, table, snapshot_id)
    main = metadata.refs.get(MAIN_BRANCH)
    if main is None or not transactions.is_in_history(metadata, snapshot_id, of=main.snapshot_id):
        raise RollbackError(
            table,
            snapshot=snapshot_id,
            reason="it is not part of main's history",
            remedy="Read it with scan(snapshot_id=...), or make a branch of it.",
        )
    return target


def find_in_time(metadata: TableMetadata, table: str, timestamp_ms: int, *, timestamp: str) -> Snapshot:
    """Main's snapshot at a timestamp.

    Raises:
        RollbackError: Main's history, as far as it has not expired, starts later.
    """
    history = transactions.history_of(metadata, metadata.current_snapshot())
    target = next((snapshot for snapshot in history if snapshot.timestamp_ms <= timestamp_ms), None)
    if target is None:
        raise RollbackError(
            table,
            snapshot=timestamp,
            reason="no snapshot of main is that old",
            remedy="list_snapshots() lists all snapshots.",
        )
    return target


def _snapshot(metadata: TableMetadata, table: str, snapshot_id: int | None) -> Snapshot:
    snapshot = metadata.current_snapshot() if snapshot_id is None else metadata.snapshot_by_id(snapshot_id)
    if snapshot is None and snapshot_id is None:
        raise ValidationError(f"Table '{table}' has no snapshot yet. Write to it first.", table=table)
    if snapshot is None:
        raise SnapshotNotFoundError(table, snapshot_id)
    return snapshot


def _ref(metadata: TableMetadata, table: str, name: str) -> SnapshotRef:
    if (ref := metadata.refs.get(name)) is None:
        raise SnapshotNotFoundError(table, name, refs=metadata.refs)
    return ref
