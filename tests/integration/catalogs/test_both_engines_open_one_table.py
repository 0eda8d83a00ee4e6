"""One configuration, two engines: PyIceberg and Spark read and write the same tables."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from floe_dagster_iceberg.resources import IcebergResource

RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
CANARY = "canary-3c58-secret"

# In a process of its own: a JVM keeps the jars it was started with, and other tests want others.
SPARK = """
import json, sys
from pyspark.sql import SparkSession

conf, statements = json.load(sys.stdin)
builder = SparkSession.builder.master("local[1]")
for key, value in conf.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
rows = [[list(row) for row in spark.sql(statement).collect()] for statement in statements]
shown = [str(spark.sql("SET -v").collect()), str(spark.sql("SET").collect())]
spark.stop()
print("ANSWER" + json.dumps({"rows": rows, "shown": shown}))
"""


def ask_spark(iceberg: IcebergResource, *statements: str) -> dict[str, Any]:
    """Run statements in a Spark session that is configured by the resource alone."""
    conf = {
        "spark.jars.packages": ",".join([RUNTIME, *iceberg.spark_packages()]),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        **iceberg.spark_conf(),
    }
    done = subprocess.run(
        [sys.executable, "-c", SPARK], input=json.dumps([conf, statements]), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.partition("ANSWER")[2])
    return {**result, "printed": done.stdout.partition("ANSWER")[0] + done.stderr}


@pytest.mark.slow
@pytest.mark.requirement("S2-FR-010", "S2-FR-046")
def test_each_engine_sees_what_the_other_wrote(tmp_path: Path) -> None:
    iceberg = IcebergResource(
        catalog_name="lake",
        catalog_uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=str(tmp_path / "warehouse"),
        storage_properties={"s3.secret-access-key": CANARY},
    )
    iceberg.catalog.create_namespace("sales")
    orders = iceberg.catalog.create_table("sales.orders", pa.schema([("id", pa.int64()), ("note", pa.string())]))
    orders.append(pa.table({"id": [1], "note": ["from PyIceberg"]}))

    result = ask_spark(
        iceberg,
        "SELECT * FROM lake.sales.orders",
        "INSERT INTO lake.sales.orders VALUES (2, 'from Spark')",
        "CREATE TABLE lake.sales.made_by_spark USING iceberg AS SELECT 7L AS id",
    )

    assert result["rows"][0] == [[1, "from PyIceberg"]]
    assert sorted(orders.refresh().scan().to_arrow()["id"].to_pylist()) == [1, 2]
    assert iceberg.catalog.load_table("sales.made_by_spark").scan().to_arrow().to_pylist() == [{"id": 7}]
    assert CANARY not in result["printed"]
    assert "s3.secret-access-key" in "".join(result["shown"])
    assert CANARY not in "".join(result["shown"])
