"""Every kind of Dagster partition: a re-run replaces its own rows and no others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, timedelta
from itertools import count
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DagsterInstance,
    DailyPartitionsDefinition,
    DynamicPartitionsDefinition,
    HourlyPartitionsDefinition,
    MonthlyPartitionsDefinition,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    StaticPartitionsDefinition,
    TimeWindowPartitionsDefinition,
    WeeklyPartitionsDefinition,
    asset,
)
from support.io_results import failure_of
from support.warehouse import Warehouse

pytestmark = pytest.mark.requirement("S2-FR-040", "S2-US8.4", "S2-US5.2", "S3-3c", "D4")

MICROSECOND = timedelta(microseconds=1)
REGIONS = StaticPartitionsDefinition(["ap", "eu", "us"])
TIERS = StaticPartitionsDefinition(["gold", "silver"])
DAYS = DailyPartitionsDefinition("2024-01-01")
CUSTOMERS = DynamicPartitionsDefinition(name="customers")


@dataclass(frozen=True)
class Case:
    """A definition, three keys of it, and the spec that its table gets."""

    partitions_def: PartitionsDefinition
    keys: tuple[Any, Any, Any]
    spec: tuple[str, ...]

    @property
    def partition_expr(self) -> Any:
        if isinstance(self.partitions_def, MultiPartitionsDefinition):
            return {name: f"by_{name}" for name in self.partitions_def.partition_dimension_names}
        return "by"


def cron(schedule: str, start: str, timezone: str = "UTC", fmt: str = "%Y-%m-%d-%H:%M") -> Any:
    return TimeWindowPartitionsDefinition(start=start, fmt=fmt, cron_schedule=schedule, timezone=timezone)


def multi(**dimensions: PartitionsDefinition) -> MultiPartitionsDefinition:
    return MultiPartitionsDefinition(dimensions)


def pair(**keys: str) -> MultiPartitionKey:
    return MultiPartitionKey(keys)


QUARTERS = ("2024-01-01-00:00", "2024-04-01-00:00", "2024-07-01-00:00")
CASES = {
    "15 minutes": Case(
        cron("*/15 * * * *", "2024-01-01-00:00"),
        ("2024-01-01-00:15", "2024-01-01-00:30", "2024-01-01-00:45"),
        ("by_hour",),
    ),
    "hourly": Case(
        HourlyPartitionsDefinition("2024-01-01-00:00"),
        ("2024-01-01-22:00", "2024-01-01-23:00", "2024-01-02-00:00"),
        ("by_hour",),
    ),
    "hourly, Kathmandu": Case(
        HourlyPartitionsDefinition("2024-01-01-00:00", timezone="Asia/Kathmandu"),
        ("2024-01-01-22:00", "2024-01-01-23:00", "2024-01-02-00:00"),
        ("by_hour",),
    ),
    "daily": Case(DAYS, ("2024-02-28", "2024-02-29", "2024-03-01"), ("by_day",)),
    "daily, Kolkata": Case(
        DailyPartitionsDefinition("2024-01-01", timezone="Asia/Kolkata"),
        ("2024-02-28", "2024-02-29", "2024-03-01"),
        ("by_day",),
    ),
    "daily from 6:30": Case(
        DailyPartitionsDefinition("2024-01-01", hour_offset=6, minute_offset=30),
        ("2024-02-28", "2024-02-29", "2024-03-01"),
        ("by_day",),
    ),
    "weekly, New York": Case(
        WeeklyPartitionsDefinition("2024-03-03", timezone="America/New_York"),
        ("2024-03-03", "2024-03-10", "2024-03-17"),
        ("by_day",),
    ),
    "monthly, Berlin": Case(
        MonthlyPartitionsDefinition("2024-01-01", timezone="Europe/Berlin"),
        ("2024-02-01", "2024-03-01", "2024-04-01"),
        ("by_month",),
    ),
    "quarterly": Case(cron("0 0 1 */3 *", "2024-01-01-00:00"), QUARTERS, ("by_month",)),
    "yearly": Case(cron("0 0 1 1 *", "2020", fmt="%Y"), ("2022", "2023", "2024"), ("by_year",)),
    "at 9 and 17 on weekdays": Case(
        cron("0 9,17 * * 1-5", "2024-01-01-00:00"),
        ("2024-01-05-09:00", "2024-01-05-17:00", "2024-01-08-09:00"),
        ("by_hour",),
    ),
    "static": Case(REGIONS, ("ap", "eu", "us"), ("by",)),
    "dynamic": Case(CUSTOMERS, ("acme", "globex", "initech"), ("by",)),
    "time x static": Case(
        multi(day=DAYS, region=REGIONS),
        (pair(day="2024-01-01", region="eu"), pair(day="2024-01-02", region="eu"), pair(day="2024-01-02", region="us")),
        ("by_day_day", "by_region"),
    ),
    "static x static": Case(
        multi(region=REGIONS, tier=TIERS),
        (pair(region="eu", tier="gold"), pair(region="eu", tier="silver"), pair(region="us", tier="silver")),
        ("by_region", "by_tier"),
    ),
    "time x dynamic": Case(
        multi(customer=CUSTOMERS, day=DAYS),
        (
            pair(customer="acme", day="2024-01-01"),
            pair(customer="acme", day="2024-01-02"),
            pair(customer="globex", day="2024-01-02"),
        ),
        ("by_customer", "by_day_day"),
    ),
}


@pytest.fixture(scope="module")
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("customers", ["acme", "globex", "initech"])
        yield instance


def edges(partitions_def: PartitionsDefinition, key: str) -> Sequence[Any]:
    """What the column may hold for a key: the window's first and last timestamp, or the key itself."""
    if isinstance(partitions_def, TimeWindowPartitionsDefinition):
        window = partitions_def.time_window_for_partition_key(key)
        return window.start.astimezone(UTC), window.end.astimezone(UTC) - MICROSECOND
    return key, key


def rows_of(case: Case, key: Any) -> Mapping[str, Sequence[Any]]:
    definition = case.partitions_def
    if not isinstance(definition, MultiPartitionsDefinition):
        return {"by": edges(definition, key)}
    return {
        f"by_{name}": edges(definition.get_partitions_def_for_dimension(name), part)
        for name, part in key.keys_by_dimension.items()
    }


def numbered_asset(warehouse: Warehouse, case: Case) -> AssetsDefinition:
    """Two rows per run, at the edges of the partition, that carry the number of the run."""
    runs = count()

    @asset(partitions_def=case.partitions_def, metadata={"partition_expr": case.partition_expr})
    def events(context: AssetExecutionContext) -> Any:
        return warehouse.frame({**rows_of(case, context.partition_key), "run": [next(runs)] * 2})

    return events


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_rerun_replaces_exactly_the_rows_of_its_partition(
    warehouse: Warehouse, instance: DagsterInstance, case: Case
) -> None:
    events = numbered_asset(warehouse, case)
    before, rerun, after = case.keys

    for key in (before, rerun, after, rerun):
        warehouse.run(events, key, instance=instance)

    last_run = {before: 0, rerun: 3, after: 2}
    expected = [
        (*values, run) for key, run in last_run.items() for values in zip(*rows_of(case, key).values(), strict=True)
    ]
    columns = [*rows_of(case, before), "run"]
    assert warehouse.rows("events", *columns) == sorted(expected, key=repr)
    assert tuple(field.name for field in warehouse.table("events").spec().fields) == case.spec


@pytest.mark.lakes
@pytest.mark.requirement("S2-US6.1", "S2-US6.2", "S2-FR-034")
def test_files_of_other_partitions_are_not_touched(warehouse: Warehouse) -> None:
    case = CASES["daily"]
    events = numbered_asset(warehouse, case)
    before, rerun, _ = case.keys
    for key in (before, rerun):
        warehouse.run(events, key)
    first = warehouse.table("events").inspect.files().select(["file_path", "partition"]).to_pylist()

    warehouse.run(events, rerun)

    second = warehouse.table("events").inspect.files().select(["file_path", "partition"]).to_pylist()
    kept = [file for file in second if file in first]
    assert [str(file["partition"]["by_day"]) for file in kept] == [before]


def test_a_partitioned_asset_without_a_column_is_reported_what_to_set(warehouse: Warehouse) -> None:
    @asset(partitions_def=REGIONS)
    def events() -> Any:
        return warehouse.frame({"region": ["eu"]})

    result = warehouse.run(events, "eu", raise_on_error=False)

    assert "Asset 'events' is partitioned, but no column is named that holds" in failure_of(result, "events")
    assert not warehouse.exists("events")


def test_the_io_managers_partition_column_stands_in(warehouse: Warehouse) -> None:
    @asset(partitions_def=REGIONS)
    def events(context: AssetExecutionContext) -> Any:
        return warehouse.frame({"region": [context.partition_key]})

    by_region = warehouse.with_settings(partition_column="region")
    for key in ("eu", "us", "eu"):
        by_region.run(events, key)

    assert warehouse.rows("events") == [("eu",), ("us",)]
