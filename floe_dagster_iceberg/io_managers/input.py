"""From an input's Dagster context to a read."""

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from dagster import InputContext, TableColumn
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from floe_dagster_iceberg.asset_metadata import declared_columns
from floe_dagster_iceberg.asset_settings import AssetSettings, InputSettings
from floe_dagster_iceberg.errors import NoSuchTableError, ValidationError
from floe_dagster_iceberg.incremental import IncrementalRead, Upstream
from floe_dagster_iceberg.io_managers.engines import Engine, ReadRequest
from floe_dagster_iceberg.io_managers.managers import input_settings, name_of, owner_of, upstream_settings, wanted_type
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS
from floe_dagster_iceberg.models.quantities import counted
from floe_dagster_iceberg.partitions import load_slice, partitions_def_of
from floe_dagster_iceberg.run_identity import (
    describe_run,
    find_written,
    keys_produced_by,
    partition_keys_of,
    telemetry_of,
)
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.managers import IcebergIOManagerBase


def declared_schema(context: InputContext) -> Schema:
    """Columns in metadata `dagster/column_schema` of the upstream asset, with Iceberg's type names.

    Raises:
        ValidationError: A type is not Iceberg's.
    """
    output = context.upstream_output
    columns = declared_columns(None if output is None else output.definition_metadata)
    return Schema(*(_to_iceberg(column, number, context) for number, column in enumerate(columns, start=1)))


def _to_iceberg(column: TableColumn, number: int, context: InputContext) -> NestedField:
    try:
        return NestedField(number, column.name, column.type, required=not column.constraints.nullable)
    except ValueError:
        raise ValidationError(
            f"Column '{column.name}' in metadata 'dagster/column_schema' of asset "
            f"'{context.asset_key.to_user_string()}' has type '{column.type}', which is not Iceberg's. "
            "Use an Iceberg type, such as 'long', 'timestamptz' or 'decimal(10, 2)'."
        ) from None


def read_input(io_manager: "IcebergIOManagerBase", context: InputContext) -> Any:
    """Read the rows of the upstream partitions as the annotated type."""
    attributes = {attrs.CATALOG: io_manager.iceberg.catalog_name, **describe_run(context)}
    with telemetry_of(context).operation("load_input", attributes) as operation:
        request = build_read_request(io_manager, context)
        operation.set_attributes(describe_table(request.table))
        annotation = wanted_type(context)
        engine = _engine_for(io_manager, context, annotation)
        operation.set_attributes({attrs.ENGINE: engine.name})
        try:
            data = engine.read(request, annotation)
        except NoSuchTableError as error:
            raise _not_materialized(error, context) from error
        operation.sentence = _describe_read(request, data, operation.attributes.get(attrs.PARTITION_KEY))
        return data


def _describe_read(request: ReadRequest, data: Any, partition: str | None) -> str:
    """One sentence about a read, for the log; what is read later has no number of rows yet."""
    where = f"{request.table} {partition}" if partition else str(request.table)
    # Of a DataFrame of pandas or polars; one of Spark may have a column of that name.
    is_frame = type(data).__name__ == "DataFrame" and isinstance(getattr(data, "shape", None), tuple)
    rows = data.num_rows if isinstance(data, pa.Table) else data.shape[0] if is_frame else None
    what = f"opened as {name_of(type(data))}" if rows is None else f"{counted(rows, 'row')} read"
    return f"{where}: {what}"


def _not_materialized(error: NoSuchTableError, context: InputContext) -> NoSuchTableError:
    if not context.has_asset_key:
        return error
    asset = context.asset_key.to_user_string()
    return NoSuchTableError(
        error.table,
        hint=f"Asset '{asset}' was not materialized yet: materialize it first. If another tool writes its table, name "
        "that by metadata 'schema' and 'table' of the asset.",
    )


def _engine_for(io_manager: "IcebergIOManagerBase", context: InputContext, annotation: Any) -> Engine:
    engines = io_manager.engines()
    engine = next((engine for engine in engines if engine.loads(annotation)), None)
    if engine is None:
        loadable = ", ".join(engine.loadable_types for engine in engines)
        raise ValidationError(
            f"The annotation {name_of(annotation)} of {owner_of(context)} cannot be loaded from Iceberg. "
            f"Annotate it as one of: {loadable}."
        )
    return engine


def build_read_request(io_manager: "IcebergIOManagerBase", context: InputContext) -> ReadRequest:
    """Which rows of which table an input asks for."""
    settings, upstream = input_settings(context), upstream_settings(context)
    if not io_manager.column_projection_enabled:
        settings = settings.model_copy(update={"columns": ()})
    own = io_manager.iceberg.environment_name
    # A version that the input names is that version in every environment.
    environment = None if settings.names_version else own
    written = find_written(context, own) if _reads_what_was_written(context, settings, upstream) else None
    if upstream.branch is not None and not settings.names_version:
        settings = settings.model_copy(update={"branch": upstream.branch})
    rows = load_slice(
        context,
        partition_expr=settings.partition_expr or upstream.partition_expr,
        partition_column=io_manager.partition_column,
    )
    if settings.changes is not None and _is_of_all_partitions(context):
        # The position moves on: rows of a partition that is not over yet would never be read.
        rows = ALL_ROWS
    reads_itself = context.has_asset_key and context.asset_key in keys_produced_by(context)
    return ReadRequest(
        table=io_manager.table_of(context, upstream),
        rows=rows,
        settings=settings,
        naive_timezone=upstream.naive_timezone,
        empty_schema=declared_schema(context) if reads_itself else None,
        plan_changes=(
            None
            if settings.changes is None
            else _incremental(io_manager, context, settings, upstream, environment=environment).plan
        ),
        environment=environment,
        written=written,
        output=None if context.has_asset_key or written is None else _describe_output(context),
        is_upsert=bool(upstream.upsert_keys),
    )


def _is_of_all_partitions(context: InputContext) -> bool:
    """Whether an input is of all partitions of its asset, and not of those that a partition mapping names."""
    definition = partitions_def_of(context)
    return definition is not None and set(context.asset_partition_keys) == {*partition_keys_of(context, definition)}


def _incremental(
    io_manager: "IcebergIOManagerBase",
    context: InputContext,
    settings: InputSettings,
    upstream: AssetSettings,
    *,
    environment: str | None,
) -> IncrementalRead:
    return IncrementalRead(
        io_manager.table_manager,
        context,
        owner_of(context),
        settings,
        Upstream(
            partitions_def_of(context),
            settings.partition_expr or upstream.partition_expr,
            io_manager.partition_column,
            upstream.naive_timezone,
        ),
        environment=environment,
    )


def _reads_what_was_written(context: InputContext, settings: InputSettings, upstream: AssetSettings) -> bool:
    """Whether an input reads the version that a step of this run wrote, and not the newest one.

    Outputs of ops are values of one run. A check judges the materialization that it follows, and so does whatever reads
    an asset from a branch of its own before that is published.
    """
    if settings.names_version:
        return False
    is_check = context.has_asset_key and not keys_produced_by(context)
    return not context.has_asset_key or is_check or upstream.branch is not None


def _describe_output(context: InputContext) -> str:
    output = context.upstream_output
    return "" if output is None else f"Output '{output.name}' of step '{output.step_key}' in run {output.run_id}"
