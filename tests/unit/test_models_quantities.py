from datetime import timedelta

import pytest

from floe_dagster_iceberg.models.quantities import counted, format_bytes, format_duration, parse_bytes, parse_duration


@pytest.mark.parametrize(
    ("duration", "told"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(days=1), "1 day"),
        (timedelta(hours=36), "1 day 12 hours"),
        (timedelta(minutes=90, seconds=1.5), "1 hour 30 minutes 1.5 seconds"),
    ],
)
def test_a_duration_is_told_in_units(duration: timedelta, told: str) -> None:
    assert format_duration(duration) == told


@pytest.mark.parametrize("text", ["", "7", "d", "7 days", "-7d", "1.2.3h"])
def test_what_is_no_duration_is_none(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("text", "size"), [("1kB", 1000), ("1.5KiB", 1536), ("7 b", 7), ("512MB", 512_000_000), ("2TiB", 2 * 2**40)]
)
def test_a_size_has_units_of_1000_and_of_1024(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "512", "MB", "1XB", "-1MB", "1iB2"])
def test_what_is_no_size_is_none(text: str) -> None:
    assert parse_bytes(text) is None


def test_a_size_is_told_with_the_unit_that_keeps_it_short() -> None:
    assert [format_bytes(size) for size in (0, 1023, 2**20, 2**60)] == ["0 B", "1023 B", "1.0 MiB", "1024.0 PiB"]


def test_one_is_singular() -> None:
    assert [counted(number, "branch", "branches") for number in (0, 1, 2000)] == [
        "0 branches",
        "1 branch",
        "2,000 branches",
    ]
