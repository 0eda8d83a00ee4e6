"""Snapshots of tables."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from pydantic import Field

from floe_dagster_iceberg.models.base import FrozenModel, SnapshotId

if TYPE_CHECKING:
    # It loads PyIceberg's table modules, which models do not need.
    from pyiceberg.table.snapshots import Snapshot

_EPOCH: Final = datetime.fromtimestamp(0, tz=UTC)


class OperationType(StrEnum):
    """What a snapshot did to the table's files."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    DELETE = "delete"
    REPLACE = "replace"


class SnapshotInfo(FrozenModel):
    """One snapshot of a table. Counts that the writer did not record are 0."""

    snapshot_id: SnapshotId = Field(description="Id of the snapshot.")
    parent_snapshot_id: SnapshotId | None = Field(
        default=None, description="Id of the snapshot before it; none for the first."
    )
    timestamp_ms: int = Field(description="When it was committed, in milliseconds since 1970 UTC.")
    operation: OperationType = Field(description="What it did to the table's files.")
    summary: dict[str, str] = Field(default_factory=dict, description="Counts and properties kept with the snapshot.")
    manifest_list: str | None = Field(default=None, description="Location of its manifest list.")

    @classmethod
    def from_pyiceberg_snapshot(cls, snapshot: "Snapshot") -> Self:
        """Convert from a PyIceberg snapshot.

        A snapshot without a summary (format version 1 allows it) counts as an overwrite, as in PyIceberg.
        """
        summary = snapshot.summary
        return cls(
            snapshot_id=snapshot.snapshot_id,
            parent_snapshot_id=snapshot.parent_snapshot_id,
            timestamp_ms=snapshot.timestamp_ms,
            operation=OperationType.OVERWRITE if summary is None else OperationType(summary.operation.value),
            summary={} if summary is None else summary.additional_properties,
            manifest_list=snapshot.manifest_list,
        )

    @property
    def timestamp(self) -> datetime:
        """When it was committed, in UTC."""
        # Exact, unlike a float of seconds.
        return _EPOCH + timedelta(milliseconds=self.timestamp_ms)

    @property
    def added_files(self) -> int:
        """Data files this snapshot added."""
        return int(self.summary.get("added-data-files", 0))

    @property
    def added_records(self) -> int:
        """Rows in the data files it added."""
        return int(self.summary.get("added-records", 0))

    @property
    def added_bytes(self) -> int:
        """Bytes of the files it added."""
        return int(self.summary.get("added-files-size", 0))

    @property
    def deleted_files(self) -> int:
        """Data files it removed."""
        return int(self.summary.get("deleted-data-files", 0))

    @property
    def deleted_records(self) -> int:
        """Rows in the data files it removed."""
        return int(self.summary.get("deleted-records", 0))

    @property
    def total_records(self) -> int:
        """Rows in all data files of the table after it, before delete files are applied."""
        return int(self.summary.get("total-records", 0))
