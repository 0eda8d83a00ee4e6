"""This package: its Arrow IO manager in Dagster runs, its table manager, and maintenance without Spark."""

import time
from collections.abc import Mapping
from itertools import count
from typing import Any

import pyarrow as pa
from dagster import InputContext, OutputContext

from benchmarks.workers import tables, upkeep
from benchmarks.workers.pipeline import Pipeline, Stopwatch
from benchmarks.workers.protocol import serve
from benchmarks.workers.race import race
from benchmarks.workers.rows import daily_rows, day_of, orders_of
from benchmarks.workers.streaming import time_stream
from benchmarks.workers.tables import open_iceberg, open_manager
from floe_dagster_iceberg import ArrowIcebergIOManager
from floe_dagster_iceberg._pyiceberg import manifest_reader as manifest_reading, manifest_writer as manifest_writing
from floe_dagster_iceberg._pyiceberg.file_io import forget_all
from floe_dagster_iceberg.telemetry.setup import TelemetrySettings, prepare

_STOPWATCH = Stopwatch()
_STRANGERS = count()


class _Timed(ArrowIcebergIOManager):
    """The IO manager, timed."""

    def handle_output(self, context: OutputContext, obj: Any) -> None:
        _STOPWATCH.time(lambda: super(_Timed, self).handle_output(context, obj))

    def load_input(self, context: InputContext) -> Any:
        return _STOPWATCH.time(lambda: super(_Timed, self).load_input(context))


def _pipeline(lake: Mapping[str, str], **settings: Any) -> Pipeline:
    return Pipeline(_Timed(iceberg=open_iceberg(lake, **settings)), _STOPWATCH)


def _acquainted(lake: Mapping[str, str], table: str) -> Pipeline:
    """A pipeline that has loaded the newest version of the table."""
    if lake.get("type") != "rest":
        # A REST catalog is asked for the table at every use.
        open_manager(lake).load_table(f"bench.{table}")
    return _pipeline(lake)


def _stranger(lake: Mapping[str, str]) -> Pipeline:
    """A pipeline without caches and connection, as in a new process."""
    forget_all()
    manifest_reading.reader_of.cache_clear()
    manifest_writing.shape_of.cache_clear()
    return _pipeline(lake, catalog_properties={"benchmark.stranger": str(next(_STRANGERS))})


def watch(endpoint: str) -> Mapping[str, Any]:
    """Start sending spans and metrics to a collector."""
    prepare(TelemetrySettings(endpoint, resource={"service.name": "benchmark"}))
    return {}


def write_partition(lake: Mapping[str, str], table: str, number: int, rows: int, *, seen: bool) -> Mapping[str, Any]:
    """Replace one day, with or without having loaded the table before."""
    frame, pipeline = daily_rows(number, rows, version=1), _acquainted(lake, table) if seen else _stranger(lake)
    return pipeline.write(table, lambda _: frame, day=day_of(number).isoformat())


def read_partition(
    lake: Mapping[str, str], table: str, number: int, columns: list[str] | None, *, seen: bool
) -> Mapping[str, Any]:
    """Load one day, with or without having loaded the table before."""
    pipeline = _acquainted(lake, table) if seen else _stranger(lake)
    return pipeline.read(table, columns=columns, day=day_of(number).isoformat())


def append_day(lake: Mapping[str, str], table: str, number: int, rows: int) -> Mapping[str, Any]:
    """Append the rows of one day."""
    frame, pipeline = daily_rows(number, rows), _pipeline(lake)
    pipeline.metadata = {"iceberg/write_mode": "append"}
    return pipeline.write(table, lambda _: frame, day=day_of(number).isoformat())


def upsert_day(lake: Mapping[str, str], table: str, number: int, rows: int) -> Mapping[str, Any]:
    """Update all rows of one day by their keys."""
    frame, manager = daily_rows(number, rows, version=1), open_manager(lake)
    started = time.perf_counter()
    manager.upsert(f"bench.{table}", frame, ["id", "day"])
    return {"seconds": time.perf_counter() - started}


def backfill(lake: Mapping[str, str], table: str, days: int, rows: int, *, single_run: bool) -> Mapping[str, Any]:
    """Write many days, in one run or in one run each."""
    frames = [daily_rows(number, rows) for number in range(days)]
    pipeline, started = _pipeline(lake), time.perf_counter()
    if single_run:
        first, last = day_of(0).isoformat(), day_of(days - 1).isoformat()
        pipeline.write(table, lambda _: pa.concat_tables(frames), days=(first, last))
    else:
        for number in range(days):
            pipeline.write(table, lambda _: frames[number], day=day_of(number).isoformat())  # noqa: B023 - called at once
    return {"seconds": time.perf_counter() - started}


def upsert(lake: Mapping[str, str], table: str, ids: list[int], days: int) -> Mapping[str, Any]:
    """Update and add rows by key."""
    frame, manager = orders_of(pa.array(range(*ids), pa.int64()), days=days, version=1), open_manager(lake)
    started = time.perf_counter()
    manager.upsert(f"bench.{table}", frame, ["id"])
    return {"seconds": time.perf_counter() - started}


def merge(lake: Mapping[str, str], table: str, ids: list[int], days: int) -> Mapping[str, Any]:
    """Update, add and delete rows by key, unless they are older."""
    frame, manager = orders_of(pa.array(range(*ids), pa.int64()), days=days, version=1), open_manager(lake)
    started = time.perf_counter()
    manager.merge(f"bench.{table}", frame, ["id"], delete_when="quantity < 26", order_by=["day"])
    return {"seconds": time.perf_counter() - started}


def stream(lake: Mapping[str, str], table: str, total_bytes: int, batch_rows: int) -> Mapping[str, Any]:
    """Append a long stream."""
    manager = open_manager(lake)
    manager.load_table(f"bench.{table}")
    return time_stream(
        lambda reader: manager.append(f"bench.{table}", reader), total_bytes=total_bytes, batch_rows=batch_rows
    )


def write_together(lake: Mapping[str, str], table: str, writers: int, each: int) -> Mapping[str, Any]:
    """Append from many processes at once."""

    def append(rows: Any, to: str = table) -> bool:
        return _pipeline(lake).append(to, rows, metadata={"iceberg/write_mode": "append"})

    # Load here what the first run would load, instead of in every writer.
    append(daily_rows(0, 1), f"{table}_warm_up")
    return race(append, writers=writers, each=each)


if __name__ == "__main__":
    serve(
        {
            operation.__name__: operation
            for operation in (
                watch,
                write_partition,
                read_partition,
                append_day,
                upsert_day,
                backfill,
                upsert,
                merge,
                stream,
                write_together,
                upkeep.compact,
                upkeep.expire,
                upkeep.measure_tables,
                upkeep.measure_fleet,
                tables.create,
                tables.age,
                tables.churn,
                tables.fill_wide,
                tables.fill_days,
                tables.fill_orders,
                tables.create_many,
                tables.tag_head,
                tables.go_back_to_tag,
                tables.fill_and_replace,
            )
        }
    )
