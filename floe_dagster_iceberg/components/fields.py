"""How fields of YAML are read: checked with their place in the file, so that an error names file, line and field."""

import json
import re
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from typing import Annotated, Any, Final, TypeAlias

import dagster as dg
import pydantic
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.base import field_errors, model_in, unknown_name
from floe_dagster_iceberg.secrets import is_reference, secret_as_text

_VARIABLE: Final = re.compile(r"\{\{\s*env(?:\.([A-Za-z_]\w*)|\(\s*['\"]([A-Za-z_]\w*)['\"]\s*\))\s*\}\}")
TEMPLATE: Final = re.compile(r"\{\{|\{%")


class CheckedField(dg.Resolver):
    """Reads a field as a type of this package, whose errors say what to write.

    The schema of the YAML is that of the type. Values with templates are checked when these are rendered: by Dagster,
    or with `rendered=False` by the component.
    """

    def __init__(self, kind: Any, *, rendered: bool = True) -> None:
        self.adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(kind)
        self.kind = kind
        super().__init__(
            lambda context, value: self.read(context.resolve_value(value) if rendered else value),
            # It declares a class, and takes whatever Pydantic can read.
            model_field_type=Annotated[Any, _SchemaOf(self.adapter.core_schema)],  # type: ignore[arg-type]
            inject_before_resolve=False,
        )

    def read(self, value: Any) -> Any:
        """Return the value of the field.

        Raises:
            ValidationError: It is not valid.
        """
        if errors := self.find_errors("", value):
            raise ValidationError("; ".join(str(each["ctx"]["error"]) for each in errors))
        return self.adapter.validate_python(value)

    def find_errors(self, name: str, value: Any) -> list[InitErrorDetails]:
        """Return the errors of a value with their places below the field of this name."""
        try:
            self.adapter.validate_python(value)
        except pydantic.ValidationError as error:
            places = [raised["loc"] for raised in error.errors(include_url=False, include_input=False)]
            messages = [each.message for each in field_errors(error, model_in(self.kind) or pydantic.BaseModel)]
            return [_error((name, *place), message) for place, message in zip(places, messages, strict=True)]
        return []


class _SchemaOf:
    """Any value in Python, a given schema in JSON: what is not valid is refused by `CheckedField`, with a remedy."""

    def __init__(self, schema: CoreSchema) -> None:
        self._schema = schema

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        del source, handler
        return core_schema.any_schema()

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> Any:
        del schema
        return handler(self._schema)


class StrictComponent(dg.Component, dg.Model, dg.Resolvable):
    """A component whose YAML is checked as a whole: all errors, each with its place and what to write instead."""

    @classmethod
    def model(cls) -> type[pydantic.BaseModel]:
        return _checked_model(cls)


@cache
def _checked_model(component: type[StrictComponent]) -> type[pydantic.BaseModel]:
    plain = super(StrictComponent, component).model()
    fields = {name: _checked_field(field.metadata) for name, field in component.model_fields.items()}

    def check(given: Any) -> Any:
        errors: list[InitErrorDetails] = []
        for name, value in given.items() if isinstance(given, Mapping) else ():
            field = fields.get(name)
            if name not in fields:
                errors.append(_error((str(name),), unknown_name(str(name), fields)))
            elif field is not None and not _has_template(value):
                errors += field.find_errors(name, value)
        if errors:
            raise pydantic.ValidationError.from_exception_data(plain.__name__, errors)
        return given

    validator: Any = pydantic.model_validator(mode="before")(check)
    described: dict[str, Any] = {}
    for name, field in plain.model_fields.items():
        # Dagster takes the description from the resolver alone.
        described[name] = (field.annotation, copy(field))
        described[name][1].description = component.model_fields[name].description
    model: type[pydantic.BaseModel] = pydantic.create_model(
        plain.__name__, __base__=plain, __validators__={"check": validator}, **described
    )
    return model


def _checked_field(metadata: Sequence[Any]) -> CheckedField | None:
    return next((each for each in metadata if isinstance(each, CheckedField)), None)


def _has_template(value: Any) -> bool:
    match value:
        case str():
            return TEMPLATE.search(value) is not None
        case Mapping():
            return any(_has_template(each) for each in value.values())
        case list():
            return any(_has_template(each) for each in value)
    return False


def _error(place: tuple[int | str, ...], message: str) -> InitErrorDetails:
    # Of a type that Dagster can raise again with the line. No input: it may be a secret.
    return InitErrorDetails(type="value_error", ctx={"error": ValueError(message)}, loc=place, input=None)


def _text(context: dg.ResolutionContext, value: Any) -> Any:
    """Text as it is, a number or a boolean as JSON, a reference to a secret as text; `{{ env.X }}` as an `EnvVar`."""
    if value is None:
        return None
    if isinstance(value, Mapping):
        if not is_reference(value):
            raise ValidationError(
                "A mapping here is a reference to a secret: {source: kubernetes, name: polaris, key: secret}, or "
                "{secret_ref: polaris-secret}."
            )
        return secret_as_text(value)
    if not isinstance(value, str):
        return json.dumps(value)
    if (variable := _VARIABLE.fullmatch(value.strip())) is not None:
        # Resolved by Dagster when a run starts: the value is in no definition, and loading does not need it.
        return dg.EnvVar(variable[1] or variable[2])
    # Text that is no template is not rendered, which would turn "0123" into a number.
    return _rendered(context, value) if TEMPLATE.search(value) else value


def _rendered(context: dg.ResolutionContext, value: str) -> str:
    rendered: Any = context.resolve_value(value, as_type=str)
    if not isinstance(rendered, str | int | float):
        raise ValidationError("The template has no value. Set what it names, or write env('NAME', 'default').")
    return str(rendered)


def _texts(context: dg.ResolutionContext, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _text(context, value) for name, value in values.items()}


Text: TypeAlias = Annotated[
    Any, dg.Resolver(_text, model_field_type=str | dict[str, str] | None, inject_before_resolve=False)
]
"""Text, a reference to a secret, or an environment variable that is read when a run starts."""
Texts: TypeAlias = Annotated[
    Mapping[str, Any],
    dg.Resolver(
        _texts,
        model_field_type=dict[str, str | int | float | bool | dict[str, str]],
        inject_before_resolve=False,
    ),
]
"""Properties whose values are `Text`."""
