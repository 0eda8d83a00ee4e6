"""One Spark for all tests of a pytest process: starting a JVM takes longer than any of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark.schemas import to_spark_schema
from floe_dagster_iceberg.spark_resource import IcebergSparkResource
from floe_dagster_iceberg.table.arrow_rows import to_arrow_rows
from floe_dagster_iceberg.table.schemas import to_iceberg_schema

# The SQLite driver always comes along, so that tests of other catalogs can have the same Spark.
SMALL_MACHINE = {
    "spark.driver.memory": "1g",
    "spark.jars.packages": "org.xerial:sqlite-jdbc:3.50.3.0",
    "spark.sql.shuffle.partitions": "2",
}


def spark_resource(iceberg: IcebergResource) -> IcebergSparkResource:
    """A resource whose session is one of the shared application, with the catalog of this test.

    Opened here, outside of any run, so that no run takes it for its own and stops it.
    """
    resource = IcebergSparkResource(iceberg=iceberg, master="local[2]", spark_config=SMALL_MACHINE)
    assert resource.spark_session is not None
    return resource


def to_frame(
    session: SparkSession, columns: Mapping[str, Sequence[Any]] | pa.Table, schema: pa.Schema | None = None
) -> DataFrame:
    """Rows as Spark holds them: instants as TIMESTAMP, times without a zone as TIMESTAMP_NTZ, UUIDs as text."""
    given = columns if isinstance(columns, pa.Table) else pa.table(dict(columns), schema=schema)
    rows = to_arrow_rows(given)
    typed = rows.to_table().select(rows.schema.names)
    ddl = to_spark_schema(to_iceberg_schema("frame", typed.schema)) if rows.schema.names else ""
    # In one piece, so that a write makes as few files as the Arrow engine does.
    frame = session.createDataFrame(_with_text_uuids(typed), ddl).coalesce(1)
    for field in rows.schema:
        if field.metadata:
            frame = frame.withMetadata(field.name, {"comment": field.metadata[b"doc"].decode()})
    for name in rows.untyped_columns:
        frame = frame.selectExpr("*", f"NULL AS `{name}`")
    return frame


def _with_text_uuids(rows: pa.Table) -> pa.Table:
    for number, field in enumerate(rows.schema):
        if isinstance(field.type, pa.UuidType):
            texts = [None if value is None else str(value) for value in rows.column(number).to_pylist()]
            rows = rows.set_column(number, field.name, pa.array(texts, pa.string()))
    return rows
