"""What Pydantic refuses, in sentences: what the value must be, and what was meant by a name that is unknown."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

import pydantic
from pydantic.fields import FieldInfo

from floe_dagster_iceberg.models.quantities import DURATION_FORM, SIZE_FORM, format_bytes, format_duration

_MOMENT_FORM: Final = "a moment with a time zone, such as '2026-01-31T14:30+02:00'"
# By how Pydantic's names of faults begin.
_FORMS: Final = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a number",
    "bool": "true or false",
    "string_type": "text",
    "time_delta": DURATION_FORM,
    "datetime": _MOMENT_FORM,
    "timezone": _MOMENT_FORM,
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping",
    "list": "a list",
    "tuple": "a list",
    "set": "a list",
    "is_instance_of": "a list",
}
# A truth value is a number to Python, so it comes first.
_KINDS: Final = {
    bool: "true or false",
    int | float: "a number",
    str: "text",
    Mapping: "a mapping",
    list | tuple | set: "a list",
}
_LIMITS: Final = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
_CHOICES: Final = ("enum", "literal_error")
_PATTERNS: Final = {r"^\S+$": "text without spaces"}
_PLAIN: Final = {
    "missing": "is missing",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}
_LONGEST_VALUE: Final = 40


@dataclass(frozen=True)
class Fault:
    """Something that a model refused.

    Attributes:
        path: Dotted name of the value; empty for a rule about the model as a whole.
        words: What is wrong with it, to be read after its name.
        is_rule: Whether it is a rule in words of its own, to be read after a colon.
    """

    path: str
    words: str
    is_rule: bool = False

    def sentence(self, name: str | None = None) -> str:
        """The fault in full, without a full stop.

        Args:
            name: Name of the value, where its path alone says too little.
        """
        name = self.path if name is None else name
        return f"{name}{':' if self.is_rule and name else ''} {self.words}".strip()


def describe_faults(
    error: pydantic.ValidationError, model: type[pydantic.BaseModel] | None = None, *, with_values: bool = False
) -> list[Fault]:
    """Put into words what Pydantic refused; several complaints about one value become one.

    Args:
        error: What Pydantic raised.
        model: The model that refused; with it, unknown names are compared with the known ones.
        with_values: Whether to tell the refused values, too. Only for settings that never hold a secret;
            fields that are left out of `repr` are left out here as well.
    """
    found: dict[str, list[Fault]] = {}
    for raised in error.errors(include_url=False):
        where = _Place.of(model, raised["loc"])
        fault = Fault(where.path, _words(dict(raised), where, with_values=with_values), raised["type"] == "value_error")
        found.setdefault(fault.path, []).append(fault)
    return [_as_one(faults) for faults in found.values()]


def unknown(name: str, known: Iterable[str]) -> str:
    """What to say after a name that is no setting."""
    names = list(known)
    if (guess := nearest(name, names)) is not None:
        return f"is no setting (did you mean '{guess}'?)"
    return f"is no setting (known are {', '.join(names)})" if names else "is no setting"


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is nearest in spelling, if one is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


@dataclass(frozen=True)
class _Keys:
    """Names that are free to choose, and what the values below them are."""

    values: Any


@dataclass(frozen=True)
class _Place:
    """Where in a model a fault is: its path, the field there, and the names known beside it."""

    path: str
    field: FieldInfo | None
    known: Sequence[str]

    @property
    def is_size(self) -> bool:
        """Whether the value counts bytes."""
        return any(part.endswith("_bytes") for part in self.path.split("."))

    @classmethod
    def of(cls, model: type[pydantic.BaseModel] | None, location: tuple[int | str, ...]) -> "_Place":
        if model is None:
            return cls(".".join(part for part in location if isinstance(part, str)), None, ())
        names: list[str] = []
        known: list[str] = []
        field: FieldInfo | None = None
        inside: Any = model
        for part in location:
            if isinstance(part, int):
                continue
            if inside is None:
                # Which of several types was tried, which is no name that anybody wrote.
                break
            names.append(part)
            if isinstance(inside, _Keys):
                inside = inside.values
                continue
            known = [each.alias or name for name, each in inside.model_fields.items()]
            field = next((each for name, each in inside.model_fields.items() if part in (name, each.alias)), None)
            inside = None if field is None else _container(field.annotation)
        return cls(".".join(names), field, known)


def _container(annotation: Any) -> Any:
    """The model that a field or its items are, or keys of a mapping; None for what has no names inside."""
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    if get_origin(annotation) in (Union, UnionType):
        return _container(kinds[0]) if len(kinds) == 1 else None
    if get_origin(annotation) is dict:
        return _Keys(_container(kinds[1]))
    if get_origin(annotation) in (tuple, list, Sequence):
        return _container(kinds[0])
    return annotation if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel) else None


def _as_one(faults: Sequence[Fault]) -> Fault:
    first = faults[0]
    return Fault(first.path, " or ".join(dict.fromkeys(fault.words for fault in faults)), first.is_rule)


def _words(raised: Mapping[str, Any], where: _Place, *, with_values: bool) -> str:
    kind = str(raised["type"])
    if kind == "value_error":
        return str(raised["ctx"]["error"])
    if kind == "extra_forbidden":
        return unknown(str(raised["loc"][-1]), where.known)
    if kind in _PLAIN:
        return _PLAIN[kind]
    demand, is_hidden = _demand(raised, where), where.field is not None and where.field.repr is False
    if demand is None:
        # Rare ones in Pydantic's own words, which name no value.
        return f"is wrong ({raised['msg']})"
    if with_values and not is_hidden:
        return f"must be {demand}, not {_shown(raised['input'])}"
    # Beside a limit or a choice, the kind of the value says nothing.
    given = "" if kind in (*_LIMITS, *_CHOICES) else f", not {_kind_of(raised['input'])}"
    return f"must be {demand}{given}"


def _demand(raised: Mapping[str, Any], where: _Place) -> str | None:
    kind, context = str(raised["type"]), raised.get("ctx", {})
    if kind in _LIMITS:
        key, words = _LIMITS[kind]
        return f"{words} {_limit(context[key], is_size=where.is_size)}"
    if kind in _CHOICES:
        return str(context["expected"])
    if where.field is not None and where.field.examples:
        return f"written as in {' or '.join(map(repr, where.field.examples))}"
    if kind.startswith("int") and where.is_size:
        return SIZE_FORM
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"])
    return next((form for begin, form in _FORMS.items() if kind.startswith(begin)), None)


def _limit(limit: Any, *, is_size: bool) -> str:
    if isinstance(limit, timedelta):
        return format_duration(limit)
    return format_bytes(limit) if is_size else f"{limit:g}"


def _shown(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str() if len(value) <= _LONGEST_VALUE:
            return f"'{value}'"
        case Enum():
            return f"'{value.value}'"
        case timedelta():
            return format_duration(value)
        case int() | float():
            return str(value)
        case _:
            return _kind_of(value)


def _kind_of(value: object) -> str:
    if value is None:
        return "null"
    return next((words for kind, words in _KINDS.items() if isinstance(value, kind)), type(value).__name__)
