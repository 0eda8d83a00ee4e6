"""A small pipeline that does not know where Spark runs, as a program: each Spark wants a process of its own.

Reads its configuration as JSON from stdin, prints what came of it as JSON to stdout.
"""

import json
import sys
from datetime import date
from typing import Any

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from floe_dagster_iceberg.io_managers.spark import SparkIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark_resource import IcebergSparkResource

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")


@dg.asset(partitions_def=DAYS, metadata={"partition_expr": "day"}, backfill_policy=dg.BackfillPolicy.single_run())
def orders(context: dg.AssetExecutionContext, pyspark: IcebergSparkResource) -> DataFrame:
    """A thousand orders a day."""
    first, last = context.partition_key_range
    days = F.expr(f"sequence(DATE'{first}', DATE'{last}')")
    frame = pyspark.spark_session.range(1000).select("id", F.explode(days).alias("day"))
    return frame.withColumn("amount", (F.col("id") % 7).cast("decimal(9, 2)"))


@dg.asset(metadata={"iceberg/write_mode": "upsert", "iceberg/upsert_keys": ["day"]})
def revenue(orders: DataFrame) -> DataFrame:
    """What each day earned."""
    return orders.groupBy("day").agg(F.sum("amount").cast("decimal(20, 2)").alias("revenue"))


def run(folder: str, spark: dict[str, Any]) -> dict[str, Any]:
    """Backfill all days in one run, one of them again, then sum up twice."""
    iceberg = IcebergResource(catalog_uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    pyspark = IcebergSparkResource(iceberg=iceberg, **spark)
    resources = {"pyspark": pyspark, "io_manager": SparkIcebergIOManager(iceberg=iceberg, pyspark=pyspark)}
    pyspark.spark_session.range(1).count()
    all_days = {"dagster/asset_partition_range_start": "2024-01-01", "dagster/asset_partition_range_end": "2024-01-03"}
    dg.materialize([orders], resources=resources, tags=all_days)
    dg.materialize([orders], resources=resources, partition_key="2024-01-02")
    for _ in range(2):
        dg.materialize([orders, revenue], selection=[revenue], resources=resources)
    return {name: _facts(iceberg, name) for name in ("orders", "revenue")}


def _facts(iceberg: IcebergResource, name: str) -> dict[str, Any]:
    table = iceberg.catalog.load_table(f"public.{name}")
    rows = table.scan().to_arrow()
    summed = rows.group_by("day").aggregate([([], "count_all")]).sort_by("day").to_pylist()
    return {
        "snapshots": len(table.metadata.snapshots),
        "rows": {str(day["day"]): day["count_all"] for day in summed},
        "sum": str(sum(row for row in rows.column(rows.column_names[-1]).to_pylist())),
        "last_day": str(max(rows.column("day").to_pylist(), default=date.min)),
    }


if __name__ == "__main__":
    configuration = json.load(sys.stdin)
    sys.stdout.write("ANSWER" + json.dumps(run(**configuration)))
