"""The base of all models: frozen, closed, comparable by value."""

from collections.abc import Iterable, Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

T = TypeVar("T")

Items = Annotated[Sequence[T], AfterValidator(tuple)]
"""Any sequence as input, stored as a tuple: a frozen model must not hold a list."""


class FrozenModel(BaseModel):
    """Base of all models: immutable, and an unknown argument is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def first_duplicate(values: Iterable[T]) -> T | None:
    """The first value that repeats an earlier one, if any."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
