"""Last-run properties: what maintenance leaves in a table's metadata, so that the next run knows of the last one.

A snapshot that maintenance makes names the operation in its summary. Expiry makes none, so its
commit sets a table property as well. Orphan files change no metadata: their quarantines say when.
"""

from datetime import UTC, datetime, timedelta

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from floe_dagster_iceberg.models import MaintenanceOperation, snapshot_properties


def snapshot_properties_of(operation: MaintenanceOperation, *, seconds: float) -> dict[str, str]:
    """Summary properties of a snapshot that maintenance makes after working on it for so long."""
    return {
        snapshot_properties.MAINTENANCE_OPERATION: operation.value,
        snapshot_properties.MAINTENANCE_DURATION: str(round(seconds * 1000)),
    }


def last_run_property(operation: MaintenanceOperation, at: datetime) -> dict[str, str]:
    """Table properties that remember a run which makes no snapshot."""
    return {
        snapshot_properties.LAST_MAINTENANCE.format(operation=operation.value): at.astimezone(UTC).isoformat(
            timespec="seconds"
        )
    }


def last_run(metadata: TableMetadata, operation: MaintenanceOperation) -> datetime | None:
    """When an operation last changed the table, by any engine; None when that is unknown."""
    timestamps: list[datetime | None] = [
        _timestamp_of(snapshot) for snapshot in metadata.snapshots if _operation_of(snapshot) is operation
    ]
    said = metadata.properties.get(snapshot_properties.LAST_MAINTENANCE.format(operation=operation.value))
    if said is not None:
        timestamps.append(_parsed(said))
    return max(filter(None, timestamps), default=None)


def estimate_duration(metadata: TableMetadata, operation: MaintenanceOperation, input_bytes: int) -> timedelta | None:
    """How long a rewrite takes at the pace of the newest one that left its duration; None when none did."""
    for snapshot in sorted(metadata.snapshots, key=lambda each: each.timestamp_ms, reverse=True):
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        milliseconds, removed_bytes = (
            summary.get(snapshot_properties.MAINTENANCE_DURATION, ""),
            summary.get("removed-files-size", ""),
        )
        if _operation_of(snapshot) is operation and milliseconds.isdigit() and removed_bytes.isdigit():
            return timedelta(milliseconds=int(milliseconds) * input_bytes / max(1, int(removed_bytes)))
    return None


def bytes_added_since(before: TableMetadata, after: TableMetadata, operation: MaintenanceOperation) -> int:
    """Bytes that an operation wrote between two versions of a table."""
    known = {snapshot.snapshot_id for snapshot in before.snapshots}
    return sum(
        int(snapshot.summary.additional_properties.get("added-files-size", 0))
        for snapshot in after.snapshots
        if snapshot.summary is not None and snapshot.snapshot_id not in known and _operation_of(snapshot) is operation
    )


def _operation_of(snapshot: Snapshot) -> MaintenanceOperation | None:
    """Which operation made a snapshot: by its property, or by what other engines' procedures leave in it."""
    if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE:
        return None
    summary = snapshot.summary.additional_properties
    if (named := summary.get(snapshot_properties.MAINTENANCE_OPERATION)) in set(MaintenanceOperation):
        return MaintenanceOperation(named)
    if "added-data-files" in summary or "deleted-data-files" in summary:
        return MaintenanceOperation.COMPACTION
    if "removed-delete-files" in summary:
        return MaintenanceOperation.POSITION_DELETES
    return MaintenanceOperation.MANIFESTS if "manifests-replaced" in summary else None


def _timestamp_of(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, tz=UTC)


def _parsed(said: str) -> datetime | None:
    try:
        timestamp = datetime.fromisoformat(said)
    except ValueError:
        # A value that another tool wrote into our property decides nothing.
        return None
    return timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=UTC)
