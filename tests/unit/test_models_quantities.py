from datetime import timedelta

import pytest
from pydantic import TypeAdapter, ValidationError

from floe_dagster_iceberg.models.quantities import Duration, SizeInBytes, counted, format_bytes, format_duration


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0 seconds"),
        (timedelta(days=1), "1 day"),
        (timedelta(hours=36), "1 day 12 hours"),
        (timedelta(minutes=90, seconds=1.5), "1 hour 30 minutes 1.5 seconds"),
    ],
)
def test_a_duration_is_reported_in_units(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("36h", timedelta(hours=36)),
        ("1.5 h", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
        ("P1DT12H", timedelta(hours=36)),
    ],
)
def test_a_duration_is_one_number_and_its_unit_or_iso_8601(text: str, duration: timedelta) -> None:
    assert TypeAdapter(Duration[timedelta]).validate_python(text) == duration


@pytest.mark.parametrize("text", ["", "7", "d", "1.2.3h", "soon"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match="Input should be a duration such as '36h'"):
        TypeAdapter(Duration[timedelta]).validate_python(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1kB", 1000), ("1.5KiB", 1536), ("7 b", 7), ("512MB", 512_000_000), ("2TiB", 2 * 2**40), ("512", 512)],
)
def test_a_size_has_units_of_1000_and_of_1024(text: str, size: int) -> None:
    assert TypeAdapter(SizeInBytes[int]).validate_python(text) == size


@pytest.mark.parametrize("text", ["", "MB", "1XB", "-1MB", "1iB2"])
def test_what_is_no_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValidationError, match="Input should be a size such as '512MB'"):
        TypeAdapter(SizeInBytes[int]).validate_python(text)


def test_a_size_is_reported_with_the_unit_that_keeps_it_short() -> None:
    assert [format_bytes(size) for size in (0, 1023, 2**20, 2**60)] == ["0 B", "1023 B", "1.0 MiB", "1024.0 PiB"]


def test_one_is_singular() -> None:
    assert [counted(number, "branch", "branches") for number in (0, 1, 2000)] == [
        "0 branches",
        "1 branch",
        "2,000 branches",
    ]
