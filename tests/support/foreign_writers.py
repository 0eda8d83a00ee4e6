"""Tables as other engines leave them: what Iceberg's Java library writes and neither PyIceberg nor Spark SQL does."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import Table
from pyspark.sql import SparkSession
from support.table_facts import to_path


def java_table(session: SparkSession, name: str) -> Any:
    """The table of Iceberg's Java library; the name is that of Spark SQL."""
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(session._jsparkSession)
    return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, name)


def delete_by_equality(session: SparkSession, table: Table, column: str, value: int, partition: str = "") -> None:
    """What Flink writes: a file that names rows by their values, in a partition such as 'day=2024-01-01'."""
    field, jvm = table.schema().find_field(column), session._jvm
    path = to_path(table.location()) / "data" / f"equality-deletes-{value}.parquet"
    schema = pa.schema([pa.field(column, pa.int64(), metadata={"PARQUET:field_id": str(field.field_id)})])
    pq.write_table(pa.table({column: [value]}, schema=schema), path)
    java = java_table(session, f"{table.catalog.name}.{'.'.join(table.name())}")
    ids = session.sparkContext._gateway.new_array(jvm.int, 1)  # type: ignore[union-attr]
    ids[0] = field.field_id
    builder = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(java.spec()).ofEqualityDeletes(ids)
    if partition:
        builder = builder.withPartitionPath(partition)
    size = path.stat().st_size
    delete = builder.withPath(f"file://{path}").withFileSizeInBytes(size).withRecordCount(1).build()
    java.newRowDelta().addDeletes(delete).commit()


def add_column(session: SparkSession, name: str, column: str, kind: str, default: Any = None) -> None:
    """A column of a type, or with a default, that Spark SQL cannot add; types are written as in the metadata."""
    jvm: Any = session._jvm
    update, java_type = java_table(session, name).updateSchema(), jvm.org.apache.iceberg.types.Types.fromTypeName(kind)
    if default is None:
        update.addColumn(column, java_type).commit()
    else:
        literal = jvm.org.apache.iceberg.expressions.Expressions.lit(default)
        update.addColumn(column, java_type, None, literal).commit()


def metadata_json(table: Table) -> dict[str, Any]:
    """The metadata file of a table as it is, with what PyIceberg leaves out."""
    document: dict[str, Any] = json.loads(to_path(table.metadata_location).read_text())
    return document
