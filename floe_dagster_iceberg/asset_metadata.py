"""Metadata that Dagster shows and plots: of materializations, and of assets that are stored in Iceberg."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import dagster as dg

from floe_dagster_iceberg.asset_settings import AssetSettings, table_identifier
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import TableIdentifier, TableObservation, TableState, WriteMode, snapshot_properties
from floe_dagster_iceberg.models.quantities import format_bytes

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from floe_dagster_iceberg.table.manager.repair import MetadataRepair
    from floe_dagster_iceberg.table.observation import ObservedTable
    from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult

STORAGE_KIND = "iceberg"
_MOST_KINDS = 3
# Where Dagster keeps what `AssetSpec.with_io_manager_key` sets.
_IO_MANAGER_KEY = "dagster/io_manager_key"
# What the next look at a table needs of an observation.
LAST_UPDATED: Final = "dagster/last_updated_timestamp"
SNAPSHOT_ID: Final = "iceberg/snapshot_id"
OBSERVED_AT: Final = "iceberg/observed_at"
SEQUENCE_NUMBER: Final = "iceberg/sequence_number"
TABLE_UUID: Final = "iceberg/table_uuid"


def build_output_metadata(
    result: "TableWriteResult",
    write: "TableWrite",
    *,
    partitions: int,
    seconds: float,
    repair: "MetadataRepair | None" = None,
    catalog: str | None = None,
) -> Mapping[str, dg.MetadataValue]:
    """Return the metadata of a materialization; counts come from the commit, never from another scan.

    Args:
        result: What the write did.
        write: The write that was requested.
        partitions: How many Dagster partitions were written; 0 without partitions.
        seconds: How long it took.
        repair: What a repair of the table's metadata did before the write, if there was one.
        catalog: Catalog to name before the table.
    """
    snapshot, added_bytes = result.snapshot, result.snapshot.added_bytes
    # For several partitions, and after an append or upsert, counting them would take another scan.
    rows = result.rows if partitions == 1 and write.mode is WriteMode.OVERWRITE else None
    counts = {
        "dagster/partition_row_count": None if rows is None else rows - result.rows_outside + result.rows_dropped,
        "dagster/row_count": snapshot.total_records,
        "iceberg/rows_added": snapshot.added_records,
        # Zeros of these would only hide what happened.
        "iceberg/rows_removed": snapshot.deleted_records or None,
        "iceberg/rows_outside_partition": result.rows_outside or None,
        "iceberg/rows_dropped": result.rows_dropped or None,
        "iceberg/added_files": snapshot.added_files,
        "iceberg/deleted_files": snapshot.deleted_files or None,
        "iceberg/commit_attempts": result.attempts if result.attempts > 1 else None,
        "iceberg/added_bytes": added_bytes,
    }
    # In the order in which Dagster shows them: what happened, then to what.
    metadata: dict[str, dg.MetadataValue] = {
        **{key: dg.MetadataValue.int(count) for key, count in counts.items() if count is not None},
        "iceberg/added_size": dg.MetadataValue.text(format_bytes(added_bytes)),
        "iceberg/write_mode": dg.MetadataValue.text(write.mode.value),
        "iceberg/operation": dg.MetadataValue.text(snapshot.operation.value),
        "iceberg/snapshot_id": dg.MetadataValue.text(str(snapshot.snapshot_id)),
        "iceberg/duration": dg.MetadataValue.float(round(seconds, 3)),
        "iceberg/schema_evolved": dg.MetadataValue.bool(bool(result.schema_changes)),
        **build_table_metadata(write.table, catalog),
        "dagster/column_schema": dg.MetadataValue.table_schema(build_column_schema(result.table)),
        "dagster/uri": dg.MetadataValue.text(result.table.location()),
    }
    if write.environment is not None:
        metadata["iceberg/environment"] = dg.MetadataValue.text(write.environment)
    if result.schema_changes:
        metadata["iceberg/schema_changes"] = dg.MetadataValue.json(list(result.schema_changes))
    if (trace_id := snapshot.summary.get(snapshot_properties.TRACE_ID)) is not None:
        metadata["iceberg/trace_id"] = dg.MetadataValue.text(trace_id)
    if repair is not None:
        metadata["iceberg/repaired_from"] = dg.MetadataValue.text(repair.location_before)
        metadata["iceberg/repaired_to"] = dg.MetadataValue.text(repair.location_after)
    if result.merged is not None:
        metadata["iceberg/rows_inserted"] = dg.MetadataValue.int(result.merged.inserted)
        metadata["iceberg/rows_updated"] = dg.MetadataValue.int(result.merged.updated)
        metadata["iceberg/rows_unchanged"] = dg.MetadataValue.int(result.merged.unchanged)
        if result.merged.deleted:
            metadata["iceberg/rows_deleted"] = dg.MetadataValue.int(result.merged.deleted)
    if result.deduplicated:
        metadata["iceberg/deduplicated"] = dg.MetadataValue.bool(value=True)
    if result.handed_over is not None:
        metadata["iceberg/engine"] = dg.MetadataValue.text(f"spark, because {result.handed_over}")
    return metadata


def build_table_metadata(table: TableIdentifier, catalog: str | None = None) -> dict[str, dg.MetadataValue]:
    """Return the metadata that is known before anything is written.

    Args:
        table: The table.
        catalog: Catalog to name before it.
    """
    return {
        "dagster/table_name": dg.MetadataValue.text(str(table) if catalog is None else f"{catalog}.{table}"),
        "dagster/storage_kind": dg.MetadataValue.text(STORAGE_KIND),
    }


def build_column_schema(table: "Table") -> dg.TableSchema:
    """Return the table's columns with types, nullability, docs and partition transforms."""
    schema = table.schema()
    partitions: dict[int, list[str]] = {}
    for field in table.spec().fields:
        partitions.setdefault(field.source_id, []).append(f"partitioned by {field.transform}")
    columns = [
        dg.TableColumn(
            name=field.name,
            type=str(field.field_type),
            description=field.doc,
            constraints=dg.TableColumnConstraints(nullable=field.optional, other=partitions.get(field.field_id, [])),
        )
        for field in schema.fields
    ]
    return dg.TableSchema(columns=columns)


def declared_columns(metadata: Mapping[str, object] | None) -> Sequence[dg.TableColumn]:
    """The columns in metadata `dagster/column_schema`; none without it."""
    declared = (metadata or {}).get("dagster/column_schema")
    schema = declared.schema if isinstance(declared, dg.TableSchemaMetadataValue) else declared
    return schema.columns if isinstance(schema, dg.TableSchema) else ()


IcebergAsset: TypeAlias = dg.AssetsDefinition | dg.AssetSpec | dg.SourceAsset
"""What may stand for tables in definitions: assets, specs of tables of others, source assets, observable or not."""
DEFAULT_IO_MANAGER_KEY = "io_manager"


def io_manager_keys(asset: IcebergAsset) -> dict[dg.AssetKey, str]:
    """The key of the IO manager of each asset; Dagster's default for those that name none."""
    match asset:
        case dg.SourceAsset():
            return {asset.key: asset.get_io_manager_key()}
        case dg.AssetSpec():
            return {asset.key: asset.metadata.get(_IO_MANAGER_KEY, DEFAULT_IO_MANAGER_KEY)}
    return {key: asset.get_io_manager_key_for_asset_key(key) for key in asset.keys}


def passes_values(asset: IcebergAsset) -> bool:
    """Whether an IO manager stores or loads values of an asset; it does not for one that returns nothing."""
    if isinstance(asset, dg.AssetsDefinition) and asset.is_executable and isinstance(asset.node_def, dg.OpDefinition):
        return not all(output.dagster_type.is_nothing for output in asset.node_def.output_defs)
    return True


def tables_of(
    assets: Iterable[IcebergAsset],
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
    for spec in (spec for each in assets for spec in (each.specs if isinstance(each, dg.AssetsDefinition) else [each])):
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
    assets: Iterable[IcebergAsset],
    tables: Mapping[dg.AssetKey, TableIdentifier],
    *,
    io_manager_key: str | None = None,
    catalog: str | None = None,
) -> Sequence[IcebergAsset]:
    """Add the table name and the kind to assets that are stored in Iceberg.

    Source assets stay as they are: Dagster has no way to change them.

    Args:
        assets: The assets.
        tables: Their tables; assets without one stay as they are.
        io_manager_key: IO manager for specs that name none.
        catalog: Name of the catalog, to begin table names with; None leaves it out.
    """

    def describe(spec: dg.AssetSpec) -> dg.AssetSpec:
        if spec.key not in tables:
            return spec
        # Dagster allows no more kinds than these; those that the user chose stay.
        kinds = {STORAGE_KIND} if len(spec.kinds) < _MOST_KINDS else set()
        return spec.merge_attributes(metadata=build_table_metadata(tables[spec.key], catalog), kinds=kinds)

    described: list[IcebergAsset] = []
    for each in assets:
        if isinstance(each, dg.SourceAsset):
            described.append(each)
            continue
        (mapped,) = dg.map_asset_specs(describe, [each])
        if isinstance(mapped, dg.AssetSpec) and io_manager_key is not None and _IO_MANAGER_KEY not in mapped.metadata:
            mapped = mapped.with_io_manager_key(io_manager_key)
        described.append(mapped)
    return described


def build_observation_metadata(
    found: "ObservedTable", *, catalog: str, qualified: bool = False
) -> dict[str, dg.MetadataValue]:
    """Return the metadata of a look at a table; what the table does not tell is left out.

    Args:
        found: The look.
        catalog: Name of the catalog in SQL.
        qualified: Whether to name it before the table.
    """
    observation, table, state = found.observation, found.table, found.observation.state
    # In the order in which Dagster shows them: what was found, then of what.
    metadata: dict[str, dg.MetadataValue | None] = {
        "dagster/row_count": _count(observation.row_count),
        LAST_UPDATED: None if state.last_updated is None else dg.MetadataValue.timestamp(state.last_updated),
        "iceberg/added_rows": _count(observation.added_rows),
        "iceberg/added_files": _count(observation.added_files),
        **_snapshot_metadata(observation, found.since, catalog),
        "iceberg/snapshots": _count(observation.snapshots),
        "iceberg/data_files": _count(observation.data_files),
        "iceberg/total_bytes": _count(observation.total_bytes),
        OBSERVED_AT: None if state.observed_at is None else dg.MetadataValue.timestamp(state.observed_at),
        SEQUENCE_NUMBER: _count(state.sequence_number),
        TABLE_UUID: dg.MetadataValue.text(state.table_uuid),
        **build_table_metadata(observation.table, catalog if qualified else None),
        "dagster/column_schema": dg.MetadataValue.table_schema(build_column_schema(table)),
        "dagster/uri": dg.MetadataValue.text(table.location()),
    }
    return {name: value for name, value in metadata.items() if value is not None}


def _snapshot_metadata(
    observation: TableObservation, since: TableState | None, catalog: str
) -> dict[str, dg.MetadataValue | None]:
    state, writer = observation.state, observation.writer
    if state.snapshot_id is None:
        return {}
    as_of = f"SELECT * FROM {catalog}.{observation.table} VERSION AS OF {{}}"  # noqa: S608 - shown, not run
    before = None if since is None else since.snapshot_id
    metadata: dict[str, dg.MetadataValue | None] = {
        SNAPSHOT_ID: dg.MetadataValue.text(str(state.snapshot_id)),
        "iceberg/time_travel": dg.MetadataValue.text(as_of.format(state.snapshot_id)),
    }
    if writer.engine is not None:
        metadata["iceberg/writer"] = dg.MetadataValue.text(str(writer))
    if writer.engine == "dagster" and writer.application is not None:
        metadata["iceberg/writer_run"] = dg.MetadataValue.dagster_run(writer.application)
    if before is not None and before != state.snapshot_id:
        metadata["iceberg/previous_snapshot_id"] = dg.MetadataValue.text(str(before))
        metadata["iceberg/time_travel_before"] = dg.MetadataValue.text(as_of.format(before))
    return metadata


def _count(value: int | None) -> dg.MetadataValue | None:
    return None if value is None else dg.MetadataValue.int(value)
