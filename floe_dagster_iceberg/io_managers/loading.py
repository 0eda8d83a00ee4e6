"""From an input's Dagster context to the rows it asks for.

Kept apart from the IO managers so that loading a code location does not load PyIceberg and Arrow.
"""

from typing import TYPE_CHECKING, Any

from dagster import InputContext

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.io_managers.contexts import input_settings, name_of, owner_of, upstream_settings, wanted_type
from floe_dagster_iceberg.io_managers.declared_schema import declared_schema
from floe_dagster_iceberg.io_managers.engine import Engine, ReadRequest
from floe_dagster_iceberg.partitions import load_slice
from floe_dagster_iceberg.run_identity import describe_run, keys_produced_by, telemetry_of
from floe_dagster_iceberg.telemetry import attributes as names, describe_table

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.base import IcebergIOManagerBase


def read_input(io_manager: "IcebergIOManagerBase", context: InputContext) -> Any:
    """Read the rows of the upstream partitions as what the input's annotation names."""
    told = {names.CATALOG: io_manager.iceberg.catalog_name, **describe_run(context)}
    with telemetry_of(context).operation("load_input", told) as operation:
        request = build_read_request(io_manager, context)
        operation.tell(describe_table(request.table))
        annotation = wanted_type(context)
        engine = _engine_for(io_manager, context, annotation)
        operation.tell({names.ENGINE: engine.name})
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
