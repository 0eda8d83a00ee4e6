"""Spark at work, through this package and by hand, in one session: what differs is the code around it.

By hand means the statements that somebody would write who knows Iceberg well. They run with the same
conf, on the same warm JVM, so a difference is what the package adds or saves.
"""

import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from dagster import AssetExecutionContext, OutputContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.workers import upkeep
from benchmarks.workers.pipeline import Pipeline, Stopwatch
from benchmarks.workers.protocol import serve
from benchmarks.workers.rows import FIRST_DAY, daily_rows, day_of, orders_of
from benchmarks.workers.tables import open_iceberg
from floe_dagster_iceberg import IcebergSparkResource, SparkIcebergIOManager

_STOPWATCH = Stopwatch()
_TARGET_FILE_BYTES = 128 * 1024 * 1024
_MEMORY = "4g"


class _Timed(SparkIcebergIOManager):
    """The IO manager with a stopwatch around it."""

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        _STOPWATCH.time(lambda: super(_Timed, self).handle_output(context, obj))


def _spark(lake: Mapping[str, str]) -> IcebergSparkResource:
    return IcebergSparkResource(iceberg=open_iceberg(lake), spark_config={"spark.driver.memory": _MEMORY})


def _session(lake: Mapping[str, str]) -> SparkSession:
    return _spark(lake).spark_session


def _pipeline(lake: Mapping[str, str]) -> Pipeline:
    # Opened here, outside of any run, so that no run takes it for its own and stops it.
    _session(lake)
    return Pipeline(_Timed(iceberg=open_iceberg(lake), pyspark=_spark(lake)), _STOPWATCH)


def _order_frame(session: SparkSession, rows: int, days: int) -> DataFrame:
    """Orders made by Spark itself, day after day, as a source sorted by time gives them."""
    ids = session.range(rows)
    per_day = -(-rows // days)
    return ids.select(
        sf.col("id"),
        sf.expr(f"date_add(DATE '{FIRST_DAY}', CAST(id DIV {per_day} AS INT))").alias("day"),
        (sf.hash("id") / 100.0).alias("amount"),
        sf.pmod(sf.hash("id"), sf.lit(256)).cast("int").alias("quantity"),
        sf.element_at(
            sf.array(*(sf.lit(region) for region in ("north", "east", "south", "west"))),
            (sf.pmod(sf.hash("id"), sf.lit(4)) + 1).cast("int"),
        ).alias("region"),
        sf.sha1(sf.col("id").cast("string")).alias("note"),
    )


def _timed(work: Callable[[], object]) -> Mapping[str, Any]:
    started = time.perf_counter()
    work()
    return {"seconds": time.perf_counter() - started}


def _overwrite_by_hand(frame: DataFrame, table: str, days: int) -> None:
    window = (sf.col("day") >= sf.lit(FIRST_DAY)) & (sf.col("day") < sf.lit(FIRST_DAY + timedelta(days=days)))
    frame.writeTo(f"floe.bench.{table}").overwrite(window)


def write(lake: Mapping[str, str], table: str, rows: int, days: int, *, by_hand: bool) -> Mapping[str, Any]:
    """Write many rows over many days."""
    pipeline = _pipeline(lake)
    frame = _order_frame(_session(lake), rows, days)
    if by_hand:
        return _timed(lambda: _overwrite_by_hand(frame, table, days))
    return pipeline.write(table, lambda _: frame, days=_window(days))


def backfill(lake: Mapping[str, str], table: str, days: int, rows: int, *, by_hand: bool) -> Mapping[str, Any]:
    """Write many days in one run, from rows in memory. By hand it is a run as well, of an asset that writes itself."""
    pipeline, session = _pipeline(lake), _session(lake)
    frame = session.createDataFrame(pa.concat_tables(daily_rows(number, rows) for number in range(days)))
    if by_hand:

        def overwrite() -> None:
            _overwrite_by_hand(frame, table, days)

        return _timed(lambda: pipeline.by_hand(table, overwrite, days=_window(days)))

    def single_run(_: AssetExecutionContext) -> DataFrame:
        return frame

    return _timed(lambda: pipeline.write(table, single_run, days=_window(days)))


def merge(lake: Mapping[str, str], table: str, ids: list[int], days: int) -> Mapping[str, Any]:
    """Update and add rows by key with MERGE."""
    session = _session(lake)
    rows = orders_of(pa.array(range(*ids), pa.int64()), days=days, version=1)
    session.createDataFrame(rows).createOrReplaceTempView("changes")
    statement = f"""
        MERGE INTO floe.bench.{table} t USING changes c ON t.id = c.id
        WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *
    """
    return _timed(lambda: session.sql(statement))


def compact(lake: Mapping[str, str], table: str, *, by_hand: bool) -> Mapping[str, Any]:
    """Put small files together."""
    session = _session(lake)
    if not by_hand:
        return upkeep.compact(lake, table, lambda: session)
    options = f"map('target-file-size-bytes', '{_TARGET_FILE_BYTES}')"
    call = f"CALL floe.system.rewrite_data_files(table => 'floe.bench.{table}', options => {options})"
    return _timed(lambda: session.sql(call).collect())


def expire(lake: Mapping[str, str], table: str, keep: int) -> Mapping[str, Any]:
    """Let all snapshots but the newest go."""
    session = _session(lake)
    now = f"TIMESTAMP '{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}'"
    arguments = f"table => 'floe.bench.{table}', older_than => {now}, retain_last => {keep}"
    return _timed(lambda: session.sql(f"CALL floe.system.expire_snapshots({arguments})").collect())


def _window(days: int) -> tuple[str, str]:
    return day_of(0).isoformat(), day_of(days - 1).isoformat()


if __name__ == "__main__":
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    serve({operation.__name__: operation for operation in (write, backfill, merge, compact, expire)})
