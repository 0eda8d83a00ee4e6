"""What a write did, as metadata that Dagster shows and plots."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster import MetadataValue, TableColumn, TableColumnConstraints, TableSchema

from floe_dagster_iceberg.models import TableIdentifier, WriteMode
from floe_dagster_iceberg.telemetry import TRACE_ID_PROPERTY

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

    from floe_dagster_iceberg.table.write import TableWrite, TableWriteResult

STORAGE_KIND = "iceberg"


def build_output_metadata(
    result: "TableWriteResult", write: "TableWrite", *, partitions: int, seconds: float
) -> Mapping[str, MetadataValue]:
    """Metadata of a materialization; counts come from the commit, never from another scan.

    Args:
        result: What the write did.
        write: What was to be result.
        partitions: How many Dagster partitions were written; 0 without partitions.
        seconds: How long it took.
    """
    snapshot = result.snapshot
    metadata: dict[str, MetadataValue] = {
        **build_table_metadata(write.table),
        "dagster/column_schema": MetadataValue.table_schema(build_column_schema(result.table)),
        "dagster/row_count": MetadataValue.int(snapshot.total_records),
        "dagster/storage_kind": MetadataValue.text(STORAGE_KIND),
        "dagster/uri": MetadataValue.text(result.table.location()),
        "iceberg/snapshot_id": MetadataValue.text(str(snapshot.snapshot_id)),
        "iceberg/operation": MetadataValue.text(snapshot.operation.value),
        "iceberg/write_mode": MetadataValue.text(write.mode.value),
        "iceberg/added_files": MetadataValue.int(snapshot.added_files),
        "iceberg/deleted_files": MetadataValue.int(snapshot.deleted_files),
        "iceberg/added_bytes": MetadataValue.int(snapshot.added_bytes),
        "iceberg/schema_evolved": MetadataValue.bool(bool(result.schema_changes)),
        "iceberg/schema_changes": MetadataValue.json(list(result.schema_changes)),
        "iceberg/rows_dropped": MetadataValue.int(result.rows_dropped),
        "iceberg/commit_attempts": MetadataValue.int(result.attempts),
        "iceberg/duration": MetadataValue.float(round(seconds, 3)),
    }
    if (trace_id := snapshot.summary.get(TRACE_ID_PROPERTY)) is not None:
        metadata["iceberg/trace_id"] = MetadataValue.text(trace_id)
    if result.rows_outside:
        metadata["iceberg/rows_outside_partition"] = MetadataValue.int(result.rows_outside)
    if partitions == 1 and write.mode is WriteMode.OVERWRITE and result.rows is not None:
        # Of several partitions, and after an append or upsert, only another scan could tell.
        outside = result.rows_outside - result.rows_dropped
        metadata["dagster/partition_row_count"] = MetadataValue.int(result.rows - outside)
    if result.deduplicated:
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
