"""Pydantic's own messages, each with the path of its field, and for an unknown name the one that was meant.

A refused value is never part of a message: it may be a secret or a data value.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pydantic


@dataclass(frozen=True)
class FieldError:
    """What a model refused.

    Attributes:
        path: Dotted name of the field; empty for a rule about the model as a whole.
        message: What is wrong with it.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def field_errors(error: pydantic.ValidationError, model: type[pydantic.BaseModel]) -> list[FieldError]:
    """What Pydantic refused, field by field; unknown names are compared with the known ones of `model`."""
    errors = []
    for raised in error.errors(include_url=False, include_input=False):
        path, known = _locate(model, raised["loc"])
        message = raised["msg"].removeprefix("Value error, ")
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
    """The known name that is nearest in spelling, if one is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def _locate(model: type[pydantic.BaseModel], location: Sequence[int | str]) -> tuple[str, list[str]]:
    """The path of a location, and the names known at its end."""
    path: list[str] = []
    names: dict[str, Any] = {}
    inside: type[pydantic.BaseModel] | None = model
    for part in location:
        path.append(str(part))
        if inside is None or isinstance(part, int):
            continue
        names = {field.alias or name: field.annotation for name, field in inside.model_fields.items()}
        if _is_union(annotation := names.get(part)):
            # What follows is the member of the union that was tried, which nobody wrote.
            break
        inside = _model_in(annotation) or (inside if part not in names else None)
    return ".".join(path), list(names)


def _is_union(annotation: Any) -> bool:
    members = set(get_args(annotation)) - {type(None)}
    return get_origin(annotation) in (Union, UnionType) and len(members) > 1


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The model that a field, its items or its values are."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((found for each in get_args(annotation) if (found := _model_in(each)) is not None), None)
