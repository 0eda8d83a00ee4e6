"""Columns that an asset declares, for a table that is not there yet."""

from dagster import InputContext, TableColumn, TableSchema, TableSchemaMetadataValue
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from floe_dagster_iceberg.errors import ValidationError


def declared_schema(context: InputContext) -> Schema:
    """Columns that the upstream asset declares by metadata `dagster/column_schema`, with Iceberg's type names.

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
            "Write it as Iceberg does, such as 'long', 'timestamptz' or 'decimal(10, 2)'."
        ) from None
