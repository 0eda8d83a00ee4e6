"""The Dagster assets to measure an IO manager with, and its stopwatch.

Uses only public Dagster APIs, so that it works for both our IO manager and the peer's.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    IOManager,
    asset,
    materialize,
)

from benchmarks.workers.rows import FIRST_DAY

_RANGE_TAGS = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")


@dataclass
class Stopwatch:
    """Seconds spent in an IO manager since the start of a run."""

    seconds: float = 0.0

    def time(self, work: Callable[[], Any]) -> Any:
        """Call a function and add its duration."""
        started = time.perf_counter()
        try:
            return work()
        finally:
            self.seconds += time.perf_counter() - started


class TimedIOManager(IOManager):
    """An IO manager, timed."""

    def __init__(self, inner: IOManager, stopwatch: Stopwatch) -> None:
        self._inner, self._stopwatch = inner, stopwatch

    def handle_output(self, context: Any, obj: Any) -> None:
        self._stopwatch.time(lambda: self._inner.handle_output(context, obj))

    def load_input(self, context: Any) -> Any:
        return self._stopwatch.time(lambda: self._inner.load_input(context))


@dataclass
class Pipeline:
    """A daily asset in `bench.<name>`, and one that reads it.

    Attributes:
        io_manager: The IO manager, or the resource that makes one.
        stopwatch: What that IO manager reports to.
        metadata: Further metadata of the asset, in the words of the IO manager.
    """

    io_manager: Any
    stopwatch: Stopwatch
    metadata: Mapping[str, Any] = field(default_factory=dict)
    instance: DagsterInstance = field(default_factory=DagsterInstance.ephemeral)

    def write(self, table: str, make: Callable[[AssetExecutionContext], Any], **run: Any) -> Mapping[str, Any]:
        """Materialize partitions; return the seconds of the IO manager and of the whole run."""
        return self._run([self._daily(table, make)], **run)

    def by_hand(self, table: str, work: Callable[[], object], **run: Any) -> Mapping[str, Any]:
        """Materialize partitions of an asset with its own storage code; return its seconds and those of the run."""

        @asset(key=["bench", table], partitions_def=_days())
        def daily() -> None:
            self.stopwatch.time(work)

        return self._run([daily], **run)

    def append(self, table: str, rows: Any, *, metadata: Mapping[str, Any]) -> bool:
        """Append rows in their own run; return whether it succeeded."""

        @asset(key=["bench", table], metadata={**metadata}, io_manager_key="io_manager")
        def appended() -> Any:
            return rows

        resources = {"io_manager": self.io_manager}
        return materialize([appended], resources=resources, instance=self.instance, raise_on_error=False).success

    def read(
        self,
        table: str,
        *,
        columns: list[str] | None,
        annotation: Any = pa.Table,
        collect: Callable[[Any], pa.Table] | None = None,
        **run: Any,
    ) -> Mapping[str, Any]:
        """Materialize an asset that loads a partition; return the seconds of the IO manager and the rows.

        The seconds include `collect`, for an input that is read only when it is used.
        """
        upstream = self._daily(table, lambda _: None)
        loaded: list[pa.Table] = []
        settings = {} if columns is None else {"columns": columns}

        @asset(
            partitions_def=_days(),
            ins={"rows": AssetIn(key=["bench", table], metadata=settings, input_manager_key="io_manager")},
        )
        def reader(rows: annotation) -> None:
            loaded.append(rows if collect is None else self.stopwatch.time(lambda: collect(rows)))

        measured = self._run([upstream, reader], selection=[reader], **run)
        return {**measured, "rows": loaded[0].num_rows, "columns": loaded[0].num_columns}

    def _daily(self, table: str, make: Callable[[AssetExecutionContext], Any]) -> AssetsDefinition:
        @asset(
            key=["bench", table],
            partitions_def=_days(),
            metadata={"partition_expr": "day", **self.metadata},
            io_manager_key="io_manager",
        )
        def daily(context: AssetExecutionContext) -> Any:
            return make(context)

        return daily

    def _run(
        self,
        assets: list[AssetsDefinition],
        *,
        day: str | None = None,
        days: tuple[str, str] | None = None,
        **materialize_arguments: Any,
    ) -> Mapping[str, Any]:
        self.stopwatch.seconds, started = 0.0, time.perf_counter()
        materialize(
            assets,
            partition_key=day,
            tags={} if days is None else dict(zip(_RANGE_TAGS, days, strict=True)),
            resources={"io_manager": self.io_manager},
            instance=self.instance,
            **materialize_arguments,
        )
        return {"seconds": self.stopwatch.seconds, "run_seconds": time.perf_counter() - started}


def _days() -> DailyPartitionsDefinition:
    return DailyPartitionsDefinition(FIRST_DAY.isoformat())
