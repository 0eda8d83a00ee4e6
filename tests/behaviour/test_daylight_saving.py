"""Days of 23 and 25 hours, and hours that come twice or never."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    DailyPartitionsDefinition,
    HourlyPartitionsDefinition,
    TimeWindowPartitionsDefinition,
    asset,
)
from support.warehouse import Warehouse

pytestmark = pytest.mark.requirement("S2-FR-040", "S2-US8.4", "S3-3c", "D4")

NEW_YORK = ZoneInfo("America/New_York")
HALF_AN_HOUR = timedelta(minutes=30)
DAILY = DailyPartitionsDefinition("2024-01-01", timezone="America/New_York")
HOURLY = HourlyPartitionsDefinition("2024-01-01-00:00", timezone="America/New_York")
# The day on which clocks change, the days around it, and how many half hours each has.
CHANGES = {
    "spring": (("2024-03-09", "2024-03-10", "2024-03-11"), (48, 46, 48)),
    "autumn": (("2024-11-02", "2024-11-03", "2024-11-04"), (48, 50, 48)),
}


def half_hours(partitions_def: TimeWindowPartitionsDefinition, key: str) -> list[datetime]:
    window = partitions_def.time_window_for_partition_key(key)
    start, end = window.start.astimezone(UTC), window.end.astimezone(UTC)
    return [start + number * HALF_AN_HOUR for number in range((end - start) // HALF_AN_HOUR)]


def half_hourly_events(warehouse: Warehouse, partitions_def: TimeWindowPartitionsDefinition) -> AssetsDefinition:
    @asset(partitions_def=partitions_def, metadata={"partition_expr": "at"})
    def events(context: AssetExecutionContext) -> Any:
        timestamps = half_hours(partitions_def, context.partition_key)
        return warehouse.frame({"at": timestamps, "key": [context.partition_key] * len(timestamps)})

    return events


@pytest.mark.parametrize(("days", "lengths"), CHANGES.values(), ids=CHANGES.keys())
def test_a_day_has_as_many_hours_as_it_has(warehouse: Warehouse, days: Sequence[str], lengths: Sequence[int]) -> None:
    events = half_hourly_events(warehouse, DAILY)

    for key in (*days, days[1], days[0]):
        warehouse.run(events, key)

    rows = warehouse.rows("events")
    assert [sum(key == day for _, key in rows) for day in days] == list(lengths)
    assert all(at.astimezone(NEW_YORK).date().isoformat() == key for at, key in rows)


def test_a_date_column_holds_the_local_day(warehouse: Warehouse) -> None:
    runs = iter(range(10))

    @asset(partitions_def=DAILY, metadata={"partition_expr": "day"})
    def events(context: AssetExecutionContext) -> Any:
        return warehouse.frame({"day": [date.fromisoformat(context.partition_key)], "run": [next(runs)]})

    for key in ("2024-03-10", "2024-11-03", "2024-03-10"):
        warehouse.run(events, key)

    assert dict(warehouse.rows("events")) == {date(2024, 3, 10): 2, date(2024, 11, 3): 1}


@pytest.mark.parametrize("day", ["2024-03-10", "2024-11-03"])
def test_hours_across_the_change_keep_their_own_rows(warehouse: Warehouse, day: str) -> None:
    events = half_hourly_events(warehouse, HOURLY)
    midnight = datetime.fromisoformat(day).replace(tzinfo=NEW_YORK).astimezone(UTC)
    keys = HOURLY.get_partition_keys_in_time_window(
        DAILY.time_window_for_partition_key(day)._replace(end=midnight + timedelta(hours=4))
    )

    for key in (*keys, *keys[1:3]):
        warehouse.run(events, key)

    rows = warehouse.rows("events")
    assert sorted(at for at, _ in rows) == [midnight + number * HALF_AN_HOUR for number in range(8)]
    assert {key: sum(other == key for _, other in rows) for key in keys} == dict.fromkeys(keys, 2)


def test_a_day_of_25_hours_is_one_partition_of_a_single_run_backfill(warehouse: Warehouse) -> None:
    @asset(partitions_def=DAILY, metadata={"partition_expr": "at"})
    def events(context: AssetExecutionContext) -> Any:
        return warehouse.frame({"at": [at for key in context.partition_keys for at in half_hours(DAILY, key)]})

    for _ in range(2):
        warehouse.run(events, key_range=("2024-11-02", "2024-11-04"))

    assert len(warehouse.rows("events")) == 48 + 50 + 48
