"""The schemas of small tables: events, and one of each nested type."""

from typing import Any

import pyarrow as pa

from floe_dagster_iceberg.models import FieldType, SchemaField, TableConfig, TableSchema

EVENTS = TableSchema(
    fields=[
        SchemaField(field_id=1, name="id", field_type=FieldType.LONG, required=True),
        SchemaField(field_id=2, name="at", field_type=FieldType.TIMESTAMP),
        SchemaField(field_id=3, name="region", field_type=FieldType.STRING),
    ]
)

NESTED = pa.schema(
    [
        ("price", pa.decimal128(12, 2)),
        ("day", pa.date32()),
        ("opens", pa.time64("us")),
        ("key", pa.uuid()),
        ("hash", pa.binary(16)),
        ("tags", pa.list_(pa.string())),
        ("address", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("scores", pa.map_(pa.string(), pa.float64())),
    ]
)


def events(**changes: Any) -> TableConfig:
    return TableConfig(**{"namespace": "bronze", "table_name": "events", "table_schema": EVENTS, **changes})
