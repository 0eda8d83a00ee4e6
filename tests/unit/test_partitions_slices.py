"""Partition keys of every kind of definition, as rows."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from dagster import (
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
)

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import KeySet, PartitionSlice, TimeRange
from floe_dagster_iceberg.partitions import build_slice

NO_ROWS = PartitionSlice(any_of=())

pytestmark = pytest.mark.requirement("D4", "S2-FR-040", "S3-3c")

NEW_YORK = "America/New_York"
DAILY = DailyPartitionsDefinition("2024-01-01", end_date="2025-01-01")
REGIONS = StaticPartitionsDefinition(["ap", "eu", "us"])
DAILY_BY_REGION = MultiPartitionsDefinition({"date": DAILY, "region": REGIONS})
BY_COLUMN = {"date": "ts", "region": "region"}


def windows(partitions_def: PartitionsDefinition, *keys: str) -> list[tuple[str, str]]:
    rows = build_slice(partitions_def, keys, partition_expr="ts")
    ranges = [constraint for conjunction in rows.any_of for constraint in conjunction]
    return [(f"{r.start:%m-%dT%H:%M}", f"{r.end:%m-%dT%H:%M}") for r in ranges if isinstance(r, TimeRange)]


def cron(schedule: str, timezone: str = "UTC") -> TimeWindowPartitionsDefinition:
    return TimeWindowPartitionsDefinition(
        cron_schedule=schedule,
        start="2024-01-01-00:00",
        fmt="%Y-%m-%d-%H:%M",
        end="2026-01-01-00:00",
        timezone=timezone,
    )


@pytest.mark.parametrize(
    ("partitions_def", "key", "start", "end"),
    [
        (cron("*/15 * * * *"), "2024-01-01-00:15", "01-01T00:15", "01-01T00:30"),
        (HourlyPartitionsDefinition("2024-01-01-00:00"), "2024-01-01-05:00", "01-01T05:00", "01-01T06:00"),
        (
            HourlyPartitionsDefinition("2024-01-01-00:00", minute_offset=7),
            "2024-01-01-05:07",
            "01-01T05:07",
            "01-01T06:07",
        ),
        (DailyPartitionsDefinition("2024-01-01"), "2024-01-05", "01-05T00:00", "01-06T00:00"),
        (DailyPartitionsDefinition("2024-01-01", hour_offset=7), "2024-01-05", "01-05T07:00", "01-06T07:00"),
        (WeeklyPartitionsDefinition("2024-01-01"), "2024-01-07", "01-07T00:00", "01-14T00:00"),
        (MonthlyPartitionsDefinition("2024-01-01"), "2024-02-01", "02-01T00:00", "03-01T00:00"),
        (cron("0 0 1 */3 *"), "2024-04-01-00:00", "04-01T00:00", "07-01T00:00"),
        (cron("0 0 1 1 *"), "2024-01-01-00:00", "01-01T00:00", "01-01T00:00"),
        (cron("30 6 * * 1-5"), "2024-01-05-06:30", "01-05T06:30", "01-08T06:30"),
        (cron("0 0 1 * *", "Asia/Kolkata"), "2024-02-01-00:00", "01-31T18:30", "02-29T18:30"),
    ],
)
def test_a_key_of_any_cron_is_its_half_open_window(
    partitions_def: PartitionsDefinition, key: str, start: str, end: str
) -> None:
    assert windows(partitions_def, key) == [(start, end)]


@pytest.mark.parametrize(
    ("key", "start", "end", "hours"),
    [("2024-03-10", "03-10T05:00", "03-11T04:00", 23), ("2024-11-03", "11-03T04:00", "11-04T05:00", 25)],
)
def test_days_of_new_york_are_23_and_25_hours_when_clocks_change(key: str, start: str, end: str, hours: int) -> None:
    days = DailyPartitionsDefinition("2024-01-01", timezone=NEW_YORK)

    (window,) = build_slice(days, [key], partition_expr="ts").any_of[0]

    assert windows(days, key) == [(start, end)]
    assert isinstance(window, TimeRange)
    assert (window.end - window.start).total_seconds() == hours * 3600
    assert window.timezone == NEW_YORK


def test_the_repeated_hour_is_two_partitions_next_to_each_other() -> None:
    hours = HourlyPartitionsDefinition("2024-01-01-00:00", timezone=NEW_YORK)

    assert windows(hours, "2024-11-03-01:00") == [("11-03T05:00", "11-03T06:00")]
    assert windows(hours, "2024-11-03-01:00-0500") == [("11-03T06:00", "11-03T07:00")]
    assert windows(hours, "2024-11-03-01:00-0500", "2024-11-03-01:00") == [("11-03T05:00", "11-03T07:00")]


def test_quarters_of_the_two_passes_of_an_hour_are_not_taken_as_adjacent() -> None:
    quarters = cron("*/15 * * * *", NEW_YORK)

    assert windows(quarters, "2024-11-03-01:00", "2024-11-03-01:15-0500") == [
        ("11-03T05:00", "11-03T05:15"),
        ("11-03T06:15", "11-03T06:30"),
    ]


def test_the_skipped_hour_leaves_no_gap() -> None:
    hours = HourlyPartitionsDefinition("2024-01-01-00:00", timezone=NEW_YORK)

    assert windows(hours, "2024-03-10-01:00", "2024-03-10-03:00") == [("03-10T06:00", "03-10T08:00")]


@pytest.mark.parametrize(("day", "hours"), [("2024-03-10", 23), ("2024-11-03", 25)])
def test_the_hours_of_a_day_are_the_day(day: str, hours: int) -> None:
    hourly = HourlyPartitionsDefinition("2024-01-01-00:00", timezone=NEW_YORK, end_date="2024-12-01-00:00")
    daily = DailyPartitionsDefinition("2024-01-01", timezone=NEW_YORK)
    keys = [key for key in hourly.get_partition_keys() if key.startswith(day)]

    assert len(keys) == hours
    assert windows(hourly, *keys) == windows(daily, day)


def test_adjacent_windows_become_one_and_gaps_stay() -> None:
    assert windows(DAILY, "2024-01-05", "2024-01-02", "2024-01-01") == [
        ("01-01T00:00", "01-03T00:00"),
        ("01-05T00:00", "01-06T00:00"),
    ]


def test_a_year_of_days_is_one_window() -> None:
    assert windows(DAILY, *DAILY.get_partition_keys()) == [("01-01T00:00", "01-01T00:00")]


def test_excluded_days_are_not_part_of_a_range_around_them() -> None:
    weekdays = DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01", exclusions=["0 0 * * 6", "0 0 * * 0"])

    assert windows(weekdays, "2024-01-05", "2024-01-08") == [
        ("01-05T00:00", "01-06T00:00"),
        ("01-08T00:00", "01-09T00:00"),
    ]


def test_a_window_keeps_its_keys_in_order_for_columns_that_hold_them() -> None:
    (window,) = build_slice(DAILY, ["2024-01-02", "2024-01-01"], partition_expr="day").any_of[0]

    assert window.keys == ("2024-01-01", "2024-01-02")


@pytest.mark.parametrize(
    ("partitions_def", "sub_daily"),
    [(cron("0 */6 * * *"), True), (cron("0 23 * * *"), False), (cron("0 */24 * * *"), False)],
)
def test_a_window_knows_whether_partitions_share_a_day(
    partitions_def: TimeWindowPartitionsDefinition, *, sub_daily: bool
) -> None:
    (window,) = build_slice(partitions_def, [partitions_def.get_partition_keys()[3]], partition_expr="d").any_of[0]

    assert isinstance(window, TimeRange)
    assert window.sub_daily is sub_daily


@pytest.mark.parametrize("keys", [["o'brien"], ["a b", "é", '"quoted"', "x.y", ""]])
def test_static_and_dynamic_keys_are_just_data(keys: Sequence[str]) -> None:
    expected = PartitionSlice(any_of=((KeySet(column="who", keys=tuple(keys)),),))

    assert build_slice(StaticPartitionsDefinition(["x", *keys]), keys, partition_expr="who") == expected
    assert build_slice(DynamicPartitionsDefinition(name="who"), keys, partition_expr="who") == expected


def test_no_keys_are_no_rows() -> None:
    assert build_slice(DAILY, [], partition_expr="ts") == NO_ROWS
    assert build_slice(REGIONS, [], partition_expr="region") == NO_ROWS
    assert build_slice(DAILY_BY_REGION, [], partition_expr=BY_COLUMN) == NO_ROWS


def test_a_multi_key_is_one_window_and_one_key() -> None:
    rows = build_slice(DAILY_BY_REGION, ["2024-01-05|eu"], partition_expr=BY_COLUMN)

    assert rows.any_of == (
        (
            TimeRange(
                column="ts",
                start=datetime(2024, 1, 5, tzinfo=UTC),
                end=datetime(2024, 1, 6, tzinfo=UTC),
                keys=("2024-01-05",),
            ),
            KeySet(column="region", keys=("eu",)),
        ),
    )


def test_a_year_of_days_in_all_regions_is_one_conjunction() -> None:
    rows = build_slice(DAILY_BY_REGION, DAILY_BY_REGION.get_partition_keys(), partition_expr=BY_COLUMN)

    ((window, regions),) = rows.any_of
    assert isinstance(window, TimeRange)
    assert (window.end - window.start).days == 366
    assert regions.keys == ("ap", "eu", "us")


def test_multi_keys_are_exact_and_not_a_bounding_box() -> None:
    corner = ["2024-01-01|eu", "2024-01-02|eu", "2024-01-02|us"]

    rows = build_slice(DAILY_BY_REGION, corner, partition_expr=BY_COLUMN)

    covered = {(day, region) for window, keys in rows.any_of for day in window.keys for region in keys.keys}
    assert covered == {("2024-01-01", "eu"), ("2024-01-02", "eu"), ("2024-01-02", "us")}
    assert len(rows.any_of) == 2


def test_multi_keys_are_grouped_by_the_dimension_that_needs_fewer_conjunctions() -> None:
    square = MultiPartitionsDefinition({"a": REGIONS, "b": REGIONS})
    # Three patterns by the first dimension, two by the second.
    keys = ["ap|ap", "eu|ap", "eu|us", "us|us"]

    rows = build_slice(square, keys, partition_expr={"a": "a", "b": "b"})

    assert [(a.keys, b.keys) for a, b in rows.any_of] == [(("ap", "eu"), ("ap",)), (("eu", "us"), ("us",))]


@pytest.mark.parametrize(
    "other",
    [StaticPartitionsDefinition(["o'brien", "smith"]), DynamicPartitionsDefinition(name="customers")],
)
def test_time_and_dynamic_dimensions_combine(other: PartitionsDefinition) -> None:
    both = MultiPartitionsDefinition({"who": other, "day": DAILY})
    key = MultiPartitionKey({"who": "o'brien", "day": "2024-01-05"})

    rows = build_slice(both, [key], partition_expr={"who": "customer", "day": "ts"})

    assert rows.columns == ("ts", "customer")


def test_the_io_managers_column_is_used_when_the_asset_names_none() -> None:
    assert build_slice(DAILY, ["2024-01-01"], partition_column="event_time").columns == ("event_time",)
    assert build_slice(DAILY, ["2024-01-01"], partition_expr="ts", partition_column="event_time").columns == ("ts",)


def test_the_io_managers_column_may_stand_for_one_dimension() -> None:
    rows = build_slice(
        DAILY_BY_REGION, ["2024-01-01|eu"], partition_expr={"region": "market"}, partition_column="event_time"
    )

    assert rows.columns == ("event_time", "market")


@pytest.mark.parametrize(
    ("partitions_def", "expr", "column", "message"),
    [
        (DAILY, None, None, r"'orders' is partitioned.*\{\"partition_expr\": \"<column>\"\}.*partition_column"),
        (DAILY, {"date": "ts"}, None, r"one partition dimension.*'date'"),
        (DAILY_BY_REGION, "ts", None, r"'date', 'region'.*names one column"),
        (
            DAILY_BY_REGION,
            None,
            "ts",
            r'no column for.*\{"partition_expr": \{"date": "<column>", "region": "<column>"\}\}',
        ),
        (DAILY_BY_REGION, {"date": "ts"}, None, r"no column for the partition dimensions 'region'"),
        (DAILY_BY_REGION, {"dat": "ts", "region": "r"}, None, r"names 'dat', but its partition dimensions are 'date'"),
    ],
)
def test_a_missing_column_says_what_to_set(
    partitions_def: PartitionsDefinition, expr: str | dict[str, str] | None, column: str | None, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        build_slice(partitions_def, ["x"], partition_expr=expr, partition_column=column, asset="orders")
