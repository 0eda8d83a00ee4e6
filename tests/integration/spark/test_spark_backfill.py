"""Ten million rows of thirty days in a single run."""

from pathlib import Path

import psutil
import pytest
from dagster import AssetExecutionContext, BackfillPolicy, DailyPartitionsDefinition, asset, materialize
from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - Spark's own convention
)
from support.spark_lake import SparkLake

from floe_dagster_iceberg.io_managers.managers import SparkIcebergIOManager

pytestmark = pytest.mark.slow

ROWS, DAYS = 10_000_000, 30
MEGABYTE = 1024 * 1024
TARGET_BYTES = MEGABYTE
JANUARY = DailyPartitionsDefinition("2024-01-01", end_date="2024-01-31")


@pytest.mark.requirement("S2-FR-040", "D7")
def test_ten_million_rows_of_thirty_days_are_one_commit(tmp_path: Path) -> None:
    lake = SparkLake.open(tmp_path)

    @asset(
        partitions_def=JANUARY,
        backfill_policy=BackfillPolicy.single_run(),
        metadata={"partition_expr": "day", "iceberg/properties": {"write.target-file-size-bytes": str(TARGET_BYTES)}},
    )
    def events(context: AssetExecutionContext) -> DataFrame:
        assert len(context.partition_keys) == DAYS
        numbers = lake.session.range(0, ROWS, numPartitions=8)
        return numbers.select(
            F.expr(f"date_add(DATE'2024-01-01', CAST(id % {DAYS} AS INT))").alias("day"),
            F.col("id"),
            F.hash("id").alias("noise"),
        )

    memory = psutil.Process().memory_info().rss
    materialize(
        [events],
        resources={"io_manager": SparkIcebergIOManager(iceberg=lake.iceberg, pyspark=lake.pyspark)},
        tags={"dagster/asset_partition_range_start": "2024-01-01", "dagster/asset_partition_range_end": "2024-01-30"},
    )

    table = lake.table()
    files = table.inspect.files()
    assert len(table.metadata.snapshots) == 1
    assert sum(files["record_count"].to_pylist()) == ROWS
    sizes = files["file_size_in_bytes"].to_pylist()
    whole = [size for size in sizes if size > TARGET_BYTES / 2]
    # What is left of each day is one smaller file.
    assert (len(whole), len(sizes)) == (2 * DAYS, 3 * DAYS)
    assert all(0.75 * TARGET_BYTES < size < 1.1 * TARGET_BYTES for size in whole)
    # Rows never pass through Python; the JVM itself has a gigabyte.
    assert psutil.Process().memory_info().rss - memory < 200 * MEGABYTE
