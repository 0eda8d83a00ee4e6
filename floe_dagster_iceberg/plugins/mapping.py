"""One configuration field, two spellings: PyIceberg's properties and Java's."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, SecretStr

from floe_dagster_iceberg.secrets import NamedSecret, SecretReference, resolve_properties, resolve_secret, resolve_text

Engine = Literal["python", "java"]


def as_text(value: Any) -> str:
    """Write a value as Iceberg properties spell it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def negated(value: Any) -> str:
    """Write a flag that the other engine spells as its opposite."""
    return "false" if as_text(value).lower() == "true" else "true"


def as_milliseconds(value: Any) -> str:
    """Write seconds as whole milliseconds."""
    return str(int(float(value) * 1000))


@dataclass(frozen=True)
class Setting:
    """A field of a plugin's configuration and its property in each engine; None where there is none."""

    field: str
    python: str | None
    java: str | None
    python_value: Callable[[Any], str] = as_text
    java_value: Callable[[Any], str] = as_text


# Users' own properties that the engines spell differently.
_TO_JAVA: dict[str, tuple[str, Callable[[Any], str]]] = {
    "s3.force-virtual-addressing": ("s3.path-style-access", negated),
    "s3.region": ("client.region", as_text),
    "adls.account-name": ("adls.auth.shared-key.account.name", as_text),
    "adls.account-key": ("adls.auth.shared-key.account.key", as_text),
}
# PyIceberg reads client.region too.
_TO_PYTHON: dict[str, tuple[str, Callable[[Any], str]]] = {
    "s3.path-style-access": ("s3.force-virtual-addressing", negated),
    "adls.auth.shared-key.account.name": ("adls.account-name", as_text),
    "adls.auth.shared-key.account.key": ("adls.account-key", as_text),
}
BARE_PROPERTIES = ("echo", "pool_pre_ping", "init_catalog_tables", "schema_version")
"""Iceberg properties without a dot or dash in their name."""
_PYTHON_ONLY = ("py-", "s3.connect-timeout", "s3.request-timeout", *BARE_PROPERTIES)
_JAVA_ONLY = ("io-impl", "catalog-impl", "jdbc.", "rest.client.", "metrics-reporter-impl", "cache-", "table-default.")


def engine_properties(config: BaseModel, settings: Iterable[Setting], engine: Engine) -> dict[str, str]:
    """A configuration as properties of one engine; secrets are resolved, unset fields left out."""
    properties: dict[str, str] = {}
    for setting in settings:
        key = setting.python if engine == "python" else setting.java
        value = getattr(config, setting.field)
        if key is not None and value is not None:
            to_text = setting.python_value if engine == "python" else setting.java_value
            properties[key] = to_text(resolved(value))
    return properties


def passed_through(properties: Mapping[str, str], engine: Engine) -> dict[str, str]:
    """The user's own properties as one engine spells them; those that only the other one has are left out."""
    foreign, spellings = (_JAVA_ONLY, _TO_PYTHON) if engine == "python" else (_PYTHON_ONLY, _TO_JAVA)
    spelled: dict[str, str] = {}
    for key, value in resolve_properties(properties).items():
        if key in spellings:
            name, to_text = spellings[key]
            spelled.setdefault(name, to_text(value))
        elif not key.startswith(foreign):
            spelled[key] = value
    return spelled


def resolved(value: Any) -> Any:
    """The value of a field, with secrets and references resolved."""
    match value:
        case SecretStr() | SecretReference() | NamedSecret():
            return resolve_secret(value)
        case str():
            return resolve_text(value)
        case _:
            return value
