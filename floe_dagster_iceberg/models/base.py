"""What every model has in common: frozen, closed, comparable by value."""

from collections.abc import Iterable, Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

T = TypeVar("T")

Items = Annotated[Sequence[T], AfterValidator(tuple)]
"""Any sequence when given, always a tuple when kept: a frozen model must not hold a list that can grow."""


class FrozenModel(BaseModel):
    """Base of all models: immutable, and an unknown argument is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def first_duplicate(values: Iterable[T]) -> T | None:
    """Return the first value that was there before, or None."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
