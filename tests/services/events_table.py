"""The configuration of a small table of events."""

from typing import Any

from floe_dagster_iceberg.models import FieldType, SchemaField, TableConfig, TableSchema

EVENTS = TableSchema(
    fields=[
        SchemaField(field_id=1, name="id", field_type=FieldType.LONG, required=True),
        SchemaField(field_id=2, name="at", field_type=FieldType.TIMESTAMP),
        SchemaField(field_id=3, name="region", field_type=FieldType.STRING),
    ]
)


def events(**changes: Any) -> TableConfig:
    return TableConfig(**{"namespace": "bronze", "table_name": "events", "table_schema": EVENTS, **changes})
