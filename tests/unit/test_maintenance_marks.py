"""What maintenance leaves in the metadata, read back."""

from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from floe_dagster_iceberg.models import MaintenanceOperation
from floe_dagster_iceberg.table.maintenance.last_run import (
    estimate_duration,
    last_run,
    last_run_property,
    snapshot_properties_of,
)

COMPACTION, EXPIRY = MaintenanceOperation.COMPACTION, MaintenanceOperation.SNAPSHOT_EXPIRY
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def metadata(*snapshots: Snapshot, **properties: str) -> TableMetadata:
    empty = new_table_metadata(
        Schema(NestedField(1, "id", LongType())), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://b/t"
    )
    return empty.model_copy(update={"snapshots": list(snapshots), "properties": properties})


def snapshot(at: datetime, operation: Operation = Operation.REPLACE, **summary: str) -> Snapshot:
    properties = {key.replace("_", "-"): value for key, value in summary.items()}
    return Snapshot(
        snapshot_id=int(at.timestamp()),
        timestamp_ms=int(at.timestamp() * 1000),
        manifest_list="s3://b/t/list.avro",
        summary=Summary(operation, **properties),
    )


def marked(at: datetime, operation: MaintenanceOperation, *, seconds: float = 1, **summary: str) -> Snapshot:
    made = snapshot(at, **summary)
    return made.model_copy(
        update={
            "summary": Summary(
                Operation.REPLACE,
                **{**made.summary.additional_properties, **snapshot_properties_of(operation, seconds=seconds)},
            )
        }
    )


def test_the_last_run_is_the_newest_snapshot_that_names_the_operation() -> None:
    found = metadata(
        marked(NOON, COMPACTION),
        marked(NOON + timedelta(hours=1), MaintenanceOperation.MANIFESTS),
        snapshot(NOON + timedelta(hours=2), Operation.APPEND),
    )

    assert last_run(found, COMPACTION) == NOON
    assert last_run(found, EXPIRY) is None


@pytest.mark.parametrize(
    ("summary", "operation"),
    [
        ({"added_data_files": "1", "deleted_data_files": "9", "manifests_replaced": "2"}, "compaction"),
        ({"removed_delete_files": "3", "added_delete_files": "1", "manifests_replaced": "2"}, "position_deletes"),
        ({"manifests_replaced": "10", "manifests_created": "1"}, "manifests"),
    ],
)
def test_what_other_engines_did_is_recognised_by_what_they_leave(summary: dict[str, str], operation: str) -> None:
    found = metadata(snapshot(NOON, **summary))

    assert {each for each in MaintenanceOperation if last_run(found, each) is not None} == {operation}


def test_rows_that_were_written_are_no_maintenance() -> None:
    found = metadata(snapshot(NOON, Operation.OVERWRITE, added_data_files="1", deleted_data_files="9"))

    assert [last_run(found, each) for each in MaintenanceOperation] == [None] * len(MaintenanceOperation)


def test_an_operation_without_snapshots_is_remembered_by_a_property() -> None:
    assert last_run(metadata(**last_run_property(EXPIRY, NOON)), EXPIRY) == NOON
    assert last_run(metadata(**{"floe.maintenance.last-snapshot_expiry": "yesterday"}), EXPIRY) is None


def test_the_pace_of_the_last_rewrite_gives_the_estimate() -> None:
    slow = marked(NOON, COMPACTION, seconds=100, removed_files_size="1000")
    quick = marked(NOON + timedelta(hours=1), COMPACTION, seconds=10, removed_files_size="1000")

    assert estimate_duration(metadata(slow, quick), COMPACTION, 2000) == timedelta(seconds=20)
    assert estimate_duration(metadata(), COMPACTION, 2000) is None
