"""Durations, sizes and counts as people write and read them."""

import re
from datetime import timedelta
from typing import Final

_SECONDS: Final = {"d": 86_400, "h": 3600, "m": 60, "s": 1}
_DURATION: Final = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[smhdw])\s*")
_NAMES: Final = {"d": "day", "h": "hour", "m": "minute", "s": "second"}
_SIZE: Final = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<prefix>[KMGTP]?)(?P<binary>i?)B\s*", re.IGNORECASE)
_PREFIXES: Final = ("", "K", "M", "G", "T", "P")

DURATION_FORM: Final = "a duration such as '36h', '7d' or '2w'"
SIZE_FORM: Final = "a size such as '512MB', '1GiB' or a number of bytes"


def parse_duration(text: str) -> timedelta | None:
    """A duration written as one number and s, m, h, d or w; None when it is not.

    >>> parse_duration("36h")
    datetime.timedelta(days=1, seconds=43200)
    """
    if (found := _DURATION.fullmatch(text)) is None:
        return None
    per_unit = 7 * _SECONDS["d"] if found["unit"] == "w" else _SECONDS[found["unit"]]
    return timedelta(seconds=float(found["number"]) * per_unit)


def format_duration(duration: timedelta) -> str:
    """A duration in whole units, the largest first.

    >>> format_duration(timedelta(days=7)), format_duration(timedelta(hours=36))
    ('7 days', '1 day 12 hours')
    """
    rest, parts = duration.total_seconds(), []
    for unit, seconds in _SECONDS.items():
        number, rest = (rest, 0) if unit == "s" else divmod(rest, seconds)
        if number:
            parts.append(counted(int(number) if number == int(number) else round(number, 3), _NAMES[unit]))
    return " ".join(parts) or "0 seconds"


def parse_bytes(text: str) -> int | None:
    """A size with a unit: kB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024; None when it is none.

    >>> parse_bytes("512MB"), parse_bytes("1 GiB")
    (512000000, 1073741824)
    """
    if (found := _SIZE.fullmatch(text)) is None:
        return None
    base = 1024 if found["binary"] else 1000
    return int(float(found["number"]) * base ** _PREFIXES.index(found["prefix"].upper()))


def format_bytes(size: float) -> str:
    """A size with a unit that keeps it short.

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
