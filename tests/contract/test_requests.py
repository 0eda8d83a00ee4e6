"""How many requests an operation on an object store takes, and how many of them one after the other.

The numbers are exact, so that no request is added unnoticed. A change that saves some changes them here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetExecutionContext, DagsterInstance, DailyPartitionsDefinition, asset, materialize
from support.distant_lake import DistantLake
from support.servers.request_log import RequestLog
from support.servers.running import Servers

from floe_dagster_iceberg import ArrowIcebergIOManager, iceberg_settings
from floe_dagster_iceberg._pyiceberg.file_io import forget_all
from floe_dagster_iceberg.connections import forget_connections

# Long enough that requests which are made side by side overlap on a busy machine.
LATENCY_SECONDS = 0.5
FIRST = date(2024, 1, 1)
DAYS = 12
CATALOGS = ("sqlite", "rest")


@dataclass
class Store:
    """Assets of a lake, and the requests that they make."""

    lake: DistantLake

    def run(self, definition: Any, day: int, *, upstream: Any = None) -> RequestLog:
        """Materialize a day; the log holds the requests."""
        key, manager = str(FIRST + timedelta(day)), ArrowIcebergIOManager(iceberg=self.lake.place.iceberg())
        self.lake.set_latency(storage_seconds=LATENCY_SECONDS, catalog_seconds=LATENCY_SECONDS)
        with DagsterInstance.ephemeral() as instance, self.lake.log.recorded() as log:
            assets = [definition] if upstream is None else [definition, upstream]
            materialize(
                assets,
                partition_key=key,
                resources={"io_manager": manager},
                instance=instance,
                selection=[definition],
            )
        self.lake.set_latency(storage_seconds=0, catalog_seconds=0)
        return log

    def fill(self) -> None:
        """Write the days of `orders`, without waiting."""
        manager = self.lake.place.iceberg().table_manager
        manager.create_namespace("public", if_not_exists=True)
        daily = asset_of("overwrite")
        resources = {"io_manager": ArrowIcebergIOManager(iceberg=self.lake.place.iceberg())}
        with DagsterInstance.ephemeral() as instance:
            for day in range(DAYS):
                materialize([daily], partition_key=str(FIRST + timedelta(day)), resources=resources, instance=instance)


def rows_of(day: date) -> pa.Table:
    return pa.table({"id": list(range(100)), "day": [day] * 100, "amount": [float(n) for n in range(100)]})


def asset_of(mode: str) -> Any:
    keys = {"upsert_keys": ["id", "day"]} if mode == "upsert" else {}

    @asset(
        name="orders",
        partitions_def=DailyPartitionsDefinition(str(FIRST)),
        metadata={"partition_expr": "day", **iceberg_settings(write_mode=mode, **keys)},
    )
    def orders(context: AssetExecutionContext) -> pa.Table:
        rows = rows_of(date.fromisoformat(context.partition_key))
        return rows.set_column(2, "amount", pa.array([1.0] * 100)) if mode == "upsert" else rows

    return orders


@asset(partitions_def=DailyPartitionsDefinition(str(FIRST)))
def report(orders: pa.Table) -> None:
    assert orders.num_rows == 100


@pytest.fixture(params=CATALOGS)
def store(request: pytest.FixtureRequest, tmp_path: Path, servers: Servers) -> Iterator[Store]:
    with DistantLake.open(servers, request.param, tmp_path) as lake:
        yield Store(lake)


@pytest.fixture
def as_new_process() -> Iterator[Callable[[], None]]:
    def forget() -> None:
        forget_connections()
        forget_all()

    forget()
    yield forget
    forget()


LOAD, COMMIT = "GET catalog", "POST catalog"
WRITTEN = {"PUT data": 1, "PUT manifest list": 1}
# What each operation takes of the store; the catalog's own requests come on top of that.
EXPECTED: dict[tuple[str, str], tuple[dict[str, int], int]] = {
    ("first write", "sqlite"): ({**WRITTEN, "PUT manifest": 1, "PUT metadata": 1}, 3),
    ("append", "sqlite"): ({**WRITTEN, "PUT manifest": 1, "PUT metadata": 1}, 3),
    ("replace", "sqlite"): ({**WRITTEN, "PUT manifest": 3, "PUT metadata": 1}, 3),
    ("upsert", "sqlite"): ({**WRITTEN, "GET data": 1, "PUT manifest": 3, "PUT metadata": 1}, 4),
    ("load", "sqlite"): ({"GET data": 1}, 1),
    ("first write", "rest"): (
        {**WRITTEN, LOAD: 1, COMMIT: 2, "HEAD catalog": 2, "PUT manifest": 1},
        7,
    ),
    ("append", "rest"): ({**WRITTEN, LOAD: 1, COMMIT: 1, "PUT manifest": 1}, 4),
    ("replace", "rest"): ({**WRITTEN, LOAD: 1, COMMIT: 1, "PUT manifest": 3}, 4),
    ("upsert", "rest"): ({**WRITTEN, LOAD: 1, COMMIT: 1, "GET data": 1, "PUT manifest": 3}, 5),
    ("load", "rest"): ({LOAD: 1, "GET data": 1}, 2),
}
# The same in a process that has not seen the table.
NEW_PROCESS: dict[tuple[str, str], tuple[dict[str, int], int]] = {
    ("append", "sqlite"): (
        {**WRITTEN, "GET manifest list": 1, "GET metadata": 1, "PUT manifest": 1, "PUT metadata": 1},
        4,
    ),
    ("replace", "sqlite"): (
        {**WRITTEN, "GET manifest": 1, "GET manifest list": 1, "GET metadata": 1, "PUT manifest": 3, "PUT metadata": 1},
        5,
    ),
    ("load", "sqlite"): ({"GET data": 1, "GET manifest": 1, "GET manifest list": 1, "GET metadata": 1}, 4),
    ("append", "rest"): ({**WRITTEN, LOAD: 2, COMMIT: 1, "GET manifest list": 1, "PUT manifest": 1}, 5),
    ("replace", "rest"): (
        {**WRITTEN, LOAD: 2, COMMIT: 1, "GET manifest": 1, "GET manifest list": 1, "PUT manifest": 3},
        6,
    ),
    ("load", "rest"): ({LOAD: 2, "GET data": 1, "GET manifest": 1, "GET manifest list": 1}, 5),
}


def _run(store: Store, operation: str) -> RequestLog:
    match operation:
        case "append":
            return store.run(asset_of("append"), DAYS)
        case "replace":
            return store.run(asset_of("overwrite"), DAYS // 2)
        case "upsert":
            return store.run(asset_of("upsert"), DAYS // 2)
        case "load":
            return store.run(report, DAYS // 2, upstream=asset_of("overwrite"))
        case _:
            raise ValueError(operation)


def _catalog_of(store: Store) -> str:
    return "sqlite" if store.lake.catalog is None else "rest"


@pytest.mark.parametrize("operation", ["append", "replace", "upsert", "load"])
def test_an_operation_takes_these_requests_and_no_more(store: Store, operation: str) -> None:
    expected = EXPECTED[operation, _catalog_of(store)]
    store.fill()

    log = _run(store, operation)

    assert (log.counts, log.depth) == expected, log.describe()


def test_the_first_write_of_a_table_takes_these_requests_and_no_more(store: Store) -> None:
    expected = EXPECTED["first write", _catalog_of(store)]
    store.lake.place.iceberg().table_manager.create_namespace("public")

    log = store.run(asset_of("overwrite"), 0)

    assert (log.counts, log.depth) == expected, log.describe()


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["append", "replace", "load"])
def test_a_new_process_also_reads_what_the_operation_needs(
    store: Store, operation: str, as_new_process: Callable[[], None]
) -> None:
    expected = NEW_PROCESS[operation, _catalog_of(store)]
    store.fill()
    as_new_process()

    log = _run(store, operation)

    assert (log.counts, log.depth) == expected, log.describe()
