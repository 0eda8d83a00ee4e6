"""The rows of Dagster partitions, independent of an engine.

A slice is a union of conjunctions: a row belongs to it if it meets every constraint of at
least one of them. Each engine compiles a slice to its own filter.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time
from typing import Annotated, Final, Self, TypeAlias
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, model_validator

from floe_dagster_iceberg.models.base import FrozenModel

# Enough to recognize a partition; a backfill may have thousands.
_MOST_SHOWN: Final = 3


def _sorted_keys(keys: object) -> object:
    # Sets have no order, and equal slices must compare and print equal.
    return tuple(sorted(set(keys))) if isinstance(keys, Iterable) and not isinstance(keys, str) else keys


UtcInstant: TypeAlias = Annotated[AwareDatetime, AfterValidator(lambda timestamp: timestamp.astimezone(UTC))]


class TimeRange(FrozenModel):
    """Rows whose time lies in one unbroken window."""

    column: str = Field(min_length=1, description="Column that holds the time.")
    start: UtcInstant = Field(description="First instant of the window, kept in UTC.")
    end: UtcInstant = Field(description="First instant after the window, kept in UTC.")
    timezone: str = Field(default="UTC", description="Time zone of the partitions: which local day an instant is.")
    keys: tuple[str, ...] = Field(
        default=(), description="Partition keys of the window in order, for columns that hold the key itself."
    )
    sub_daily: bool = Field(
        default=False, description="Whether several partitions share a day, so that a date cannot distinguish them."
    )

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"window [{self.start.isoformat()}, {self.end.isoformat()}) is empty: end it later")
        return self

    def __str__(self) -> str:
        start, end = (_local(timestamp, self.timezone) for timestamp in (self.start, self.end))
        return f"{self.column} from {start} to before {end} in {self.timezone}"


class KeySet(FrozenModel):
    """Rows whose column holds one of some partition keys."""

    column: str = Field(min_length=1, description="Column that holds the key.")
    keys: Annotated[tuple[str, ...], BeforeValidator(_sorted_keys)] = Field(
        min_length=1, description="The partition keys, sorted, each once."
    )

    def __str__(self) -> str:
        return f"{self.column} is {_one_of([repr(key) for key in self.keys])}"


Constraint: TypeAlias = TimeRange | KeySet


class PartitionSlice(FrozenModel):
    """A set of rows: those that meet all constraints of at least one conjunction.

    >>> PartitionSlice(any_of=((KeySet(column="region", keys=("eu", "us")),),)).columns
    ('region',)
    """

    any_of: tuple[tuple[Constraint, ...], ...] = Field(
        description="The conjunctions; an empty one holds for every row, none at all holds for no row."
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide, each once."""
        return tuple(dict.fromkeys(constraint.column for conjunction in self.any_of for constraint in conjunction))

    @property
    def is_all_rows(self) -> bool:
        """Whether every row belongs to the slice."""
        return () in self.any_of

    @property
    def is_no_rows(self) -> bool:
        """Whether no row belongs to the slice."""
        return not self.any_of

    def __str__(self) -> str:
        """Columns, windows and keys for people; never a value of a row."""
        if self.is_all_rows or self.is_no_rows:
            return "all rows" if self.is_all_rows else "no rows"
        return _one_of([" and ".join(map(str, conjunction)) for conjunction in self.any_of])


def _local(timestamp: datetime, timezone: str) -> str:
    local = timestamp.astimezone(ZoneInfo(timezone))
    return f"{local:%Y-%m-%d}" if local.time() == time(0) else f"{local:%Y-%m-%d %H:%M}"


def _one_of(texts: Sequence[str]) -> str:
    more = [f"one of {len(texts) - _MOST_SHOWN} more"] if len(texts) > _MOST_SHOWN else []
    return " or ".join([*texts[:_MOST_SHOWN], *more])


ALL_ROWS: Final = PartitionSlice(any_of=((),))
"""The slice of an asset without partitions."""
