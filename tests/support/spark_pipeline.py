"""A small pipeline that does not know where Spark runs, also as a program: each Spark wants a process of its own.

The program reads its configuration as JSON from stdin, and prints what came of it as JSON to stdout.
"""

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_trace_id
from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - Spark's own convention
)
from support.io_results import failure_of

from floe_dagster_iceberg.io_managers.managers import IcebergIOManager, SparkIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource
from floe_dagster_iceberg.spark.jobs import is_connect, run_action
from floe_dagster_iceberg.telemetry import Telemetry

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")
# What comes of it, wherever Spark runs.
EXPECTED = {
    "orders": {
        "snapshots": 2,
        "rows": {"2024-01-01": 1000, "2024-01-02": 1000, "2024-01-03": 1000},
        "sum": "8991.00",
        "last_day": "2024-01-03",
    },
    "revenue": {
        "snapshots": 1,
        "rows": {"2024-01-01": 1, "2024-01-02": 1, "2024-01-03": 1},
        "sum": "8991.00",
        "last_day": "2024-01-03",
    },
    "visits": {
        "rows": [["eu", 10], ["eu", None], ["us", 2]],
        "refs": ["main"],
        "refused": "1 row for 'public.visits' lies outside the partition being written",
    },
    "sensors": {
        "rows": [["eu", 1, None], ["us", 10, "x"]],
        "refs": ["main", "v1"],
        "format_version": 3,
        "engine": "spark, because PyIceberg does not write format version 3",
    },
    "traced": {"snapshots": True, "jobs": True},
}


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


class Visits(dg.Config):
    """The visits of a partition, as an SQL expression per row."""

    rows: list[str]


@dg.asset(partitions_def=dg.StaticPartitionsDefinition(["eu", "us"]), metadata={"partition_expr": "region"})
def visits(config: Visits, pyspark: IcebergSparkResource) -> DataFrame:
    """Visits to a table made by another program, with all regions in one file and no NULL allowed."""
    return pyspark.spark_session.sql(f"SELECT * FROM VALUES {', '.join(config.rows)} AS t(region, id)")  # noqa: S608


class Sensors(dg.Config):
    """The values of a partition or of all, in columns."""

    columns: dict[str, list[Any]]


@dg.asset(
    partitions_def=dg.StaticPartitionsDefinition(["eu", "us"]),
    metadata={"partition_expr": "region", "iceberg/format_version": 3, "iceberg/partition_spec": []},
)
def sensors(config: Sensors) -> pa.Table:
    """Arrow rows of a table that only Spark can write, with all regions in one file."""
    return pa.table(config.columns)


def run(folder: str, spark: dict[str, Any]) -> dict[str, Any]:
    """The pipeline as part of a surrounding trace."""
    with TracerProvider().get_tracer("pipeline").start_as_current_span("pipeline") as span:
        return _run(folder, spark, trace_id=format_trace_id(span.get_span_context().trace_id))


def _run(folder: str, spark: dict[str, Any], *, trace_id: str) -> dict[str, Any]:
    """Backfill all days in one run, one of them again, then sum up; then what is out of the ordinary."""
    iceberg = IcebergResource(catalog_uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    pyspark = IcebergSparkResource(iceberg=iceberg, **spark)
    resources = {"pyspark": pyspark, "io_manager": SparkIcebergIOManager(iceberg=iceberg, pyspark=pyspark)}
    pyspark.spark_session.range(1).count()
    all_days = {"dagster/asset_partition_range_start": "2024-01-01", "dagster/asset_partition_range_end": "2024-01-03"}
    dg.materialize([orders], resources=resources, tags=all_days)
    dg.materialize([orders], resources=resources, partition_key="2024-01-02")
    dg.materialize([orders, revenue], selection=[revenue], resources=resources)
    facts = {name: _facts(iceberg, name) for name in ("orders", "revenue")}
    facts["visits"] = _out_of_the_ordinary(iceberg, resources)
    facts["sensors"] = _handed_over(iceberg, pyspark)
    tables = [iceberg.catalog.load_table(f"public.{name}") for name in facts]
    stamps = {snapshot.summary["floe.trace-id"] for table in tables for snapshot in table.metadata.snapshots}
    return {**facts, "traced": {"snapshots": stamps == {trace_id}, "jobs": _tags_jobs(pyspark, trace_id)}}


def _tags_jobs(pyspark: IcebergSparkResource, trace_id: str) -> bool:
    """Whether the jobs of an operation are tagged with its trace."""
    session = pyspark.spark_session
    with Telemetry().operation("probe"):
        tags = run_action(session, session.getTags if is_connect(session) else session.sparkContext.getJobTags)
    return f"floe.trace-id={trace_id}" in tags


def _out_of_the_ordinary(iceberg: IcebergResource, resources: dict[str, Any]) -> dict[str, Any]:
    """A file that partially matches partitions, NULL in a required column, a row of another partition."""
    rows = pa.table({"region": ["eu", "us"], "id": [1, 2]})
    required = pa.schema([pa.field("region", pa.string()), pa.field("id", pa.int64(), nullable=False)])
    iceberg.table_manager.create_table("public.visits", required)
    iceberg.table_manager.append("public.visits", rows.cast(required))

    def visit(*rows: str) -> dg.ExecuteInProcessResult:
        config = {"ops": {"visits": {"config": {"rows": list(rows)}}}}
        return dg.materialize(
            [visits], resources=resources, partition_key="eu", run_config=config, raise_on_error=False
        )

    assert visit("('eu', 10L)").success
    assert visit("('eu', 10L)", "('eu', NULL)").success
    refused = visit("('eu', 11L)", "('us', 12L)")
    table = iceberg.catalog.load_table("public.visits")
    return {
        "rows": sorted(([*row.values()] for row in table.scan().to_arrow().to_pylist()), key=repr),
        "refs": sorted(table.metadata.refs),
        "refused": failure_of(refused, "visits").partition(" (")[0],
    }


def _handed_over(iceberg: IcebergResource, pyspark: IcebergSparkResource) -> dict[str, Any]:
    """Arrow rows that Spark writes: a new table, a new column, a partition that shares a file; and a tag."""
    resources = {"io_manager": IcebergIOManager(iceberg=iceberg, pyspark=pyspark)}

    def sense(columns: dict[str, list[Any]], **partitions: Any) -> dg.ExecuteInProcessResult:
        config = {"ops": {"sensors": {"config": {"columns": columns}}}}
        return dg.materialize([sensors], resources=resources, run_config=config, **partitions)

    both = {"dagster/asset_partition_range_start": "eu", "dagster/asset_partition_range_end": "us"}
    sense({"region": ["eu", "us"], "id": [1, 2]}, tags=both)
    done = sense({"region": ["us"], "id": [10], "note": ["x"]}, partition_key="us")
    pyspark.table_manager.create_tag("public.sensors", "v1")
    table = iceberg.catalog.load_table("public.sensors")
    (shown,) = done.asset_materializations_for_node("sensors")
    return {
        "rows": sorted(([*row.values()] for row in table.scan().to_arrow().to_pylist()), key=repr),
        "refs": sorted(table.metadata.refs),
        "format_version": table.metadata.format_version,
        "engine": shown.metadata["iceberg/engine"].value,
    }


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


def run_in_a_process(folder: Path, **spark: Any) -> dict[str, Any]:
    """What the program prints."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps({"folder": str(folder), "spark": spark}),
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result: dict[str, Any] = json.loads(done.stdout.partition("ANSWER")[2])
    return result


if __name__ == "__main__":
    configuration = json.load(sys.stdin)
    sys.stdout.write("ANSWER" + json.dumps(run(**configuration)))
