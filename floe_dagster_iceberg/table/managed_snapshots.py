"""The history of one table, as an accessor: the manager's operations with the table filled in."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from floe_dagster_iceberg.models import SnapshotInfo

if TYPE_CHECKING:
    # The operations return this accessor, so they import it.
    from floe_dagster_iceberg.table.snapshots import SnapshotOperations


class ManagedSnapshots:
    """Branches, tags, rollback and expiry of one table.

    Each method is the one of the same name of `IcebergTableManager`: one commit, same errors.
    """

    def __init__(self, operations: "SnapshotOperations", table: Table) -> None:
        self._operations, self._table = operations, table

    def create_tag(
        self, name: str, snapshot_id: int | None = None, *, max_ref_age: timedelta | None = None
    ) -> SnapshotInfo:
        """Name a snapshot for good; the newest of main if none is given."""
        return self._operations.create_tag(self._table, name, snapshot_id, max_ref_age=max_ref_age)

    def create_branch(
        self,
        name: str,
        snapshot_id: int | None = None,
        *,
        max_ref_age: timedelta | None = None,
        max_snapshot_age: timedelta | None = None,
        min_snapshots_to_keep: int | None = None,
    ) -> SnapshotInfo:
        """Begin a branch at a snapshot; at the newest of main if none is given."""
        return self._operations.create_branch(
            self._table,
            name,
            snapshot_id,
            max_ref_age=max_ref_age,
            max_snapshot_age=max_snapshot_age,
            min_snapshots_to_keep=min_snapshots_to_keep,
        )

    def remove_ref(self, name: str) -> None:
        """Remove a branch or tag; its snapshots stay until they expire."""
        self._operations.remove_ref(self._table, name)

    def fast_forward(self, branch: str, to: str) -> SnapshotInfo:
        """Move a branch to where another branch or tag stands, only forward."""
        return self._operations.fast_forward(self._table, branch, to)

    def rollback_to_snapshot(self, snapshot_id: int) -> SnapshotInfo:
        """Make an earlier snapshot of main the current one again."""
        return self._operations.rollback_to_snapshot(self._table, snapshot_id)

    def rollback_to_timestamp(self, timestamp: datetime | int) -> SnapshotInfo:
        """Make main what it was at a point in time."""
        return self._operations.rollback_to_timestamp(self._table, timestamp)

    def expire_snapshots(
        self,
        older_than_days: float | None = None,
        min_snapshots_to_keep: int | None = None,
        *,
        older_than: datetime | None = None,
        retain_last: int | None = None,
    ) -> int:
        """Remove old snapshots, and return how many."""
        return self._operations.expire_snapshots(
            self._table, older_than_days, min_snapshots_to_keep, older_than=older_than, retain_last=retain_last
        )
