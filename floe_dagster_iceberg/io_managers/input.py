"""From an input's Dagster context to a read."""

from typing import TYPE_CHECKING, Any

from dagster import InputContext, TableColumn, TableSchema, TableSchemaMetadataValue
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.io_managers.base import input_settings, name_of, owner_of, upstream_settings, wanted_type
from floe_dagster_iceberg.io_managers.engines import Engine, ReadRequest
from floe_dagster_iceberg.partitions import load_slice
from floe_dagster_iceberg.run_identity import describe_run, keys_produced_by, telemetry_of
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.base import IcebergIOManagerBase


def declared_schema(context: InputContext) -> Schema:
    """Columns in metadata `dagster/column_schema` of the upstream asset, with Iceberg's type names.

    Raises:
        ValidationError: A type is not Iceberg's.
    """
    output = context.upstream_output
    declared = None if output is None else output.definition_metadata.get("dagster/column_schema")
    schema = declared.schema if isinstance(declared, TableSchemaMetadataValue) else declared
    columns = schema.columns if isinstance(schema, TableSchema) else []
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
        return engine.read(request, annotation)


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
    reads_itself = context.has_asset_key and context.asset_key in keys_produced_by(context)
    return ReadRequest(
        table=io_manager.table_of(context, upstream),
        rows=load_slice(
            context,
            partition_expr=settings.partition_expr or upstream.partition_expr,
            partition_column=io_manager.partition_column,
        ),
        settings=settings,
        naive_timezone=upstream.naive_timezone,
        empty_schema=declared_schema(context) if reads_itself else None,
    )
