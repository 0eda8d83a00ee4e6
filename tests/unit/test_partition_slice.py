"""The value types of a slice."""

from datetime import UTC, datetime, timedelta, timezone

import pydantic
import pytest

from floe_dagster_iceberg.models.partition_slice import ALL_ROWS, KeySet, PartitionSlice, TimeRange

NO_ROWS = PartitionSlice(any_of=())

pytestmark = pytest.mark.requirement("D4")


def january(day: int) -> datetime:
    return datetime(2024, 1, day, tzinfo=UTC)


def test_a_window_is_kept_in_utc_whatever_zone_it_was_given_in() -> None:
    new_york = timezone(timedelta(hours=-5))

    window = TimeRange(column="ts", start=datetime(2024, 1, 1, tzinfo=new_york), end=january(2))

    assert (window.start, window.start.tzinfo) == (datetime(2024, 1, 1, 5, tzinfo=UTC), UTC)


def test_a_window_without_a_time_zone_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="timezone"):
        TimeRange(column="ts", start=datetime(2024, 1, 1), end=january(2))  # noqa: DTZ001


@pytest.mark.parametrize("end", [1, 2])
def test_a_window_must_hold_something(end: int) -> None:
    with pytest.raises(pydantic.ValidationError, match="is empty"):
        TimeRange(column="ts", start=january(2), end=january(end))


def test_keys_are_a_set_in_a_fixed_order() -> None:
    assert KeySet(column="region", keys=("us", "eu", "us")) == KeySet(column="region", keys=("eu", "us"))


def test_a_single_text_is_no_key_set() -> None:
    with pytest.raises(pydantic.ValidationError, match="tuple"):
        KeySet(column="region", keys="eu")


def test_all_rows_and_no_rows_are_different_things() -> None:
    assert (ALL_ROWS.is_all_rows, ALL_ROWS.is_no_rows) == (True, False)
    assert (NO_ROWS.is_all_rows, NO_ROWS.is_no_rows) == (False, True)
    assert ALL_ROWS != NO_ROWS


def test_columns_are_named_once_in_order() -> None:
    day = TimeRange(column="ts", start=january(1), end=january(2))
    region = KeySet(column="region", keys=("eu",))

    assert PartitionSlice(any_of=((day, region), (region,))).columns == ("ts", "region")


def test_slices_are_values() -> None:
    one, other = (PartitionSlice(any_of=((KeySet(column="region", keys=("eu",)),),)) for _ in range(2))

    assert one == other
    assert hash(one) == hash(other)
    assert PartitionSlice.model_validate_json(one.model_dump_json()) == one
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        one.any_of = ()  # type: ignore[misc]


def test_a_time_range_survives_json() -> None:
    rows = PartitionSlice(any_of=((TimeRange(column="ts", start=january(1), end=january(2), keys=("2024-01-01",)),),))

    assert PartitionSlice.model_validate_json(rows.model_dump_json()) == rows


def test_a_slice_is_reported_by_its_windows_and_keys() -> None:
    start, end = (datetime(2024, 1, day, 5, tzinfo=UTC) for day in (1, 2))
    day = TimeRange(column="ts", start=start, end=end, timezone="America/New_York")
    hour = TimeRange(column="ts", start=start, end=start.replace(hour=6))
    regions = KeySet(column="region", keys=("a", "b", "c", "d", "e"))

    text = str(PartitionSlice(any_of=((day, regions),)))

    assert text == (
        "ts from 2024-01-01 to before 2024-01-02 in America/New_York and region is 'a' or 'b' or 'c' or one of 2 more"
    )
    assert str(hour) == "ts from 2024-01-01 05:00 to before 2024-01-01 06:00 in UTC"
    assert (str(ALL_ROWS), str(NO_ROWS)) == ("all rows", "no rows")
