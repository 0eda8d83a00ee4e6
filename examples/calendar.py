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
        history: Days that are there when the pipeline begins; loaded as one backfill.
        daily: Days that arrive one by one.
        watched: The last of those; they go through all layers in one run each, as a schedule would do it.
    """

    history: Sequence[str]
    daily: Sequence[str]
    watched: Sequence[str]

    @classmethod
    def since(cls, day: str) -> Self:
        """The days from this one on; at most half of them arrive one by one."""
        days = [key for key in NEW_YORK_DAYS.get_partition_keys() if key >= day]
        if len(days) < 2 * _WATCHED:
            raise SystemExit(f"There are too few days since {day}. Begin with 2013-12-22 or before.")
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
