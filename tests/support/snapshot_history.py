"""Tables with a past: real snapshots, committed at timestamps that a test chooses."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AddSnapshotUpdate

from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, point_ref
from floe_dagster_iceberg.table.commit.commit import new_snapshot_id
from floe_dagster_iceberg.table.commit.refs import new_branch

T = "bronze.numbers"
SCHEMA = pa.schema([("n", pa.int64())])
NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": values}, schema=SCHEMA)


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def grow(table: Table, timestamps: Iterable[datetime], branch: str = MAIN_BRANCH) -> list[int]:
    """Add one snapshot per timestamp to a branch, in one commit; each holds what the branch holds.

    Returns:
        The snapshots' ids, oldest first.
    """
    table.refresh()
    transaction = TableTransaction(table)
    ref = table.metadata.refs.get(branch) or new_branch(table.metadata.refs[MAIN_BRANCH].snapshot_id)
    head = table.metadata.snapshot_by_id(ref.snapshot_id)
    updates, sequence_number = [], table.metadata.last_sequence_number
    for timestamp in timestamps:
        sequence_number += 1
        head = head.model_copy(
            update={
                "snapshot_id": new_snapshot_id(),
                "parent_snapshot_id": head.snapshot_id,
                "sequence_number": sequence_number,
                "timestamp_ms": int(timestamp.timestamp() * 1000),
            }
        )
        updates.append(AddSnapshotUpdate(snapshot=head))
    transaction.stage([*updates, point_ref(branch, ref.model_copy(update={"snapshot_id": head.snapshot_id}))])
    transaction.commit_once()
    return [update.snapshot.snapshot_id for update in updates]
