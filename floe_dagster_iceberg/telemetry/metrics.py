"""Metrics of this process. Without an OpenTelemetry SDK each costs one call."""

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, ParamSpec

from opentelemetry import metrics

from floe_dagster_iceberg.models import MaintenanceOperation, MaintenanceResult, TableHealth
from floe_dagster_iceberg.telemetry import attributes as attrs

P = ParamSpec("P")

# The SDK's default buckets are for milliseconds: everything below five seconds would fall into one.
_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)

_meter = metrics.get_meter(attrs.SCOPE)
_operations = _meter.create_counter("iceberg.operations", description="Operations on tables, by name and status.")
_errors = _meter.create_counter("iceberg.errors", description="Failed operations, by name and error type.")
_durations = _meter.create_histogram(
    "iceberg.operation.duration",
    unit="s",
    description="Time of an operation.",
    explicit_bucket_boundaries_advisory=_SECONDS,
)
_records_written = _meter.create_counter("iceberg.records.written", unit="{record}", description="Rows written.")
_bytes_written = _meter.create_counter("iceberg.bytes.written", unit="By", description="Bytes of the files written.")
_records_read = _meter.create_counter("iceberg.records.read", unit="{record}", description="Rows read.")
_bytes_read = _meter.create_counter("iceberg.bytes.read", unit="By", description="Bytes of the rows read, in memory.")
_conflicts = _meter.create_counter("iceberg.commit.conflicts", description="Commits that another writer was ahead of.")
_retries = _meter.create_counter("iceberg.commit.retries", description="Attempts after the first one of a commit.")
_deduplicated = _meter.create_counter(
    "iceberg.writes.deduplicated", description="Writes that found their work done by an earlier attempt."
)
_files_rewritten = _meter.create_counter(
    "iceberg.files.rewritten", unit="{file}", description="Files that maintenance replaced by others."
)
_bytes_reclaimed = _meter.create_counter(
    "iceberg.bytes.reclaimed", unit="By", description="Bytes of files that maintenance deleted for good."
)
_health = {
    field: _meter.create_gauge(f"iceberg.table.{field}", unit=unit, description=description)
    for field, unit, description in (
        ("data_files", "{file}", "Data files of a table."),
        ("delete_files", "{file}", "Delete files of a table."),
        ("small_files", "{file}", "Data files of a table far below the target size."),
        ("records", "{record}", "Rows in a table's data files, before deletes are applied."),
        ("total_bytes", "By", "Bytes of a table's data and delete files."),
        ("snapshots", "{snapshot}", "Snapshots that a table keeps."),
        ("manifests", "{file}", "Manifests of a table's current snapshot."),
        ("metadata_json_bytes", "By", "Size of a table's current metadata file."),
        ("partitions_needing_work", "{partition}", "Partitions of a table that compaction would rewrite."),
    )
}


def _harmless(record: Callable[P, None]) -> Callable[P, None]:
    """The work is done; a metric reader that fails must not fail it."""

    @functools.wraps(record)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        with suppress(Exception):
            record(*args, **kwargs)

    return wrapper


@_harmless
def count_operation(operation: str, seconds: float, *, error_type: str | None = None) -> None:
    """Count an operation that ended."""
    _operations.add(1, {attrs.OPERATION: operation, attrs.STATUS: "ok" if error_type is None else "error"})
    _durations.record(seconds, {attrs.OPERATION: operation})
    if error_type is not None:
        _errors.add(1, {attrs.OPERATION: operation, attrs.ERROR_TYPE: error_type})


@_harmless
def count_written(attributes: dict[str, Any]) -> None:
    """Count the rows and bytes that a commit added, by the attributes of its operation."""
    where = _where(attributes)
    _records_written.add(attributes[attrs.RECORDS_ADDED], where)
    _bytes_written.add(attributes[attrs.BYTES_ADDED], where)


@_harmless
def count_read(rows: int, size_bytes: int, attributes: dict[str, Any]) -> None:
    """Count the rows and bytes of a read."""
    where = _where(attributes)
    _records_read.add(rows, where)
    _bytes_read.add(size_bytes, where)


@_harmless
def count_conflict(table: str, *, engine: str) -> None:
    """Count a commit attempt that another writer won."""
    _conflicts.add(1, {attrs.TABLE: table, attrs.ENGINE: engine})


@_harmless
def count_retry(table: str, *, engine: str) -> None:
    """Count a retry of a commit."""
    _retries.add(1, {attrs.TABLE: table, attrs.ENGINE: engine})


@_harmless
def count_deduplicated(attributes: dict[str, Any]) -> None:
    """Count a write whose commit an earlier attempt had made."""
    _deduplicated.add(1, _where(attributes))


@_harmless
def count_maintenance(result: MaintenanceResult) -> None:
    """Count what maintenance did to a table."""
    where = {attrs.TABLE: str(result.table), attrs.MAINTENANCE_OPERATION: result.operation.value}
    if result.files_added:
        _files_rewritten.add(result.files_removed, where)
    if result.operation is MaintenanceOperation.SNAPSHOT_EXPIRY:
        count_reclaimed(str(result.table), result.operation, result.bytes_removed)


@_harmless
def count_reclaimed(table: str, operation: MaintenanceOperation, size_bytes: int) -> None:
    """Count deleted bytes; files that are only replaced, or in quarantine, still take space."""
    _bytes_reclaimed.add(size_bytes, {attrs.TABLE: table, attrs.MAINTENANCE_OPERATION: operation.value})


@_harmless
def set_health(health: TableHealth) -> None:
    """Set the gauges of a table; values that the tier does not measure stay."""
    where = {attrs.TABLE: str(health.table)}
    for field, gauge in _health.items():
        if (value := getattr(health, field)) is not None:
            gauge.set(value, where)


def _where(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: attributes[name] for name in (attrs.TABLE, attrs.ENGINE) if name in attributes}
