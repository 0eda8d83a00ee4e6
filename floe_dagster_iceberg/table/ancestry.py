"""The history of a snapshot, walked once.

PyIceberg's `ancestors_of` looks through all snapshots for each ancestor, which takes a third of a second in a
table of two thousand.
"""

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot


def history_of(metadata: TableMetadata, head: Snapshot | None) -> Iterator[Snapshot]:
    """A snapshot and its ancestors, newest first, as far as they have not expired."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    while head is not None:
        yield head
        head = None if head.parent_snapshot_id is None else by_id.get(head.parent_snapshot_id)


def is_in_history(metadata: TableMetadata, snapshot_id: int, *, of: int) -> bool:
    """Whether a snapshot is another one, or one of its ancestors."""
    head = metadata.snapshot_by_id(of)
    return any(snapshot.snapshot_id == snapshot_id for snapshot in history_of(metadata, head))
