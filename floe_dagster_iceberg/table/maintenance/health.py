"""Table health from metadata only: opens no data file and starts no JVM."""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg._pyiceberg.manifest_reader import read_manifests
from floe_dagster_iceberg.models import CompactionPolicy, FileSizeBin, HealthTier, RetentionPolicy, TableHealth
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.maintenance.compaction_plan import (
    FileGroup,
    LiveFiles,
    partition_of,
    plan_groups,
    read_live_files,
    to_group_limits,
)
from floe_dagster_iceberg.table.maintenance.expired_rows import days_overdue
from floe_dagster_iceberg.table.names import table_name, to_identifier

_MIB = 1024 * 1024

# Upper bounds of the histogram's bins; a last bin without bound has the larger files.
_EDGES = tuple(size * _MIB for size in (1, 4, 16, 64, 128, 256, 512))


def measure_health(
    table: Table,
    *,
    tier: HealthTier = HealthTier.FILES,
    compaction: CompactionPolicy | None = None,
    retention: RetentionPolicy | None = None,
    now: datetime | None = None,
    live: LiveFiles | None = None,
    groups: Sequence[FileGroup] | None = None,
) -> TableHealth:
    """Measure a table; each tier reads more than the one before.

    Args:
        table: The table.
        tier: `SUMMARY` reads nothing beyond the loaded metadata, `MANIFESTS` the manifest list,
            `FILES` every manifest.
        compaction: Defines small files and partitions that need work.
        retention: Defines which rows are overdue; without it that is not measured.
        now: Time of the measurement.
        live: The table's live files, if already read.
        groups: The table's file groups worth rewriting, if already planned.

    Raises:
        ScanError: A manifest is missing or cannot be read.
    """
    snapshot = table.current_snapshot()
    at = now or datetime.now(UTC)
    measured: dict[str, Any] = _from_metadata(table, snapshot)
    with translate_errors(table.catalog.name, table=table_name(table)):
        if tier is not HealthTier.SUMMARY:
            measured["metadata_json_bytes"] = len(table.io.new_input(table.metadata_location))
        if tier is HealthTier.MANIFESTS:
            measured |= _from_manifests(read_manifests(snapshot, table.io))
        if tier is HealthTier.FILES:
            live = live or read_live_files(table)
            measured |= _from_files(table, live, compaction or CompactionPolicy(), groups)
            if retention is not None:
                measured["rows_overdue_days"] = days_overdue(table, live, retention, at)
    return TableHealth(table=to_identifier(table), tier=tier, measured_at=at, **measured)


def _from_metadata(table: Table, snapshot: Snapshot | None) -> dict[str, Any]:
    """Counts from the summary of the last snapshot; some writers record none."""
    summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    oldest_ms = min((each.timestamp_ms for each in table.metadata.snapshots), default=None)
    return {
        "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
        "data_files": int(summary.get("total-data-files", 0)),
        "delete_files": int(summary.get("total-delete-files", 0)),
        "records": int(summary.get("total-records", 0)),
        "total_bytes": int(summary.get("total-files-size", 0)),
        "snapshots": len(table.metadata.snapshots),
        "oldest_snapshot_at": None if oldest_ms is None else datetime.fromtimestamp(oldest_ms / 1000, tz=UTC),
    }


def _from_manifests(manifests: Sequence[ManifestFile]) -> dict[str, Any]:
    counted: dict[str, Any] = {"manifests": len(manifests)}
    if any(manifest.added_files_count is None or manifest.existing_files_count is None for manifest in manifests):
        # The counts are optional in format version 1.
        return counted
    for name, content in (("data_files", ManifestContent.DATA), ("delete_files", ManifestContent.DELETES)):
        counted[name] = sum(
            (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
            for manifest in manifests
            if manifest.content == content
        )
    return counted


def _from_files(
    table: Table, live: LiveFiles, policy: CompactionPolicy, groups: Sequence[FileGroup] | None
) -> dict[str, Any]:
    data = live.data
    small_below = policy.target_file_size_bytes * policy.small_file_ratio
    if groups is None:
        groups = plan_groups(live.changes, table.metadata, policy.to_strategy(), to_group_limits(table, policy))
    return {
        "manifests": len(live.manifests),
        "data_files": len(data),
        "delete_files": len(live.deletes),
        "records": sum(file.record_count for file in data),
        "total_bytes": live.total_bytes,
        "small_files": sum(file.file_size_in_bytes < small_below for file in data),
        "partitions": len({partition_of(file) for file in data}),
        "partitions_needing_work": len({group.partition for group in groups}),
        "file_sizes": build_histogram(data),
    }


def build_histogram(files: Sequence[DataFile]) -> tuple[FileSizeBin, ...]:
    """Count file sizes in bins from a megabyte to more than half a gigabyte."""
    bins: list[list[int]] = [[] for _ in (*_EDGES, None)]
    for file in files:
        bins[bisect_right(_EDGES, file.file_size_in_bytes)].append(file.file_size_in_bytes)
    return tuple(
        FileSizeBin(upper_bytes=edge, files=len(sizes), total_bytes=sum(sizes))
        for edge, sizes in zip((*_EDGES, None), bins, strict=True)
    )
