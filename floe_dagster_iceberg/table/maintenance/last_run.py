"""Last-run properties: when maintenance last ran, from the table's own metadata.

Snapshots of maintenance have the operation in their summary. Expiry creates no snapshot and sets a
table property instead. Orphan removal changes no metadata; its quarantines have a timestamp.
"""

from datetime import UTC, datetime, timedelta

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from floe_dagster_iceberg.models import MaintenanceOperation, snapshot_properties


def snapshot_properties_of(operation: MaintenanceOperation, *, seconds: float) -> dict[str, str]:
    """Summary properties of a maintenance snapshot."""
    return {
        snapshot_properties.MAINTENANCE_OPERATION: operation.value,
        snapshot_properties.MAINTENANCE_DURATION: str(round(seconds * 1000)),
    }


def last_run_property(operation: MaintenanceOperation, at: datetime) -> dict[str, str]:
    """Table properties of a run that creates no snapshot."""
    key = snapshot_properties.LAST_MAINTENANCE.format(operation=operation.value)
    return {key: at.astimezone(UTC).isoformat(timespec="seconds")}


def last_run(metadata: TableMetadata, operation: MaintenanceOperation) -> datetime | None:
    """When an operation last changed the table, by any engine; None if unknown."""
    recorded = metadata.properties.get(snapshot_properties.LAST_MAINTENANCE.format(operation=operation.value))
    timestamps = [] if recorded is None else [_parse(recorded)]
    timestamps += [
        datetime.fromtimestamp(snapshot.timestamp_ms / 1000, tz=UTC)
        for snapshot in metadata.snapshots
        if _operation_of(snapshot) is operation
    ]
    return max(filter(None, timestamps), default=None)


def estimate_duration(metadata: TableMetadata, operation: MaintenanceOperation, input_bytes: int) -> timedelta | None:
    """Estimate a rewrite's duration from the newest one with a recorded duration; None if there is none."""
    for snapshot in sorted(metadata.snapshots, key=lambda each: each.timestamp_ms, reverse=True):
        summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
        milliseconds = summary.get(snapshot_properties.MAINTENANCE_DURATION, "")
        removed_bytes = summary.get("removed-files-size", "")
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
    """The operation that created a snapshot, from our property or from the summary of other engines' procedures."""
    if snapshot.summary is None:
        return None
    summary = snapshot.summary.additional_properties
    named = summary.get(snapshot_properties.MAINTENANCE_OPERATION)
    if snapshot.summary.operation is not Operation.REPLACE:
        # The only operation that changes rows.
        return MaintenanceOperation.RETENTION if named == MaintenanceOperation.RETENTION else None
    if named in set(MaintenanceOperation):
        return MaintenanceOperation(named)
    if "added-data-files" in summary or "deleted-data-files" in summary:
        return MaintenanceOperation.COMPACTION
    if "removed-delete-files" in summary:
        return MaintenanceOperation.POSITION_DELETES
    return MaintenanceOperation.MANIFESTS if "manifests-replaced" in summary else None


def _parse(recorded: str) -> datetime | None:
    try:
        timestamp = datetime.fromisoformat(recorded)
    except ValueError:
        # Another tool wrote into our property.
        return None
    return timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=UTC)
