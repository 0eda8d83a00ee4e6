"""The fields of a maintenance policy by their dotted names."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_origin

from pydantic import BaseModel

from floe_dagster_iceberg.models import MaintenancePolicy


@cache
def policy_fields() -> Mapping[str, Any]:
    """Type of every value of a policy, by a name such as 'expiry.max_age'."""
    return dict(_walk(MaintenancePolicy))


def _walk(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _walk(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def values_of(model: BaseModel, *, given_only: bool, prefix: str = "") -> dict[str, Any]:
    """The values of a policy by their dotted names.

    Args:
        model: The policy.
        given_only: Whether to leave out what nobody gave, because it is the package's default.
        prefix: Where the model sits in the whole policy.
    """
    values: dict[str, Any] = {}
    for name in model.model_fields_set if given_only else type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel) and prefix + name not in policy_fields():
            values |= values_of(value, given_only=given_only, prefix=f"{prefix}{name}.")
        else:
            values[prefix + name] = value
    return values


def flattened(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names; unknown ones stay as they are, for validation to refuse."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and path not in policy_fields():
            flat |= flattened(value, f"{path}.")
        else:
            flat[path] = read_text(path, value) if isinstance(value, str) else value
    return flat


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite of `flattened`."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split(".")
        level = tree
        for parent in parents:
            level = level.setdefault(parent, {})
        level[name] = value
    return tree


def is_size(path: str) -> bool:
    """Whether a value counts bytes."""
    return any(part.endswith("_bytes") for part in path.split("."))


def read_text(path: str, text: str) -> Any:
    """The text of a table property as validation takes it: 'a, b' for a list, everything else as it is."""
    if get_origin(policy_fields().get(path)) is Sequence:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text
