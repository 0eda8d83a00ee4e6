"""The peer: its Arrow IO manager in Dagster runs. Runs in the peer's own environment."""

import time
from collections.abc import Mapping
from typing import Any

from dagster_iceberg.config import IcebergCatalogConfig  # type: ignore[import-not-found]
from dagster_iceberg.io_manager.arrow import PyArrowIcebergIOManager  # type: ignore[import-not-found]

from benchmarks.workers.pipeline import Pipeline, Stopwatch, TimedIOManager
from benchmarks.workers.protocol import serve
from benchmarks.workers.race import race
from benchmarks.workers.rows import daily_rows, day_of

_STOPWATCH = Stopwatch()


class _Timed(PyArrowIcebergIOManager):  # type: ignore[misc]
    """The peer's IO manager, timed."""

    def create_io_manager(self, context: Any) -> Any:
        return TimedIOManager(super().create_io_manager(context), _STOPWATCH)


def _pipeline(lake: Mapping[str, str]) -> Pipeline:
    config = IcebergCatalogConfig(properties={"type": "sql", **lake})
    return Pipeline(_Timed(name="floe", config=config, namespace="bench"), _STOPWATCH)


def write_partition(lake: Mapping[str, str], table: str, number: int, rows: int) -> Mapping[str, Any]:
    """Replace one day."""
    frame = daily_rows(number, rows, version=1)
    return _pipeline(lake).write(table, lambda _: frame, day=day_of(number).isoformat())


def read_partition(lake: Mapping[str, str], table: str, number: int, columns: list[str] | None) -> Mapping[str, Any]:
    """Load one day."""
    return _pipeline(lake).read(table, columns=columns, day=day_of(number).isoformat())


def append_day(lake: Mapping[str, str], table: str, number: int, rows: int) -> Mapping[str, Any]:
    """Append the rows of one day."""
    frame, pipeline = daily_rows(number, rows), _pipeline(lake)
    pipeline.metadata = {"write_mode": "append"}
    return pipeline.write(table, lambda _: frame, day=day_of(number).isoformat())


def backfill(lake: Mapping[str, str], table: str, days: int, rows: int) -> Mapping[str, Any]:
    """Write many days, in one run each."""
    frames = [daily_rows(number, rows) for number in range(days)]
    pipeline, started = _pipeline(lake), time.perf_counter()
    for number in range(days):
        pipeline.write(table, lambda _: frames[number], day=day_of(number).isoformat())  # noqa: B023 - called at once
    return {"seconds": time.perf_counter() - started}


def write_together(lake: Mapping[str, str], table: str, writers: int, each: int) -> Mapping[str, Any]:
    """Append from many processes at once."""

    def append(rows: Any, to: str = table) -> bool:
        return _pipeline(lake).append(to, rows, metadata={"write_mode": "append"})

    # Load here what the first run would load, instead of in every writer.
    append(daily_rows(0, 1), f"{table}_warm_up")
    return race(append, writers=writers, each=each)


if __name__ == "__main__":
    serve(
        {
            "write_partition": write_partition,
            "read_partition": read_partition,
            "append_day": append_day,
            "backfill": backfill,
            "write_together": write_together,
        }
    )
