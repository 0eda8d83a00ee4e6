"""What a Dagster context says about an output or input, be it made by a run or by a unit test."""

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from dagster import DagsterInvariantViolationError, InputContext, OutputContext

from floe_dagster_iceberg.asset_settings import AssetSettings, InputSettings
from floe_dagster_iceberg.errors import ValidationError


def owner_of(context: OutputContext | InputContext) -> str:
    """What messages call the context: the asset being stored, else the output or input by its name."""
    if isinstance(context, InputContext):
        return f"input '{context.name}'" if context.has_input_name else "the input"
    return f"asset '{context.asset_key.to_user_string()}'" if context.has_asset_key else f"output '{context.name}'"


def name_of(kind: Any) -> str:
    """What messages call a type or an annotation.

    >>> name_of(list), name_of(Sequence)
    ('list', 'collections.abc.Sequence')
    """
    if not isinstance(kind, type):
        return str(kind)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def output_settings(context: OutputContext) -> AssetSettings:
    """Settings of an output: its own metadata over that of its definition."""
    return AssetSettings.from_metadata(context.definition_metadata, context.output_metadata, owner=owner_of(context))


def input_settings(context: InputContext) -> InputSettings:
    """Settings of an input."""
    return InputSettings.from_metadata(context.definition_metadata, owner=owner_of(context))


def upstream_settings(context: InputContext) -> AssetSettings:
    """Settings of the asset or output that an input loads, as its definition says."""
    output = context.upstream_output
    return AssetSettings() if output is None else AssetSettings.from_metadata(output.definition_metadata)


def table_path(context: OutputContext | InputContext) -> Sequence[str]:
    """The words that name the table: of the asset key, else of the op.

    Steps and outputs that Dagster maps over get a table each, because each is loaded by itself.
    """
    if context.has_asset_key:
        return context.asset_key.path
    output = context if isinstance(context, OutputContext) else context.upstream_output
    if output is None:
        raise ValidationError(f"{owner_of(context)} has neither an asset nor an upstream output. Give it an asset key.")
    step = output.step_key.replace(".", "_").replace("[", "_").replace("]", "")
    words = [step, *([] if output.name == "result" else [output.name]), *filter(None, [output.mapping_key])]
    return ["_".join(words)]


def wanted_type(context: InputContext) -> Any:
    """The type that an input is annotated with, without `Optional` and `list` around it; None when there is none."""
    try:
        annotation = context.dagster_type.typing_type
    except DagsterInvariantViolationError:
        return None
    if get_origin(annotation) is list:
        # Collected outputs are loaded one by one; Dagster makes the list.
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in {Union, UnionType}:
        wanted = [kind for kind in get_args(annotation) if kind is not NoneType]
        annotation = wanted[0] if len(wanted) == 1 else annotation
    return None if annotation is Any else annotation
