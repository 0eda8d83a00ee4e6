"""What is known of a snapshot."""

from datetime import UTC, datetime

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from floe_dagster_iceberg.models import OperationType, SnapshotInfo

COUNTS = {
    "added-data-files": "2",
    "added-records": "30",
    "added-files-size": "4096",
    "deleted-data-files": "1",
    "deleted-records": "7",
    "total-records": "123",
    "dagster.run-id": "r",
}


def snapshot(summary: Summary | None) -> Snapshot:
    return Snapshot(
        snapshot_id=5, parent_snapshot_id=4, timestamp_ms=1704067200123, manifest_list="s3://m", summary=summary
    )


@pytest.mark.requirement("S4-WriteMode")
def test_a_snapshot_keeps_what_pyiceberg_says() -> None:
    info = SnapshotInfo.from_pyiceberg_snapshot(snapshot(Summary(Operation.APPEND, **COUNTS)))

    assert (info.snapshot_id, info.parent_snapshot_id, info.manifest_list) == (5, 4, "s3://m")
    assert info.summary == COUNTS
    assert (info.added_files, info.added_records, info.added_bytes) == (2, 30, 4096)
    assert (info.deleted_files, info.deleted_records, info.total_records) == (1, 7, 123)


@pytest.mark.parametrize("operation", Operation)
def test_each_operation_of_pyiceberg_has_its_own(operation: Operation) -> None:
    info = SnapshotInfo.from_pyiceberg_snapshot(snapshot(Summary(operation)))

    assert info.operation is OperationType[operation.name]


def test_every_operation_is_known_to_pyiceberg() -> None:
    assert {each.value for each in OperationType} == {each.value for each in Operation}


def test_a_snapshot_without_a_summary_is_an_overwrite_without_counts() -> None:
    info = SnapshotInfo.from_pyiceberg_snapshot(snapshot(None))

    assert (info.operation, info.summary) == (OperationType.OVERWRITE, {})
    assert (info.added_files, info.added_records, info.added_bytes) == (0, 0, 0)
    assert (info.deleted_files, info.deleted_records, info.total_records) == (0, 0, 0)


@pytest.mark.requirement("S4-WriteMode")
@pytest.mark.parametrize("milliseconds", [0, 1, 123, 999])
def test_the_timestamp_is_in_utc_and_exact(milliseconds: int) -> None:
    info = SnapshotInfo(
        snapshot_id=1, timestamp_ms=1704067200000 + milliseconds, operation=OperationType.APPEND, summary={}
    )

    assert info.timestamp == datetime(2024, 1, 1, microsecond=milliseconds * 1000, tzinfo=UTC)
    assert info.timestamp.tzinfo is UTC
