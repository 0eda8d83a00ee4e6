"""Durations, sizes, time zones and counts as people write and read them."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Final, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, TypeAdapter, ValidationError

_SECONDS: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_NAMES: Final = {"d": "day", "h": "hour", "m": "minute", "s": "second"}
# Pydantic reads ISO 8601 and '7d', but neither hours nor weeks written so.
_DURATION: Final = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[smhdw])\s*")
_TIMEDELTA: Final = TypeAdapter(timedelta)
_SIZE: Final = TypeAdapter(ByteSize)
_PREFIXES: Final = ("", "K", "M", "G", "T", "P")


def _read_duration(value: object) -> object:
    if not isinstance(value, str):
        return value
    if found := _DURATION.fullmatch(value):
        per_unit = 7 * _SECONDS["d"] if found["unit"] == "w" else _SECONDS[found["unit"]]
        return timedelta(seconds=float(found["number"]) * per_unit)
    try:
        return _TIMEDELTA.validate_python(value)
    except ValidationError:
        raise ValueError("Input should be a duration such as '36h', '7d' or '2w'") from None


def _read_size(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return int(_SIZE.validate_python(value))
    except ValidationError:
        raise ValueError("Input should be a size such as '512MB', '1GiB' or a number of bytes") from None


def _read_sizes(value: object) -> object:
    return {name: _read_size(size) for name, size in value.items()} if isinstance(value, Mapping) else value


_Duration = TypeVar("_Duration", timedelta, timedelta | None)
_Size = TypeVar("_Size", int, int | None)
_Sizes = TypeVar("_Sizes", bound=BaseModel)

Duration = Annotated[_Duration, BeforeValidator(_read_duration)]
"""A duration that may be written as one number and s, m, h, d or w."""

SizeInBytes = Annotated[_Size, BeforeValidator(_read_size, json_schema_input_type=_Size | str)]
"""A size that may be written with a unit: kB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024."""

SizesInBytes = Annotated[_Sizes, BeforeValidator(_read_sizes)]
"""A model whose fields are sizes."""


def _known_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"time zone '{name}' is unknown: use a name such as 'UTC' or 'Europe/Berlin'") from error
    return name


TimeZone = Annotated[str, AfterValidator(_known_timezone)]
"""The name of a time zone."""


def format_duration(duration: timedelta) -> str:
    """A duration in whole units, largest first.

    >>> format_duration(timedelta(days=7)), format_duration(timedelta(hours=36))
    ('7 days', '1 day 12 hours')
    """
    rest, parts = duration.total_seconds(), []
    for unit, seconds in _SECONDS.items():
        number, rest = (rest, 0) if unit == "s" else divmod(rest, seconds)
        if number:
            parts.append(counted(int(number) if number == int(number) else round(number, 3), _NAMES[unit]))
    return " ".join(parts) or "0 seconds"


def format_bytes(size: float) -> str:
    """A size in the largest fitting unit.

    >>> format_bytes(1536)
    '1.5 KiB'
    """
    for prefix in _PREFIXES[:-1]:
        if size < 1024:  # noqa: PLR2004 - bytes per KiB
            return f"{size:.1f} {prefix}iB" if prefix else f"{size:.0f} B"
        size /= 1024
    return f"{size:.1f} {_PREFIXES[-1]}iB"


def counted(number: float, noun: str, plural: str | None = None) -> str:
    """A number with its noun.

    >>> counted(1, "file"), counted(1200, "file"), counted(0, "branch", "branches")
    ('1 file', '1,200 files', '0 branches')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
