"""Plugins by name: installed ones first, then the built-ins."""

import inspect
import json
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, get_type_hints

import pydantic
from pydantic import BaseModel

from floe_dagster_iceberg.errors import PluginNotFoundError, ValidationError
from floe_dagster_iceberg.models.base import field_errors
from floe_dagster_iceberg.plugins import glue_hive, rest, sql, storage
from floe_dagster_iceberg.plugins.base import BuiltInPlugin
from floe_dagster_iceberg.plugins.mapping import BARE_PROPERTIES
from floe_dagster_iceberg.plugins.protocols import CatalogPlugin, StoragePlugin
from floe_dagster_iceberg.secrets import resolve_text

Kind = Literal["catalog", "storage"]
GROUPS: dict[Kind, str] = {"catalog": "floe.catalogs", "storage": "floe.storage"}
BUILT_INS: dict[Kind, dict[str, type[BuiltInPlugin[Any]]]] = {
    "catalog": {
        "sql": sql.SqlCatalogPlugin,
        "rest": rest.RestCatalogPlugin,
        "polaris": rest.PolarisCatalogPlugin,
        "glue": glue_hive.GlueCatalogPlugin,
        "hive": glue_hive.HiveCatalogPlugin,
    },
    "storage": {
        "local": storage.LocalStoragePlugin,
        "s3": storage.S3StoragePlugin,
        "gcs": storage.GcsStoragePlugin,
        "azure": storage.AzureStoragePlugin,
    },
}
_OAUTH2_FIELDS = ("client_id", "client_secret", "token_url", "scope")
_OUR_FIELDS = frozenset({"catalog_name", "retry", "access_delegation"})


def open_catalog_plugin(name: str, config: Mapping[str, Any]) -> CatalogPlugin:
    """Build a catalog plugin; it does not connect.

    Raises:
        PluginNotFoundError: There is no plugin of that name.
        ValidationError: The configuration is invalid.
    """
    plugin = _build("catalog", name, config)
    if not isinstance(plugin, CatalogPlugin):
        raise ValidationError(f"Plugin '{name}' of group '{GROUPS['catalog']}' is not a catalog plugin.")
    return plugin


def open_storage_plugin(name: str, config: Mapping[str, Any]) -> StoragePlugin:
    """Build a storage plugin; it does not connect.

    Raises:
        PluginNotFoundError: There is no plugin of that name.
        ValidationError: The configuration is invalid.
    """
    plugin = _build("storage", name, config)
    if not isinstance(plugin, StoragePlugin):
        raise ValidationError(f"Plugin '{name}' of group '{GROUPS['storage']}' is not a storage plugin.")
    return plugin


def built_in(kind: Kind, name: str, config: Mapping[str, Any]) -> BuiltInPlugin[Any]:
    """Build a built-in plugin, even if an installed one has the same name.

    Raises:
        PluginNotFoundError: There is no built-in of that name.
        ValidationError: The configuration is invalid.
    """
    if name not in BUILT_INS[kind]:
        raise PluginNotFoundError(kind, name, known=known_plugins(kind))
    plugin = BUILT_INS[kind][name]
    fields = plugin.config_type.model_fields
    known = {key: value for key, value in config.items() if key in fields}
    properties = {key: str(value) for key, value in config.items() if key not in fields}
    if unknown := [key for key in properties if not _is_iceberg_property(key)]:
        raise ValidationError(
            f"Configuration of {kind} plugin '{name}' has unknown keys: {', '.join(sorted(unknown))}. "
            f"Known: {', '.join(sorted(fields))}; Iceberg's own properties, such as 's3.endpoint', pass through."
        )
    if properties:
        known["properties"] = {**known.get("properties", {}), **properties}
    return plugin(_validated(plugin.config_type, known, kind=kind, name=name))


def known_plugins(kind: Kind) -> list[str]:
    """The names of all plugins, installed and built-in."""
    return sorted({*BUILT_INS[kind], *(point.name for point in _installed(kind))})


def _installed(kind: Kind) -> tuple[EntryPoint, ...]:
    return _installed_on(tuple(sys.path), GROUPS[kind])


@lru_cache
def _installed_on(_search_path: tuple[str, ...], group: str) -> tuple[EntryPoint, ...]:
    """The entry points on a search path; cached, because reading them takes as long as reading a partition."""
    return tuple(entry_points(group=group))


def _build(kind: Kind, name: str, config: Mapping[str, Any]) -> object:
    installed = [point for point in _installed(kind) if point.name == name]
    if len(installed) > 1:
        sources = ", ".join(sorted(point.value for point in installed))
        raise ValidationError(f"Several packages offer the {kind} plugin '{name}': {sources}. Uninstall all but one.")
    return _from_entry_point(kind, installed[0], config) if installed else built_in(kind, name, config)


def _from_entry_point(kind: Kind, point: EntryPoint, config: Mapping[str, Any]) -> object:
    factory = point.load()
    if "config" in inspect.signature(factory).parameters:
        hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
        schema = hints.get("config")
        if inspect.isclass(schema) and issubclass(schema, BaseModel):
            return factory(config=_validated(schema, _to_floe_config(schema, config), kind=kind, name=point.name))
        return factory(config=dict(config))
    plugin = factory()
    schema = plugin.get_config_schema()
    if hasattr(plugin, "configure"):
        given = dict(config) if schema is None else _to_floe_config(schema, config)
        plugin.configure(given if schema is None else _validated(schema, given, kind=kind, name=point.name))
    return plugin


def _to_floe_config(schema: type[BaseModel], config: Mapping[str, Any]) -> dict[str, Any]:
    """Our settings as floe's plugins take them: references resolved, OAuth2 in a section of its own."""
    fields = schema.model_fields
    given = {key: resolve_text(value) if isinstance(value, str) else value for key, value in config.items()}
    retry = given.get("retry")
    if "oauth2" in fields and "client_id" in given:
        given["oauth2"] = {key: given.pop(key) for key in _OAUTH2_FIELDS if key in given}
    if "max_retries" in fields and retry is not None:
        given["max_retries"] = (json.loads(retry) if isinstance(retry, str) else retry)["max_attempts"] - 1
    if "credential_vending_enabled" in fields and "access_delegation" in given:
        given["credential_vending_enabled"] = given["access_delegation"] != "none"
    return {key: value for key, value in given.items() if key in fields or key not in _OUR_FIELDS}


def _validated(schema: type[BaseModel], config: Mapping[str, Any], *, kind: Kind, name: str) -> Any:
    try:
        return schema.model_validate(dict(config))
    except pydantic.ValidationError as error:
        refused = "; ".join(map(str, field_errors(error, schema)))
    # Outside the except block: the Pydantic error quotes invalid values, and must not be chained.
    raise ValidationError(f"Configuration of {kind} plugin '{name}' is not valid. {refused}.")


def _is_iceberg_property(key: str) -> bool:
    return "." in key or "-" in key or key in BARE_PROPERTIES
