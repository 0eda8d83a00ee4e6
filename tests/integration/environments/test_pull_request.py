"""The life of a pull request: a preview on production's data, which keeps growing, then published or dropped."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    BackfillPolicy,
    DagsterInstance,
    DailyPartitionsDefinition,
    ExecuteInProcessResult,
    asset,
    materialize,
)
from pyiceberg.catalog import Catalog
from support import appending_worker
from support.place import Place

from floe_dagster_iceberg import ArrowIcebergIOManager, IcebergEnvironments
from floe_dagster_iceberg.errors import CommitConflictError
from floe_dagster_iceberg.models import snapshot_properties

DAYS = [f"2026-01-0{number}" for number in range(1, 6)]
BACKFILLED = DAYS[:3]
ENVIRONMENT = "feature/prices"


class Project:
    """Two assets on a lake: orders of each day, and what they come to."""

    def __init__(self, place: Place, catalog: Catalog, instance: DagsterInstance) -> None:
        self.place, self.catalog, self.instance = place, catalog, instance

    def run(self, days: Sequence[str], *, price: int, environment: str | None = None) -> ExecuteInProcessResult:
        iceberg = self.place.iceberg(environment=environment)
        return materialize(
            assets_at(price),
            resources={"io_manager": ArrowIcebergIOManager(iceberg=iceberg)},
            instance=self.instance,
            tags={"dagster/asset_partition_range_start": days[0], "dagster/asset_partition_range_end": days[-1]},
        )

    @property
    def environments(self) -> IcebergEnvironments:
        return IcebergEnvironments(self.place.iceberg().table_manager)

    def rows(self, table: str, branch: str = "main") -> Counter[tuple[str, int]]:
        """Days and numbers of all rows, as a plain PyIceberg client reads them, and how often each is there."""
        loaded = self.catalog.load_table(f"shop.{table}")
        snapshot = loaded.metadata.snapshot_by_name(branch)
        assert snapshot is not None
        found = loaded.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
        return Counter((row["day"].isoformat(), row["number"]) for row in found)

    def refs(self, table: str) -> set[str]:
        return set(self.catalog.load_table(f"shop.{table}").metadata.refs)

    @contextmanager
    def production_appends(self, folder: Path) -> Iterator["Appender"]:
        appender = Appender(self.place, folder)
        try:
            yield appender
        finally:
            appender.stop()


class Appender:
    """A process of production that appends one row after the other to the last day of both tables."""

    def __init__(self, place: Place, folder: Path) -> None:
        command = [sys.executable, "-m", "support.appending_worker", str(appending_worker.save(place, folder))]
        tests = str(Path(appending_worker.__file__).parents[1])
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": tests},
        )
        self.rows: list[tuple[str, int]] = []

    def wait_for_rows(self, number: int) -> None:
        """Wait until it has committed that many more."""
        assert self._process.stdout is not None
        for _ in range(number):
            self.rows.append(appending_worker.row_of(int(self._process.stdout.readline())))

    def stop(self) -> None:
        """Stop it; `rows` is then all that it has committed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        with self._process.stdout as lines:
            self.rows += [appending_worker.row_of(int(line)) for line in lines]
        assert self._process.wait(60) == 0


def assets_at(price: int) -> list[AssetsDefinition]:
    partitions = DailyPartitionsDefinition(DAYS[0])
    settings = {"partition_expr": "day"}

    @asset(key=["shop", "orders"], partitions_def=partitions, metadata=settings, backfill_policy=BackfillPolicy())
    def orders(context: AssetExecutionContext) -> pa.Table:
        days = [date.fromisoformat(key) for key in context.partition_keys]
        return pa.table({"day": days, "number": [price] * len(days)})

    @asset(key=["shop", "totals"], partitions_def=partitions, metadata=settings, backfill_policy=BackfillPolicy())
    def totals(orders: pa.Table) -> pa.Table:
        return orders.set_column(1, "number", pa.array([2 * number for number in orders["number"].to_pylist()]))

    return [orders, totals]


@pytest.fixture
def project(place: Place) -> Iterator[Project]:
    with DagsterInstance.ephemeral() as instance, closing(place.connect()) as catalog:
        project = Project(place, catalog, instance)
        project.run(DAYS, price=10)
        yield project


@pytest.mark.lakes
def test_a_preview_is_published_while_production_writes(project: Project, tmp_path: Path) -> None:
    with project.production_appends(tmp_path) as production:
        production.wait_for_rows(2)
        preview = project.run(BACKFILLED, price=11, environment=ENVIRONMENT)
        before = {table: project.rows(table) for table in ("orders", "totals")}
        difference = project.environments.diff(ENVIRONMENT)
        production.wait_for_rows(2)
        published = project.environments.publish(ENVIRONMENT)
        production.wait_for_rows(2)

    assert preview.success
    assert {table: before[table][DAYS[0], 10 * factor] for table, factor in (("orders", 1), ("totals", 2))} == {
        "orders": 1,
        "totals": 1,
    }
    assert [(each.table, each.rows_added, each.columns_added) for each in difference.tables] == [
        ("shop.orders", 3, ()),
        ("shop.totals", 3, ()),
    ]
    assert all(set(each.partitions) >= {f"day_day={day}" for day in BACKFILLED} for each in difference.tables)
    # How a REST server commits is its own matter.
    assert published.atomic or project.place.catalog_type == "rest"
    assert [each.replayed for each in published.tables] == [True, True]
    for table, factor in (("orders", 1), ("totals", 2)):
        prices = {day: 11 if day in BACKFILLED else 10 for day in DAYS}
        expected = Counter([*((day, factor * price) for day, price in prices.items()), *production.rows])
        assert project.rows(table) == expected
        assert project.refs(table) == {"main"}


@pytest.mark.lakes
def test_a_preview_is_dropped_while_production_writes(project: Project, tmp_path: Path) -> None:
    with project.production_appends(tmp_path) as production:
        project.run(BACKFILLED, price=11, environment=ENVIRONMENT)
        production.wait_for_rows(2)
        project.environments.drop(ENVIRONMENT)
        production.wait_for_rows(2)

    for table, factor in (("orders", 1), ("totals", 2)):
        assert project.rows(table) == Counter([*((day, factor * 10) for day in DAYS), *production.rows])
        assert project.refs(table) == {"main"}
    assert project.environments.list() == []


def test_two_previews_of_the_same_new_day_are_a_conflict(project: Project) -> None:
    for environment in ("pr-1", "pr-2"):
        project.run(["2026-01-06"], price=11, environment=environment)
    # The first is replayed on top of this, and its snapshot still says what it wrote.
    project.run(["2026-01-05"], price=12)

    project.environments.publish("pr-1")
    with pytest.raises(CommitConflictError):
        project.environments.publish("pr-2")

    assert project.rows("orders")["2026-01-06", 11] == 1
    head = project.catalog.load_table("shop.orders").metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    written = head.summary.additional_properties
    assert written[snapshot_properties.ENVIRONMENT] == "pr-1"
    assert written[snapshot_properties.PARTITION_KEY] == "2026-01-06"
