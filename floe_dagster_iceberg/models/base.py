"""The base of all models: frozen, closed, comparable by value; and the errors of invalid ones, by field.

Messages never contain the input: it may be a secret or a data value.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, PlainSerializer

T = TypeVar("T")

Items = Annotated[Sequence[T], AfterValidator(tuple)]
"""Any sequence as input, stored as a tuple: a frozen model must not hold a list."""


SnapshotId = Annotated[int, PlainSerializer(str, return_type=str, when_used="json")]
"""Id of a snapshot. As text in JSON, because it has more digits than a number of JavaScript or jq."""


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


# Where Pydantic's own message does not say what to write.
_MESSAGES: Final = {"timezone_aware": "It has no time zone. Add an offset, as in 2026-01-31T14:30:00+00:00"}


@dataclass(frozen=True)
class FieldError:
    """An error at the dotted path of a field; the path is empty for a rule about the whole model."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def field_errors(error: pydantic.ValidationError, model: type[pydantic.BaseModel]) -> list[FieldError]:
    """The errors by field; unknown names are compared with the fields of `model`."""
    errors = []
    for raised in error.errors(include_url=False, include_input=False):
        path, known = _locate(model, raised["loc"])
        message = _MESSAGES.get(raised["type"]) or raised["msg"].removeprefix("Value error, ")
        if raised["type"] == "extra_forbidden":
            message = unknown_name(str(raised["loc"][-1]), known)
        errors.append(FieldError(path, message))
    return errors


def unknown_name(name: str, known: Iterable[str]) -> str:
    """The message for a name that is not a setting."""
    names = list(known)
    if (guess := nearest(name, names)) is not None:
        return f"Extra inputs are not permitted (did you mean '{guess}'?)"
    return f"Extra inputs are not permitted (known: {', '.join(names) or 'none'})"


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name with the closest spelling, if one is close."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def _locate(model: type[pydantic.BaseModel], location: Sequence[int | str]) -> tuple[str, list[str]]:
    """The path of a location, and the field names at its end."""
    path: list[str] = []
    names: dict[str, Any] = {}
    inside: type[pydantic.BaseModel] | None = model
    for part in location:
        path.append(str(part))
        if inside is None or isinstance(part, int):
            continue
        names = {field.alias or name: field.annotation for name, field in inside.model_fields.items()}
        if _is_union(annotation := names.get(part)):
            # What follows is the union member that was tried, which is not part of the input.
            break
        inside = model_in(annotation) or (inside if part not in names else None)
    return ".".join(path), list(names)


def _is_union(annotation: Any) -> bool:
    members = set(get_args(annotation)) - {type(None)}
    return get_origin(annotation) in (Union, UnionType) and len(members) > 1


def model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The model of a field, of its items or of its values."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := model_in(each)) is not None), None)
