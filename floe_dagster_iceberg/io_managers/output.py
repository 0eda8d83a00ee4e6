"""From an output's Dagster context to a write, and from its result to metadata.

Separate from the IO managers so that loading a code location does not load PyIceberg and Arrow.
"""

import time
from typing import TYPE_CHECKING, Any

from dagster import OutputContext
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg import run_identity
from floe_dagster_iceberg.asset_metadata import build_output_metadata
from floe_dagster_iceberg.asset_settings import AssetSettings
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.io_managers.base import name_of, output_settings, owner_of
from floe_dagster_iceberg.io_managers.engines import Engine
from floe_dagster_iceberg.models import CommitStrategy, WriteMode
from floe_dagster_iceberg.models.writing import EvolutionMode, RowsOutside
from floe_dagster_iceberg.partitions import derive_layout, load_slice, partitions_def_of
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, describe_written
from floe_dagster_iceberg.telemetry.metrics import count_deduplicated, count_written

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.base import IcebergIOManagerBase


def store_output(io_manager: "IcebergIOManagerBase", context: OutputContext, data: Any) -> None:
    """Write data into the table of an output, and report the result as metadata."""
    started = time.perf_counter()
    known = {attrs.CATALOG: io_manager.iceberg.catalog_name, **run_identity.describe_run(context)}
    with run_identity.telemetry_of(context).operation("handle_output", known) as operation:
        write = build_table_write(io_manager, context)
        strategy = CommitStrategy.MERGE_COMMIT if write.merge_manifests else CommitStrategy.FAST_APPEND
        operation.set_attributes(
            {
                **describe_table(write.table),
                attrs.WRITE_MODE: write.mode.value,
                attrs.COMMIT_STRATEGY: strategy.value,
            }
        )
        engine = _engine_for(io_manager, data, context)
        operation.set_attributes({attrs.ENGINE: engine.name})
        result = engine.write(data, write)
        operation.set_attributes(
            {
                **describe_written(result.snapshot),
                attrs.ATTEMPTS: result.attempts,
                attrs.DEDUPLICATED: result.deduplicated,
                attrs.TABLE_CREATED: result.created,
            }
        )
        if result.deduplicated:
            count_deduplicated(operation.attributes)
        else:
            count_written(result.snapshot, operation.attributes)
    partitions = len(context.asset_partition_keys) if context.has_asset_partitions else 0
    seconds = time.perf_counter() - started
    context.add_output_metadata(build_output_metadata(result, write, partitions=partitions, seconds=seconds))
    if context.has_asset_key:
        run_identity.set_data_version(context, context.asset_key, str(result.snapshot.snapshot_id))


def build_table_write(io_manager: "IcebergIOManagerBase", context: OutputContext) -> TableWrite:
    """The write of an output, without its rows."""
    settings = output_settings(context)
    keys = list(context.asset_partition_keys) if context.has_asset_partitions else []
    run = run_identity.load_run_identity(context)
    evolution = EvolutionMode.WIDEN if io_manager.schema_evolution_enabled else EvolutionMode.NONE
    strategy = settings.commit_strategy or io_manager.commit_strategy
    columns: dict[str, Any] = {
        "partition_expr": settings.partition_expr,
        "partition_column": io_manager.partition_column,
    }
    return TableWrite(
        table=io_manager.table_of(context, settings),
        mode=_write_mode(io_manager, context, settings),
        scope=RowScope(
            load_slice(context, **columns),
            rows_outside=_rows_outside(settings.rows_outside_partition or io_manager.rows_outside_partition),
            naive_timezone=settings.naive_timezone,
        ),
        idempotency_key=run_identity.build_idempotency_key(context, run, keys),
        layout=settings.partition_spec or (lambda: derive_layout(partitions_def_of(context), **columns)),
        keys=settings.upsert_keys,
        evolution=settings.schema_evolution or evolution,
        properties=settings.properties,
        default_properties=io_manager.table_manager.config.default_table_properties,
        snapshot_properties={
            **settings.snapshot_properties,
            **run_identity.build_snapshot_properties(context, run, keys),
        },
        branch=settings.branch or MAIN_BRANCH,
        merge_manifests=strategy is CommitStrategy.MERGE_COMMIT,
        sort_by=settings.sort_by,
        create=io_manager.auto_create_tables,
    )


def _engine_for(io_manager: "IcebergIOManagerBase", data: Any, context: OutputContext) -> Engine:
    engines = io_manager.engines()
    for engine in engines:
        if engine.accepts(data):
            return engine
    accepted = ", ".join(engine.accepted_types for engine in engines)
    raise ValidationError(
        f"The value of {owner_of(context)} is a {name_of(type(data))}, which {type(io_manager).__name__} cannot write "
        f"to '{io_manager.table_of(context)}'. Return one of: {accepted}."
    )


def _write_mode(io_manager: "IcebergIOManagerBase", context: OutputContext, settings: AssetSettings) -> WriteMode:
    mode = settings.resolve_write_mode(partitioned=context.has_asset_partitions, default=io_manager.write_mode)
    if mode is WriteMode.UPSERT and not settings.upsert_keys:
        raise ValidationError(
            f"The IO manager upserts, but {owner_of(context)} names no columns that identify a row. "
            'Set metadata {"iceberg/upsert_keys": ["<column>"]} on it, or another "iceberg/write_mode".'
        )
    return mode


def _rows_outside(value: str) -> RowsOutside:
    match value:
        case "error" | "drop" | "allow":
            return value
        case _:
            raise ValidationError(f"rows_outside_partition is '{value}'. Use error, drop or allow.")
