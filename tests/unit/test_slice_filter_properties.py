"""For any definition and any rows: slices, filters and masks agree with Dagster's own windows and with each other."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    IcebergType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
)

from floe_dagster_iceberg.models.partition_slice import PartitionSlice
from floe_dagster_iceberg.partitions import build_slice
from floe_dagster_iceberg.table.filter.partition_slice import match_rows, to_expression

pytestmark = pytest.mark.requirement("D4", "S2-FR-040")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
REGIONS = ["ap", "eu", "o'brien", "us"]
# Clocks change in all but the last: by an hour, by half an hour, at midnight so that it is missing or comes twice.
TIMEZONES = [
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "America/Havana",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "UTC",
]
SUB_DAILY = ["*/15 * * * *", "0 * * * *", "30 */6 * * *"]
DAILY_AND_LONGER = [
    "0 0 * * *",
    "0 7 * * *",
    "0 0 * * 1-5",
    "0 0 * * 0",
    "0 0 1 * *",
    "0 0 15 * *",
    "0 0 1 */3 *",
    "0 0 1 1 *",
]
STARTS = [datetime(2018, 2, 1), datetime(2018, 10, 28), datetime(2024, 3, 8), datetime(2024, 10, 31)]  # noqa: DTZ001


@st.composite
def time_windows(draw: st.DrawFn, crons: Sequence[str]) -> dg.TimeWindowPartitionsDefinition:
    cron, start = draw(st.sampled_from(crons)), draw(st.sampled_from(STARTS))
    span = timedelta(days=5) if cron in SUB_DAILY else timedelta(days=40 if "1" not in cron else 800)
    return dg.TimeWindowPartitionsDefinition(
        cron_schedule=cron,
        start=start,
        end=min(start + span, datetime(2026, 1, 1)),  # noqa: DTZ001
        fmt="%Y-%m-%d-%H:%M",
        timezone=draw(st.sampled_from(TIMEZONES)),
        exclusions=draw(st.sampled_from([None, ["0 0 * * 6"]])),
    )


def keys_with_windows(partitions_def: dg.TimeWindowPartitionsDefinition) -> dict[str, tuple[datetime, datetime]]:
    windows = {key: partitions_def.time_window_for_partition_key(key) for key in partitions_def.get_partition_keys()}
    return {key: (w.start.astimezone(UTC), w.end.astimezone(UTC)) for key, w in windows.items()}


@st.composite
def timestamps(draw: st.DrawFn, windows: Sequence[tuple[datetime, datetime]]) -> datetime:
    """Instants at the edges of windows, or anywhere near them."""
    edge = draw(st.sampled_from([timestamp for window in windows for timestamp in window]))
    near = st.integers(min_value=-(48 * 3_600_000_000), max_value=48 * 3_600_000_000)
    return edge + draw(st.sampled_from([-1, 0, 1]) | near) * MICROSECOND


def filtered(rows: PartitionSlice, schema: Schema, records: Sequence[Record]) -> list[bool]:
    meets = expression_evaluator(schema, to_expression(rows, schema), case_sensitive=True)
    return [meets(record) for record in records]


def masked(rows: PartitionSlice, schema: Schema, **columns: pa.Array) -> list[bool]:
    found = match_rows(rows, pa.table(columns), schema)
    inside = found.inside.to_pylist()
    assert found.rows_outside == inside.count(False)
    return inside


def schema_of(column_type: IcebergType) -> Schema:
    return Schema(NestedField(1, "c", column_type))


TIMESTAMPS = [
    (TimestamptzType(), pa.timestamp("us", "UTC"), 1),
    (TimestamptzNanoType(), pa.timestamp("ns", "UTC"), 1000),
    (TimestampType(), pa.timestamp("us"), 1),
    (TimestampNanoType(), pa.timestamp("ns"), 1000),
]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), partitions_def=time_windows(SUB_DAILY + DAILY_AND_LONGER), kind=st.sampled_from(TIMESTAMPS))
def test_every_instant_belongs_to_the_keys_whose_window_holds_it(
    data: st.DataObject, partitions_def: dg.TimeWindowPartitionsDefinition, kind: tuple[IcebergType, pa.DataType, int]
) -> None:
    windows = keys_with_windows(partitions_def)
    instants = data.draw(st.lists(timestamps(list(windows.values())), min_size=1, max_size=20))
    chosen = data.draw(st.lists(st.sampled_from(list(windows)), max_size=12))
    column_type, arrow_type, scale = kind
    stored = [(instant - EPOCH) // MICROSECOND * scale for instant in instants]

    rows = build_slice(partitions_def, chosen, partition_expr="c")

    expected = [any(windows[key][0] <= instant < windows[key][1] for key in chosen) for instant in instants]
    assert filtered(rows, schema_of(column_type), [Record(value) for value in stored]) == expected
    assert masked(rows, schema_of(column_type), c=pa.array(stored, arrow_type)) == expected


@settings(deadline=None, max_examples=30)
@given(data=st.data(), partitions_def=time_windows(SUB_DAILY + DAILY_AND_LONGER))
def test_the_slices_of_all_keys_are_disjoint_and_together_are_all_windows(
    data: st.DataObject, partitions_def: dg.TimeWindowPartitionsDefinition
) -> None:
    windows = keys_with_windows(partitions_def)
    instants = data.draw(st.lists(timestamps(list(windows.values())), min_size=1, max_size=10))
    schema, records = schema_of(TimestamptzType()), [Record((instant - EPOCH) // MICROSECOND) for instant in instants]

    each = [filtered(build_slice(partitions_def, [key], partition_expr="c"), schema, records) for key in windows]
    together = filtered(build_slice(partitions_def, windows, partition_expr="c"), schema, records)

    owners = [sum(column) for column in zip(*each, strict=True)]
    assert owners == [int(is_inside) for is_inside in together]


@settings(deadline=None, max_examples=40)
@given(data=st.data(), partitions_def=time_windows(DAILY_AND_LONGER))
def test_every_date_belongs_to_the_key_whose_local_days_hold_it(
    data: st.DataObject, partitions_def: dg.TimeWindowPartitionsDefinition
) -> None:
    windows, zone = keys_with_windows(partitions_def), ZoneInfo(partitions_def.timezone)
    days = {key: (start.astimezone(zone).date(), end.astimezone(zone).date()) for key, (start, end) in windows.items()}
    near = st.dates(min(first for first, _ in days.values()), max(last for _, last in days.values()))
    dates = data.draw(st.lists(near, min_size=1, max_size=20))
    chosen = data.draw(st.lists(st.sampled_from(list(days)), max_size=12, unique=True))
    records = [Record((day - date(1970, 1, 1)).days) for day in dates]

    rows = build_slice(partitions_def, chosen, partition_expr="c")

    expected = [sum(days[key][0] <= day < days[key][1] for key in chosen) for day in dates]
    assert filtered(rows, schema_of(DateType()), records) == [owners == 1 for owners in expected]
    assert masked(rows, schema_of(DateType()), c=pa.array(dates, pa.date32())) == [owners == 1 for owners in expected]
    assert set(expected) <= {0, 1}


@settings(deadline=None, max_examples=40)
@given(data=st.data(), partitions_def=time_windows(SUB_DAILY + DAILY_AND_LONGER))
def test_every_key_in_a_text_column_belongs_to_itself(
    data: st.DataObject, partitions_def: dg.TimeWindowPartitionsDefinition
) -> None:
    keys = list(partitions_def.get_partition_keys())
    values = data.draw(st.lists(st.sampled_from(keys) | st.text(max_size=5), min_size=1, max_size=20))
    chosen = data.draw(st.lists(st.sampled_from(keys), max_size=12))

    rows = build_slice(partitions_def, chosen, partition_expr="c")

    expected = [value in chosen for value in values]
    assert filtered(rows, schema_of(StringType()), [Record(value) for value in values]) == expected
    assert masked(rows, schema_of(StringType()), c=pa.array(values, pa.string())) == expected


Cell = tuple[str | None, datetime | None]


@st.composite
def cells(draw: st.DrawFn, windows: Sequence[tuple[datetime, datetime]]) -> Cell:
    return draw(st.none() | st.sampled_from([*REGIONS, "elsewhere"])), draw(st.none() | timestamps(windows))


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    partitions_def=time_windows(["0 0 * * *", "0 0 * * 1-5", "0 0 * * 0"]),
    names=st.sampled_from([("a", "b"), ("b", "a")]),
)
def test_every_row_of_a_multi_partition_belongs_to_exactly_the_chosen_pairs(
    data: st.DataObject, partitions_def: dg.TimeWindowPartitionsDefinition, names: tuple[str, str]
) -> None:
    time_name, region_name = names
    both = dg.MultiPartitionsDefinition(
        {time_name: partitions_def, region_name: dg.StaticPartitionsDefinition(REGIONS)}
    )
    windows = keys_with_windows(partitions_def)
    pairs = st.tuples(st.sampled_from(list(windows)), st.sampled_from(REGIONS))
    chosen = data.draw(st.lists(pairs, max_size=25))
    table = data.draw(st.lists(cells(list(windows.values())), min_size=1, max_size=15))
    schema = Schema(NestedField(1, "region", StringType()), NestedField(2, "ts", TimestamptzType()))

    keys = [dg.MultiPartitionKey({time_name: day, region_name: region}) for day, region in chosen]
    rows = build_slice(both, keys, partition_expr={time_name: "ts", region_name: "region"})

    expected = [is_in_pairs(cell, chosen, windows) for cell in table]
    stored: list[Any] = [None if instant is None else (instant - EPOCH) // MICROSECOND for _, instant in table]
    regions = [region for region, _ in table]
    assert filtered(rows, schema, [Record(*values) for values in zip(regions, stored, strict=True)]) == expected
    columns = {"region": pa.array(regions, pa.string()), "ts": pa.array(stored, pa.timestamp("us", "UTC"))}
    assert masked(rows, schema, **columns) == expected


def is_in_pairs(cell: Cell, chosen: Sequence[tuple[str, str]], windows: dict[str, tuple[datetime, datetime]]) -> bool:
    region, instant = cell
    return instant is not None and any(
        region == wanted and windows[day][0] <= instant < windows[day][1] for day, wanted in chosen
    )
