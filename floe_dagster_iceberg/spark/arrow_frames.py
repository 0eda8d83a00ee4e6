"""Arrow rows as DataFrames, and DataFrames as Arrow rows, for work that is handed to Spark."""

import math
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyspark.sql import DataFrame, SparkSession, types as spark

from floe_dagster_iceberg._pyiceberg.parquet import arrow_schema_without_ids
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.types import to_spark_type
from floe_dagster_iceberg.table.arrow_input import ArrowRows

# A task writes a file of about this size; in memory, rows take several times as much.
_BYTES_PER_TASK: Final = 512 * 1024 * 1024
_UUID_BYTES: Final = pa.binary(16)


def to_frame(session: SparkSession, rows: ArrowRows) -> DataFrame:
    """Rows in memory as a DataFrame; a stream is read to its end. Spark has no UUIDs, so they become text.

    Raises:
        EngineCapabilityError: Spark does not have the type of a column.
    """
    table = _to_texts(rows.to_table())
    frame = session.createDataFrame(table, to_struct(table.schema))
    # As few files as the rows fill: Spark cuts them into a task per core.
    return frame.coalesce(max(1, math.ceil(table.nbytes / _BYTES_PER_TASK)))


def to_arrow(frame: DataFrame, schema: Schema) -> pa.Table:
    """The rows of a DataFrame, in the types that Arrow has for a schema."""
    rows: pa.Table = run_action(frame.sparkSession, frame.toArrow)
    wanted = schema_to_pyarrow(schema, include_field_ids=False)
    return _to_uuids(rows, wanted).cast(wanted)


def to_struct(schema: pa.Schema) -> spark.StructType:
    """Spark's schema for Arrow columns, with their docs as comments.

    Raises:
        EngineCapabilityError: Spark does not have the type of a column.
    """
    return spark.StructType(
        [spark.StructField(field.name, _to_spark(field), metadata=_comment(field)) for field in schema]
    )


def _comment(field: pa.Field) -> dict[str, str]:
    doc = (field.metadata or {}).get(b"doc")
    return {"comment": doc.decode()} if doc else {}


def _to_spark(field: pa.Field) -> spark.DataType:
    if pa.types.is_null(field.type):
        return spark.NullType()
    (column,) = arrow_schema_without_ids(pa.schema([field]), format_version=2).fields
    return spark.DataType.fromDDL(to_spark_type(column.field_type))


def _to_texts(rows: pa.Table) -> pa.Table:
    for number, field in enumerate(rows.schema):
        if (text := _replace_uuid(field.type, pa.string())) != field.type:
            values = [_map_value(value, field.type, str) for value in rows.column(number).to_pylist()]
            rows = rows.set_column(number, field.with_type(text), pa.array(values, text))
    return rows


def _to_uuids(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    for number, field in enumerate(wanted):
        if (stored := _replace_uuid(field.type, _UUID_BYTES)) != field.type:
            texts = rows.column(number).to_pylist()
            values = [_map_value(value, field.type, lambda text: UUID(text).bytes) for value in texts]
            # Arrow makes no nested UUIDs of Python values, but of their bytes.
            rows = rows.set_column(number, field, pa.array(values, stored).cast(field.type))
    return rows


def _replace_uuid(kind: pa.DataType, to: pa.DataType) -> pa.DataType:
    """A type with another one in place of UUIDs, at any depth."""
    if isinstance(kind, pa.UuidType):
        return to
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_replace_uuid(field.type, to)) for field in kind])
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        make = pa.large_list if pa.types.is_large_list(kind) else pa.list_
        return make(kind.value_field.with_type(_replace_uuid(kind.value_type, to)))
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_replace_uuid(kind.key_type, to)),
            kind.item_field.with_type(_replace_uuid(kind.item_type, to)),
        )
    return kind


def _map_value(value: Any, kind: pa.DataType, convert: Callable[[Any], Any]) -> Any:
    if value is None:
        return None
    if isinstance(kind, pa.UuidType):
        return convert(value)
    if pa.types.is_struct(kind):
        return {field.name: _map_value(value[field.name], field.type, convert) for field in kind}
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return [_map_value(each, kind.value_type, convert) for each in value]
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return [
            (_map_value(key, kind.key_type, convert), _map_value(item, kind.item_type, convert)) for key, item in pairs
        ]
    return value
