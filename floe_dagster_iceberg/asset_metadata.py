"""What a write did, as metadata that Dagster shows and plots."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from floe_dagster_iceberg.asset_settings import AssetSettings, table_identifier
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import TableIdentifier, WriteMode, snapshot_properties

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

    from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult

STORAGE_KIND = "iceberg"


def build_output_metadata(
    result: "TableWriteResult", write: "TableWrite", *, partitions: int, seconds: float
) -> Mapping[str, dg.MetadataValue]:
    """Metadata of a materialization; counts come from the commit, never from another scan.

    Args:
        result: What the write did.
        write: What was to be result.
        partitions: How many Dagster partitions were written; 0 without partitions.
        seconds: How long it took.
    """
    snapshot = result.snapshot
    metadata: dict[str, dg.MetadataValue] = {
        **build_table_metadata(write.table),
        "dagster/column_schema": dg.MetadataValue.table_schema(build_column_schema(result.table)),
        "dagster/row_count": dg.MetadataValue.int(snapshot.total_records),
        "dagster/storage_kind": dg.MetadataValue.text(STORAGE_KIND),
        "dagster/uri": dg.MetadataValue.text(result.table.location()),
        "iceberg/snapshot_id": dg.MetadataValue.text(str(snapshot.snapshot_id)),
        "iceberg/operation": dg.MetadataValue.text(snapshot.operation.value),
        "iceberg/write_mode": dg.MetadataValue.text(write.mode.value),
        "iceberg/added_files": dg.MetadataValue.int(snapshot.added_files),
        "iceberg/deleted_files": dg.MetadataValue.int(snapshot.deleted_files),
        "iceberg/added_bytes": dg.MetadataValue.int(snapshot.added_bytes),
        "iceberg/schema_evolved": dg.MetadataValue.bool(bool(result.schema_changes)),
        "iceberg/schema_changes": dg.MetadataValue.json(list(result.schema_changes)),
        "iceberg/rows_dropped": dg.MetadataValue.int(result.rows_dropped),
        "iceberg/commit_attempts": dg.MetadataValue.int(result.attempts),
        "iceberg/duration": dg.MetadataValue.float(round(seconds, 3)),
    }
    if (trace_id := snapshot.summary.get(snapshot_properties.TRACE_ID)) is not None:
        metadata["iceberg/trace_id"] = dg.MetadataValue.text(trace_id)
    if result.rows_outside:
        metadata["iceberg/rows_outside_partition"] = dg.MetadataValue.int(result.rows_outside)
    if partitions == 1 and write.mode is WriteMode.OVERWRITE and result.rows is not None:
        # Of several partitions, and after an append or upsert, only another scan could tell.
        outside = result.rows_outside - result.rows_dropped
        metadata["dagster/partition_row_count"] = dg.MetadataValue.int(result.rows - outside)
    if result.deduplicated:
        metadata["iceberg/deduplicated"] = dg.MetadataValue.bool(value=True)
    return metadata


def build_table_metadata(table: TableIdentifier) -> dict[str, dg.MetadataValue]:
    """Metadata that is known before anything is written, for definitions too."""
    return {"dagster/table_name": dg.MetadataValue.text(str(table))}


def build_column_schema(table: "Table") -> dg.TableSchema:
    """The table's columns with types, nullability, docs and what they do for the partitioning."""
    schema = table.schema()
    partitions: dict[int, list[str]] = {}
    for field in table.spec().fields:
        partitions.setdefault(field.source_id, []).append(f"partitioned by {field.transform}")
    return dg.TableSchema(columns=[_column(field, partitions.get(field.field_id, [])) for field in schema.fields])


def _column(field: "NestedField", notes: list[str]) -> dg.TableColumn:
    return dg.TableColumn(
        name=field.name,
        type=str(field.field_type),
        description=field.doc,
        constraints=dg.TableColumnConstraints(nullable=field.optional, other=notes),
    )


_MOST_KINDS = 3


def describe_iceberg_assets(
    assets: Iterable[dg.AssetsDefinition | dg.AssetSpec],
    *,
    default_namespace: str = "public",
    table_name_pattern: str = "{asset_key}",
) -> Sequence[dg.AssetsDefinition | dg.AssetSpec]:
    """Put table name and kind on assets that are stored in Iceberg, and refuse two on one table.

    An asset that names its table by metadata `table` may share it: that is saying so.

    Args:
        assets: The assets; others than these are not looked at.
        default_namespace: Namespace of assets whose key has one part, as of their IO manager.
        table_name_pattern: Name of tables, as of their IO manager.

    Raises:
        ValidationError: Two assets would be stored in one table, or settings are not valid.
    """
    owners: dict[TableIdentifier, dg.AssetKey] = {}

    def describe(spec: dg.AssetSpec) -> dg.AssetSpec:
        settings = AssetSettings.from_metadata(spec.metadata, owner=f"asset '{spec.key.to_user_string()}'")
        table = table_identifier(
            spec.key.path, settings, default_namespace=default_namespace, table_name_pattern=table_name_pattern
        )
        if settings.table is None:
            owner = owners.setdefault(table, spec.key)
            if owner != spec.key:
                raise ValidationError(
                    f"Assets '{owner.to_user_string()}' and '{spec.key.to_user_string()}' would both be stored in "
                    f"'{table}'. Rename one, or set metadata 'table' on one of them.",
                    table=table,
                )
        # Dagster shows so many kinds and no more; those that the user chose stay.
        kinds = {STORAGE_KIND} if len(spec.kinds) < _MOST_KINDS else set()
        return spec.merge_attributes(metadata=build_table_metadata(table), kinds=kinds)

    return dg.map_asset_specs(describe, assets)
