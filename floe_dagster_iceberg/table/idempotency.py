"""How a write that was done already is recognised."""

import hashlib
from itertools import count

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg.table._pyiceberg import summary_property
from floe_dagster_iceberg.table.ancestry import history_of
from floe_dagster_iceberg.table.commit import new_snapshot_id

IDEMPOTENCY_KEY = "floe.idempotency-key"


def find_committed_write(metadata: TableMetadata, branch: str, key: str | None) -> Snapshot | None:
    """The snapshot in a branch's history that was made under a key.

    Only the history counts: work that was rolled back is not done.
    """
    if key is None:
        return None
    ref = metadata.refs.get(branch) or metadata.refs.get(MAIN_BRANCH)
    head = None if ref is None else metadata.snapshot_by_id(ref.snapshot_id)
    for snapshot in history_of(metadata, head):
        if summary_property(snapshot, IDEMPOTENCY_KEY) == key:
            return snapshot
    return None


def snapshot_id_for(key: str | None, metadata: TableMetadata | None) -> int:
    """A snapshot id that follows from a key, so that two processes doing the same work make the same one.

    The catalog refuses a second snapshot of the same id. An id that the table has outside its
    history, after a rollback, is passed over. Without a key the id is random.
    """
    if key is None:
        return new_snapshot_id()
    for number in count():
        digest = hashlib.sha256(f"{key}#{number}".encode()).digest()
        snapshot_id = int.from_bytes(digest[:8]) >> 1 or 1
        if metadata is None or metadata.snapshot_by_id(snapshot_id) is None:
            return snapshot_id
    raise AssertionError("count() has no end")
