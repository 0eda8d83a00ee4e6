"""The five forms of a secret, and where they are looked up."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter

from floe_dagster_iceberg.errors import SecretNotFoundError
from floe_dagster_iceberg.secrets.redaction import is_secret_key, remember_secret

DEFAULT_SECRETS_DIR = "/var/run/secrets"

_VARIABLE = re.compile(
    r"\$\{(?P<shell>[A-Za-z_]\w*)\}"
    r"|\{\{\s*env_var\(\s*(?P<q>['\"])(?P<dbt>\w+)(?P=q)\s*(?:,\s*(?P<d>['\"])(?P<default>.*?)(?P=d)\s*)?\)\s*\}\}"
)


class SecretReference(BaseModel):
    """A secret by its source and name, and by its key if the secret has several."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(default="kubernetes", description="Where it is kept: env, kubernetes, vault, ...")
    name: str = Field(min_length=1, description="Name of the secret.")
    key: str | None = Field(default=None, min_length=1, description="Key inside the secret.")

    def __str__(self) -> str:
        return self.name if self.key is None else f"{self.name}/{self.key}"


class NamedSecret(BaseModel):
    """A secret by its name alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    secret_ref: str = Field(min_length=1, description="Name of the secret.")

    def __str__(self) -> str:
        return self.secret_ref


SecretValue = SecretStr | SecretReference | NamedSecret
"""Type of a configuration field for a secret in any of the five forms."""

_reference: TypeAdapter[SecretReference | NamedSecret] = TypeAdapter(SecretReference | NamedSecret)


def resolve_secret(value: str | Mapping[str, Any] | SecretValue) -> str:
    """Look up a secret of any form, and remember it for `redact`.

    Raises:
        SecretNotFoundError: The secret does not exist; the message names the reference.
    """
    secret = resolve_text(value.get_secret_value() if isinstance(value, SecretStr) else value)
    remember_secret(secret)
    return secret


def resolve_text(value: str | Mapping[str, Any] | SecretReference | NamedSecret) -> str:
    """Look up a value that is not secret but may be written like one, such as an address.

    Raises:
        SecretNotFoundError: The value does not exist; the message names the reference.
    """
    if isinstance(value, str):
        value = _reference_in(value) or value
    if isinstance(value, Mapping):
        value = _reference.validate_python(value)
    return _expand_variables(value) if isinstance(value, str) else _look_up(value)


def secret_as_text(value: str | Mapping[str, Any] | SecretValue) -> str:
    """Return a secret of any form as text for `resolve_secret`; nothing is looked up."""
    match value:
        case str():
            return value
        case SecretStr():
            return value.get_secret_value()
        case BaseModel():
            return value.model_dump_json(exclude_none=True)
        case _:
            return json.dumps(dict(value))


def resolve_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Resolve references in the values; values of secret-looking keys are remembered too."""
    return {
        key: resolve_secret(value) if is_secret_key(key) else resolve_text(value) for key, value in properties.items()
    }


def is_reference(value: object) -> bool:
    """Whether a value is one of the two forms that are mappings."""
    if not isinstance(value, Mapping):
        return False
    return value.keys() == {"secret_ref"} or ("name" in value and {"name"} < value.keys() <= {"source", "name", "key"})


def _expand_variables(text: str) -> str:
    """Replace every `${NAME}` and `{{ env_var('NAME', 'default') }}` by the variable's value."""

    def value_of(found: re.Match[str]) -> str:
        name = found["shell"] or found["dbt"]
        value = os.environ.get(name, found["default"])
        if value is None:
            raise SecretNotFoundError(name, looked_in=[f"environment variable {name}"])
        return value

    return _VARIABLE.sub(value_of, text)


def _reference_in(text: str) -> Mapping[str, Any] | None:
    if not text.lstrip().startswith("{") or _VARIABLE.search(text):
        return None
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError:
        return None
    # Plain text may be JSON, such as a service-account key.
    return parsed if is_reference(parsed) else None


def _look_up(reference: SecretReference | NamedSecret) -> str:
    variables = list(_variables_for(reference))
    for variable in variables:
        if value := os.environ.get(variable):
            return value
    folder = Path(os.environ.get("FLOE_SECRETS_DIR", DEFAULT_SECRETS_DIR))
    file = folder.joinpath(str(reference))
    if file.resolve().is_relative_to(folder.resolve()) and file.is_file():
        return file.read_text(encoding="utf-8").strip()
    raise SecretNotFoundError(str(reference), looked_in=[f"environment variables {', '.join(variables)}", str(file)])


def _variables_for(reference: SecretReference | NamedSecret) -> Iterator[str]:
    stem = re.sub(r"\W", "_", str(reference)).upper()
    yield f"FLOE_SECRET_{stem}"
    yield stem
    if isinstance(reference, SecretReference) and reference.source == "env" and reference.name != stem:
        yield reference.name
