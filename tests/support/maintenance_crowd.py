"""A table at work: four writers that append and one that replaces a partition."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Self

import pyarrow as pa
from support.lake import open_catalog
from support.maintenance_tables import DAY, ORDERS, rows_of

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager

FIRST_DAY = date(2024, 1, 1)


class Crowd:
    """Four writers that append and one that replaces a partition, until stopped."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stop = folder, threading.Event()
        self.expected: set[int] = set()
        self.failures: list[BaseException] = []
        self._latest_overwrite = {row["id"] for batch in range(8) for row in rows_of(batch, days=1).to_pylist()}
        self._running: dict[int, datetime] = {}
        self._lock, self._reader = threading.Lock(), patient(folder)
        self._threads = [threading.Thread(target=self._append, args=(number,)) for number in range(4)]
        self._threads.append(threading.Thread(target=self._overwrite))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.expected |= self._latest_overwrite

    def _append(self, number: int) -> None:
        manager = patient(self._folder)
        for batch in self._until_stopped():
            first = (number + 1) * 1_000_000 + batch * 100
            ids = list(range(first, first + 8))
            rows = _rows(ids, [FIRST_DAY + timedelta(days=1 + row % 4) for row in ids])
            with self._noting_failures(manager):
                manager.append(ORDERS, rows)
                with self._lock:
                    self.expected.update(ids)

    def _overwrite(self) -> None:
        manager = patient(self._folder)
        for batch in self._until_stopped():
            ids = list(range(batch * 10, batch * 10 + 5))
            with self._noting_failures(manager):
                manager.overwrite(ORDERS, _rows(ids, [FIRST_DAY] * 5), overwrite_filter="day = '2024-01-01'")
                self._latest_overwrite = set(ids)

    def _until_stopped(self) -> Iterator[int]:
        batch = 0
        # Busy, but not so busy that a table could not get a word in.
        while not self._stop.wait(0.5):
            batch += 1
            yield batch

    @contextmanager
    def _noting_failures(self, manager: IcebergTableManager) -> Iterator[None]:
        with self._lock:
            self._running[threading.get_ident()] = _newest(manager)
        try:
            yield
        except FloeStorageError as error:
            self.failures.append(error)
        finally:
            with self._lock:
                del self._running[threading.get_ident()]

    def a_day_later(self) -> datetime:
        """A day after what the oldest running write began with: none takes longer than the floor of expiry."""
        with self._lock:
            return min([_newest(self._reader), *self._running.values()]) + DAY


def patient(folder: Path) -> IcebergTableManager:
    """A writer that looks like another process to the catalog and never gives up."""
    return IcebergTableManager(
        open_catalog(folder), config=IcebergTableManagerConfig(max_commit_retries=10, retry_base_delay_seconds=0.2)
    )


def _newest(manager: IcebergTableManager) -> datetime:
    """When the newest snapshot was stamped, which is before it landed. Those that follow it are stamped later."""
    return manager.get_current_snapshot(ORDERS).timestamp


def _rows(ids: list[int], days: list[date]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "day": pa.array(days, pa.date32()),
            "amount": pa.array([1.0] * len(ids), pa.float64()),
            "region": pa.array(["EU"] * len(ids), pa.string()),
        }
    )
