"""Metadata that Dagster shows and plots: of materializations, and of assets that are stored in Iceberg."""

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
_MOST_KINDS = 3


def build_output_metadata(
    result: "TableWriteResult", write: "TableWrite", *, partitions: int, seconds: float
) -> Mapping[str, dg.MetadataValue]:
    """Return the metadata of a materialization; counts come from the commit, never from another scan.

    Args:
        result: What the write did.
        write: The write that was requested.
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
        # For several partitions, and after an append or upsert, this would take another scan.
        outside = result.rows_outside - result.rows_dropped
        metadata["dagster/partition_row_count"] = dg.MetadataValue.int(result.rows - outside)
    if result.deduplicated:
        metadata["iceberg/deduplicated"] = dg.MetadataValue.bool(value=True)
    return metadata


def build_table_metadata(table: TableIdentifier) -> dict[str, dg.MetadataValue]:
    """Return the metadata that is known before anything is written."""
    return {"dagster/table_name": dg.MetadataValue.text(str(table))}


def build_column_schema(table: "Table") -> dg.TableSchema:
    """Return the table's columns with types, nullability, docs and partition transforms."""
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


def tables_of(
    assets: Iterable[dg.AssetsDefinition | dg.AssetSpec],
    *,
    default_namespace: str = "public",
    table_name_pattern: str = "{asset_key}",
    unique: bool = False,
) -> dict[dg.AssetKey, TableIdentifier]:
    """Return the table of every asset; this is where the settings of assets are read, once.

    Args:
        assets: Assets that are stored in Iceberg.
        default_namespace: Namespace of assets whose key has one part, as in their IO manager.
        table_name_pattern: Name of tables, as in their IO manager.
        unique: Whether to reject two assets on one table, unless they name it by metadata `table`.

    Raises:
        ValidationError: The settings of an asset are not valid, or two assets share a table.
    """
    tables: dict[dg.AssetKey, TableIdentifier] = {}
    owners: dict[TableIdentifier, dg.AssetKey] = {}
    for spec in (spec for each in assets for spec in ([each] if isinstance(each, dg.AssetSpec) else each.specs)):
        settings = AssetSettings.from_metadata(spec.metadata, owner=f"asset '{spec.key.to_user_string()}'")
        table = tables[spec.key] = table_identifier(
            spec.key.path, settings, default_namespace=default_namespace, table_name_pattern=table_name_pattern
        )
        owner = owners.setdefault(table, spec.key) if settings.table is None else spec.key
        if unique and owner != spec.key:
            raise ValidationError(
                f"Assets '{owner.to_user_string()}' and '{spec.key.to_user_string()}' would both be stored in "
                f"'{table}'. Rename one, or set metadata 'table' on one of them.",
                table=table,
            )
    return tables


def describe_iceberg_assets(
    assets: Iterable[dg.AssetsDefinition | dg.AssetSpec], tables: Mapping[dg.AssetKey, TableIdentifier]
) -> Sequence[dg.AssetsDefinition | dg.AssetSpec]:
    """Add the table name and the kind to assets that are stored in Iceberg."""

    def describe(spec: dg.AssetSpec) -> dg.AssetSpec:
        # Dagster allows no more kinds than these; those that the user chose stay.
        kinds = {STORAGE_KIND} if len(spec.kinds) < _MOST_KINDS else set()
        return spec.merge_attributes(metadata=build_table_metadata(tables[spec.key]), kinds=kinds)

    return dg.map_asset_specs(describe, assets)
