"""How many requests a write or a read with Spark takes on an object store, beside those of Spark alone.

The numbers are exact, so that no request is added unnoticed. Our own side loads a table once before Spark does, and
once after it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetExecutionContext, DagsterInstance, DailyPartitionsDefinition, asset, materialize
from pyspark.sql import DataFrame, functions
from support.distant_lake import DistantLake
from support.servers.request_log import RequestLog
from support.servers.running import Servers
from support.spark_session import spark_resource, to_frame

from floe_dagster_iceberg import IcebergSparkResource, SparkIcebergIOManager, iceberg_settings

FIRST = date(2024, 1, 1)
DAYS = 4
DAILY = DailyPartitionsDefinition(str(FIRST))


@dataclass
class Store:
    """A table of days that Spark works on, and the requests that it takes."""

    lake: DistantLake
    pyspark: IcebergSparkResource

    def rows(self, day: date) -> DataFrame:
        columns = {"id": list(range(100)), "day": [day] * 100, "amount": [float(n) for n in range(100)]}
        return to_frame(self.pyspark.spark_session, pa.table(columns))

    def asset_of(self, name: str, mode: str) -> Any:
        keys = {"upsert_keys": ["id", "day"]} if mode == "upsert" else {}

        @asset(
            name=name,
            partitions_def=DAILY,
            metadata={"partition_expr": "day", **iceberg_settings(write_mode=mode, **keys)},
        )
        def written(context: AssetExecutionContext) -> DataFrame:
            return self.rows(date.fromisoformat(context.partition_key))

        return written

    def run(self, definition: Any, day: date, *, upstream: Any = None) -> RequestLog:
        """Materialize a day; the log holds the requests."""
        manager = SparkIcebergIOManager(iceberg=self.pyspark.iceberg, pyspark=self.pyspark)
        assets = [definition] if upstream is None else [definition, upstream]

        def run_asset() -> None:
            with DagsterInstance.ephemeral() as instance:
                materialize(
                    assets,
                    partition_key=str(day),
                    resources={"io_manager": manager},
                    instance=instance,
                    selection=[definition],
                )

        return self.log_of(run_asset)

    def log_of(self, work: Callable[[], object]) -> RequestLog:
        with self.lake.log.recorded() as log:
            work()
        return log

    def replace_by_hand(self, day: date) -> RequestLog:
        """Replace a day with Spark alone."""
        rows, condition = self.rows(day), functions.col("day") == functions.lit(day)
        return self.log_of(lambda: rows.writeTo("floe.public.orders").overwrite(condition))


@pytest.fixture(scope="module", params=["sqlite", "rest"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, servers: Servers
) -> Iterator[Store]:
    with DistantLake.open(servers, request.param, tmp_path_factory.mktemp("distant")) as lake:
        iceberg = lake.place.iceberg()
        iceberg.table_manager.create_namespace("public")
        store = Store(lake, spark_resource(iceberg))
        for day in range(DAYS):
            store.run(store.asset_of("orders", "overwrite"), FIRST + timedelta(day))
        yield store


def counts_of(log: RequestLog) -> dict[str, int]:
    """The requests; without those by which Spark reports its metrics to the catalog, at any later time."""
    return RequestLog([request for request in log.requests if not request.path.endswith("/metrics")]).counts


# Of each operation, in this order on one table. Spark asks for the length of a manifest list before it reads it.
WRITTEN = {"HEAD manifest list": 2, "GET manifest list": 2, "PUT data": 1, "PUT manifest list": 1}
MERGED = {**WRITTEN, "GET data": 2, "GET manifest": 3, "PUT manifest": 2}
FIRST_WRITTEN = {**WRITTEN, "HEAD manifest list": 1, "GET manifest list": 1, "PUT manifest": 1, "GET listing": 1}
READ = {"HEAD manifest list": 1, "GET manifest list": 1, "GET manifest": 1}
EXPECTED = {
    "sqlite": {
        "append": {**WRITTEN, "PUT manifest": 1, "GET metadata": 3, "PUT metadata": 1},
        "upsert": {**MERGED, "GET metadata": 3, "PUT metadata": 1},
        "first write": {**FIRST_WRITTEN, "GET metadata": 3, "PUT metadata": 2},
        "load": {**READ, "GET metadata": 1},
    },
    "rest": {
        "append": {**WRITTEN, "PUT manifest": 1, "GET catalog": 5, "POST catalog": 1},
        "upsert": {**MERGED, "GET catalog": 5, "POST catalog": 1},
        "first write": {**FIRST_WRITTEN, "GET catalog": 5, "HEAD catalog": 2, "POST catalog": 3},
        "load": {**READ, "GET catalog": 2},
    },
}


def catalog_of(store: Store) -> str:
    return "sqlite" if store.lake.catalog is None else "rest"


def test_replacing_a_day_loads_the_table_once_more_before_and_once_more_after_spark(store: Store) -> None:
    by_hand = counts_of(store.replace_by_hand(FIRST + timedelta(1)))
    loads = "GET metadata" if store.lake.catalog is None else "GET catalog"

    ours = counts_of(store.run(store.asset_of("orders", "overwrite"), FIRST + timedelta(2)))

    assert ours == {**by_hand, loads: by_hand[loads] + 2}


def test_other_operations_take_these_requests_and_no_more(store: Store) -> None:
    expected = EXPECTED[catalog_of(store)]

    assert {operation: counts_of(_run(store, operation)) for operation in expected} == expected


def _run(store: Store, operation: str) -> RequestLog:
    @asset(partitions_def=DAILY)
    def report(orders: DataFrame) -> None:
        assert orders.count() == 100

    match operation:
        case "append":
            return store.run(store.asset_of("orders", "append"), FIRST + timedelta(DAYS))
        case "upsert":
            return store.run(store.asset_of("orders", "upsert"), FIRST + timedelta(2))
        case "first write":
            return store.run(store.asset_of("first", "overwrite"), FIRST)
        case "load":
            return store.run(report, FIRST + timedelta(1), upstream=store.asset_of("orders", "overwrite"))
        case _:
            raise ValueError(operation)
