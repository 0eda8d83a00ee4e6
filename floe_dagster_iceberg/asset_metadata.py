"""What a write did, as metadata that Dagster shows and plots."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster import MetadataValue, TableColumn, TableColumnConstraints, TableSchema

from floe_dagster_iceberg.models import SnapshotInfo, TableIdentifier, WriteMode
from floe_dagster_iceberg.telemetry import TRACE_ID_PROPERTY

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

    from floe_dagster_iceberg.table.deposit import Deposited

STORAGE_KIND = "iceberg"


def build_output_metadata(
    deposited: "Deposited", table: TableIdentifier, *, mode: WriteMode, partitions: int, seconds: float
) -> Mapping[str, MetadataValue]:
    """Metadata of a materialization; counts come from the commit, never from another scan.

    Args:
        deposited: What the write did.
        table: The table.
        mode: How rows were written.
        partitions: How many Dagster partitions were written; 0 without partitions.
        seconds: How long it took.
    """
    written = deposited.written
    snapshot = SnapshotInfo.from_pyiceberg_snapshot(written.snapshot)
    metadata: dict[str, MetadataValue] = {
        **build_table_metadata(table),
        "dagster/column_schema": MetadataValue.table_schema(build_column_schema(written.table)),
        "dagster/row_count": MetadataValue.int(snapshot.total_records),
        "dagster/storage_kind": MetadataValue.text(STORAGE_KIND),
        "dagster/uri": MetadataValue.text(written.table.location()),
        "iceberg/snapshot_id": MetadataValue.text(str(snapshot.snapshot_id)),
        "iceberg/operation": MetadataValue.text(snapshot.operation.value),
        "iceberg/write_mode": MetadataValue.text(mode.value),
        "iceberg/added_files": MetadataValue.int(snapshot.added_files),
        "iceberg/deleted_files": MetadataValue.int(snapshot.deleted_files),
        "iceberg/added_bytes": MetadataValue.int(snapshot.added_bytes),
        "iceberg/schema_evolved": MetadataValue.bool(bool(written.schema_changes)),
        "iceberg/schema_changes": MetadataValue.json(list(written.schema_changes)),
        "iceberg/rows_dropped": MetadataValue.int(written.rows_dropped),
        "iceberg/commit_attempts": MetadataValue.int(written.attempts),
        "iceberg/duration": MetadataValue.float(round(seconds, 3)),
    }
    if (trace_id := snapshot.summary.get(TRACE_ID_PROPERTY)) is not None:
        metadata["iceberg/trace_id"] = MetadataValue.text(trace_id)
    if written.rows_outside:
        metadata["iceberg/rows_outside_partition"] = MetadataValue.int(written.rows_outside)
    if partitions == 1 and mode is WriteMode.OVERWRITE and written.rows is not None:
        # Of several partitions, and after an append or upsert, only another scan could tell.
        outside = written.rows_outside - written.rows_dropped
        metadata["dagster/partition_row_count"] = MetadataValue.int(written.rows - outside)
    if deposited.deduplicated:
        metadata["iceberg/deduplicated"] = MetadataValue.bool(value=True)
    return metadata


def build_table_metadata(table: TableIdentifier) -> dict[str, MetadataValue]:
    """Metadata that is known before anything is written, for definitions too."""
    return {"dagster/table_name": MetadataValue.text(str(table))}


def build_column_schema(table: "Table") -> TableSchema:
    """The table's columns with types, nullability, docs and what they do for the partitioning."""
    schema = table.schema()
    partitions: dict[int, list[str]] = {}
    for field in table.spec().fields:
        partitions.setdefault(field.source_id, []).append(f"partitioned by {field.transform}")
    return TableSchema(columns=[_column(field, partitions.get(field.field_id, [])) for field in schema.fields])


def _column(field: "NestedField", notes: list[str]) -> TableColumn:
    return TableColumn(
        name=field.name,
        type=str(field.field_type),
        description=field.doc,
        constraints=TableColumnConstraints(nullable=field.optional, other=notes),
    )
