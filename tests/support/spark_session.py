"""One Spark for all tests of a pytest process: starting a JVM takes longer than any of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource

MASTER = "local[2]"
# The jars of all lakes always come along, so that tests of different ones can have the same Spark.
JARS = (
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.postgresql:postgresql:42.7.7",
    "org.apache.iceberg:iceberg-aws-bundle:1.12.0",
)
# Nothing runs often enough to be worth the better compiler.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# For the S3 server of the tests; the Spark of all tests may be older than the first test that uses it.
NO_CHECKSUMS = "-Daws.requestChecksumCalculation=when_required -Daws.responseChecksumValidation=when_required"
SMALL_MACHINE = {
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": f"{QUICK_START} {NO_CHECKSUMS}",
    "spark.jars.packages": ",".join(JARS),
    "spark.sql.shuffle.partitions": "2",
}


def spark_resource(iceberg: IcebergResource) -> IcebergSparkResource:
    """A resource whose session is one of the shared application, with the catalog of this test.

    Opened here, outside of any run, so that no run takes it for its own and stops it.
    """
    resource = IcebergSparkResource(iceberg=iceberg, master=MASTER, spark_config=SMALL_MACHINE)
    assert resource.spark_session is not None
    return resource


def to_frame(
    session: SparkSession, columns: Mapping[str, Sequence[Any]] | pa.Table, schema: pa.Schema | None = None
) -> DataFrame:
    """Rows as Spark holds them: instants as TIMESTAMP, times without a zone as TIMESTAMP_NTZ, UUIDs as text."""
    rows = _with_text_uuids(columns if isinstance(columns, pa.Table) else pa.table(dict(columns), schema=schema))
    kinds = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    for kind, field in zip(kinds.fields, rows.schema, strict=True):
        kind.metadata = {"comment": field.metadata[b"doc"].decode()} if field.metadata else {}
    # In one piece, so that a write makes as few files as the Arrow engine does.
    return session.createDataFrame(rows, kinds).coalesce(1)


def _with_text_uuids(rows: pa.Table) -> pa.Table:
    for number, field in enumerate(rows.schema):
        if isinstance(field.type, pa.UuidType):
            texts = [None if value is None else str(value) for value in rows.column(number).to_pylist()]
            rows = rows.set_column(number, field.name, pa.array(texts, pa.string()))
    return rows
