"""Which days the demo loads, and how they arrive."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from examples.bronze import NEW_YORK_DAYS

_DAILY, _WATCHED = 19, 5


@dataclass(frozen=True)
class Calendar:
    """The days of the demo.

    Attributes:
        history: Days that exist when the pipeline starts; loaded as one backfill.
        daily: Days that arrive one by one.
        watched: The last days, loaded into all layers with one run each, as by a schedule.
    """

    history: Sequence[str]
    daily: Sequence[str]
    watched: Sequence[str]

    @classmethod
    def since(cls, day: str) -> Self:
        """The days starting with this one; at most half of them arrive one by one."""
        days = [key for key in NEW_YORK_DAYS.get_partition_keys() if key >= day]
        if len(days) < 2 * _WATCHED:
            raise SystemExit(f"Too few days since {day}. Use 2013-12-22 or earlier.")
        arrived = days[-min(_DAILY, len(days) // 2) :]
        return cls(history=days[: -len(arrived)], daily=arrived[:-_WATCHED], watched=arrived[-_WATCHED:])

    @property
    def days(self) -> Sequence[str]:
        """All days, in order."""
        return [*self.history, *self.daily, *self.watched]

    @property
    def first(self) -> str:
        """The first day."""
        return self.history[0]

    @property
    def last(self) -> str:
        """The last day."""
        return self.watched[-1]
