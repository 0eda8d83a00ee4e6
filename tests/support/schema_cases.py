"""Short words for schema changes."""

from floe_dagster_iceberg.models import SchemaChange, SchemaChangeType, SchemaEvolution

T = "bronze.orders"


def change(kind: str, column: str, **arguments: object) -> SchemaChange:
    return SchemaChange(change_type=SchemaChangeType(kind), column_name=column, **arguments)


def forced(*changes: SchemaChange) -> SchemaEvolution:
    return SchemaEvolution(changes=changes, allow_incompatible_changes=True)
