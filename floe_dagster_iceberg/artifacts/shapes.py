"""The two shapes of compiled artifacts, floe's and its runtime's, as the fields of `CompiledArtifacts`."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict, Field, model_validator

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.base import field_errors, nearest

_STORAGE_TYPES = {"minio": "s3", "adls": "azure", "abfs": "azure", "gs": "gcs", "file": "local"}
_STORAGE_KEYS = {
    "endpoint_url": "endpoint",
    "access_key": "access_key_id",
    "secret_key": "secret_access_key",
    "path": "warehouse",
    "root": "warehouse",
}
# Settings of the producer's own client that do not apply here.
_NOT_OURS = frozenset({"refresh_margin_seconds", "mode"})


def catalog_config(given: Mapping[str, Any], *, path: str) -> tuple[dict[str, Any], str | None]:
    """Return a catalog's settings as its plugin takes them, and the default namespace if they name one."""
    config = _flattened(given, nested=("oauth2", "credentials", "properties"), path=path)
    namespace = config.pop("default_namespace", None) or config.pop("namespace", None)
    config.pop("namespace", None)
    if (name := config.pop("credential_secret_ref", None)) is not None:
        config["credential"] = {"secret_ref": name}
    if (name := config.pop("secret_ref", None)) is not None:
        config.setdefault("credential", {"secret_ref": name})
    if config.pop("credential_vending_enabled", None) is False:
        config["access_delegation"] = "none"
    if (retries := config.pop("max_retries", None)) is not None:
        # The producer counts retries, we count attempts, at most ten.
        config.setdefault("retry", {"max_attempts": min(int(retries) + 1, 10)})
    config.pop("role_arn", None)
    return config, namespace


def storage_config(given: Mapping[str, Any], *, path: str) -> dict[str, Any]:
    """Return a storage's settings as its plugin takes them."""
    config = _flattened(given, nested=("credentials", "properties"), path=path)
    if (name := config.pop("secret_ref", None)) is not None:
        config.setdefault("access_key_id", {"source": "kubernetes", "name": name, "key": "access-key-id"})
        config.setdefault("secret_access_key", {"source": "kubernetes", "name": name, "key": "secret-access-key"})
    return {_STORAGE_KEYS.get(key, key): value for key, value in config.items()}


def _flattened(given: Mapping[str, Any], *, nested: tuple[str, ...], path: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in given.items():
        if key not in nested:
            flat[key] = value
        elif isinstance(value, Mapping):
            flat.update(value)
        elif value is not None:
            raise ValidationError(f"{path}.{key} must be a mapping, not {type(value).__name__}.")
    # Compilers write every field they know; an empty one is the same as none.
    return {key: value for key, value in flat.items() if value not in (None, "") and key not in _NOT_OURS}


_RUNTIME_KEYS = frozenset({"resolved_profiles", "resolved_catalog", "resolved_layers", "catalog"})
_FLOE_KEYS = frozenset({"plugins", "identity", "governance", "observability", "transforms", "metadata"})
# The compiler's names of catalogs with the REST protocol.
_CATALOG_TYPES = {"nessie": "rest", "unity": "rest"}
# The orchestrator's settings that this package reads.
_ORCHESTRATOR_KEYS = ("default_namespace", "maintenance", "resource_presets", "executor")
# Similar enough to be a typo; other keys of the producer's are less similar.
_MISSPELLED = 0.85


class CompiledModel(BaseModel):
    """A part of the artifacts. Producers add keys with every version; unknown ones are ignored."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class _StrictModel(CompiledModel):
    """A part whose misspelled keys are rejected: ignoring one would lose a catalog, a schedule or a retention."""

    @model_validator(mode="before")
    @classmethod
    def _check_spelling(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            _check_misspelled(data, cls.model_fields)
        return data


# Descriptions end up in the documentation, in the reference of artifacts.
class MetadataSection(CompiledModel):
    """The data product."""

    product_name: str | None = Field(
        default=None, description="Name of the data product; also the default namespace, in lower case."
    )
    product_version: str | None = Field(default=None, description="Version of the data product.")


class PluginSection(CompiledModel):
    """A plugin as compiled."""

    type: str = Field(min_length=1, description="Name of the plugin.")
    version: str | None = Field(default=None, description="Version the compiler resolved; not evaluated.")
    config: dict[str, Any] | None = Field(default=None, description="Settings of the plugin.")


class PluginsSection(_StrictModel):
    """The plugins that this package uses."""

    compute: PluginSection | None = Field(default=None, description="Where Spark runs; without it, on this machine.")
    orchestrator: PluginSection | None = Field(default=None, description="Maintenance, pod sizes and the executor.")
    catalog: PluginSection | None = Field(default=None, description="The catalog. Without one nothing is defined.")
    storage: PluginSection | None = Field(default=None, description="The storage; none if the catalog knows it.")


class GovernanceSection(_StrictModel):
    """Retention as compiled."""

    default_ttl_hours: float | None = Field(default=None, gt=0, description="Age in hours at which snapshots expire.")
    snapshot_keep_last: int | None = Field(
        default=None, ge=1, description="Snapshots that are kept whatever their age."
    )
    data_retention_days: int | None = Field(
        default=None, ge=1, description="Age in days that rows have to reach; deletes none by itself."
    )
    policy_enforcement_level: Literal["off", "warn", "strict"] | None = Field(
        default=None, description="What happens if a policy keeps less: nothing, a warning, or an error."
    )
    stale_table_recovery_mode: Literal["strict", "repair"] | None = Field(
        default=None, description="What a write does to a table whose metadata file is missing or truncated."
    )

    def as_read(self) -> dict[str, Any]:
        hours = self.default_ttl_hours
        return {
            "snapshot_max_age": None if hours is None else timedelta(hours=hours),
            "snapshot_keep_last": self.snapshot_keep_last,
            "data_retention_days": self.data_retention_days,
            "enforcement": self.policy_enforcement_level or "off",
            "stale_table_recovery_mode": self.stale_table_recovery_mode or "strict",
        }


class _Shape(CompiledModel):
    version: str | None = Field(default=None, description="Version of the contract; not evaluated.")
    metadata: MetadataSection = Field(default_factory=MetadataSection, description="The data product.")
    governance: GovernanceSection | None = Field(default=None, description="Retention of snapshots.")
    observability: dict[str, Any] | None = Field(default=None, description="Telemetry.")
    transforms: dict[str, Any] | list[dict[str, Any]] | None = Field(
        default=None, description="Models of the product; kept, not evaluated."
    )

    def shared(self) -> dict[str, Any]:
        transforms = self.transforms.get("models", []) if isinstance(self.transforms, dict) else self.transforms
        return {
            "version": self.version,
            "product_name": self.metadata.product_name,
            "product_version": self.metadata.product_version,
            "governance": (self.governance or GovernanceSection()).as_read(),
            "observability": self.observability or {},
            "transforms": transforms or [],
        }


Shape = TypeVar("Shape", bound=_Shape)


class FloeShape(_Shape, _StrictModel):
    """Artifacts of floe's compiler."""

    plugins: PluginsSection = Field(
        default_factory=PluginsSection, description="Catalog, storage, compute and orchestrator."
    )


class _Profiles(CompiledModel):
    catalog: dict[str, Any] | None = None
    storage: dict[str, Any] | None = None
    compute: dict[str, Any] | None = None


class _Layer(CompiledModel):
    namespace: str = Field(min_length=1)


class _RuntimeShape(_Shape):
    resolved_profiles: _Profiles = Field(default_factory=_Profiles)
    resolved_catalog: dict[str, Any] | None = None
    catalog: dict[str, Any] | None = None
    compute: dict[str, Any] | None = None
    resolved_layers: dict[str, _Layer] = Field(default_factory=dict)


def read(data: Mapping[str, Any]) -> dict[str, Any]:
    """Turn artifacts of either shape into the fields of `CompiledArtifacts`."""
    if "plugins" not in data and not data.keys().isdisjoint(_RUNTIME_KEYS):
        return _read_runtime(_validated(_RuntimeShape, data))
    if data.keys().isdisjoint(_FLOE_KEYS):
        raise ValidationError(
            f"These are not compiled artifacts: the top-level keys are {', '.join(sorted(map(str, data))) or 'none'}. "
            "Expected 'plugins', or 'resolved_profiles', or 'catalog'."
        )
    return _read_floe(_validated(FloeShape, data))


@contextmanager
def raise_validation_error(model: type[BaseModel], prefix: str = "") -> Iterator[None]:
    """Raise a Pydantic error of `model`, which is at `prefix` in the artifacts, as ours with the path of each key."""
    rejected: list[str] = []
    try:
        yield
    except pydantic.ValidationError as error:
        rejected = [
            f"{'.'.join(filter(None, (prefix, each.path))) or 'artifacts'}: {each.message}"
            for each in field_errors(error, model)
        ]
    # Outside the except block: the Pydantic error quotes rejected values, and must not be chained.
    if rejected:
        raise ValidationError(f"Compiled artifacts are not valid. {'; '.join(rejected)}.")


def _validated(shape: type[Shape], data: Mapping[str, Any]) -> Shape:
    with raise_validation_error(shape):
        return shape.model_validate(dict(data))


def _read_floe(shape: FloeShape) -> dict[str, Any]:
    catalog, storage = shape.plugins.catalog, shape.plugins.storage
    orchestrator = shape.plugins.orchestrator
    own = (orchestrator.config if orchestrator else None) or {}
    try:
        _check_misspelled(own, _ORCHESTRATOR_KEYS)
    except ValueError as error:
        raise ValidationError(f"Compiled artifacts are not valid. plugins.orchestrator.config: {error}.") from None
    fields = {
        **shape.shared(),
        "compute": _dump(shape.plugins.compute),
        "orchestrator": _dump(orchestrator),
        "namespace": own.get("default_namespace"),
    }
    if catalog is not None:
        config, namespace = catalog_config(catalog.config or {}, path="plugins.catalog.config")
        name = _CATALOG_TYPES.get(catalog.type, catalog.type)
        fields["catalog"] = {"type": name, "version": catalog.version, "config": config}
        fields["namespace"] = fields["namespace"] or namespace
    if storage is not None:
        config = storage_config(storage.config or {}, path="plugins.storage.config")
        name = _STORAGE_TYPES.get(storage.type, storage.type)
        fields["storage"] = {"type": name, "version": storage.version, "config": config}
    return fields


def _read_runtime(shape: _RuntimeShape) -> dict[str, Any]:
    fields = shape.shared()
    named = {
        "resolved_profiles.catalog": shape.resolved_profiles.catalog,
        "resolved_catalog": shape.resolved_catalog,
        "catalog": shape.catalog,
    }
    path, profile = next(((path, found) for path, found in named.items() if found), ("", None))
    if profile is not None:
        config, fields["namespace"] = catalog_config(_without_type(profile), path=path)
        name = _type_of(profile, path, default="polaris")
        fields["catalog"] = {"type": _CATALOG_TYPES.get(name, name), "config": config}
    if (profile := shape.resolved_profiles.storage) is not None:
        path = "resolved_profiles.storage"
        config = storage_config(_without_type(profile), path=path)
        name = _type_of(profile, path, default="s3")
        fields["storage"] = {"type": _STORAGE_TYPES.get(name, name), "config": config}
    if (profile := shape.resolved_profiles.compute or shape.compute) is not None:
        # Profiles nest their engine's settings one level deeper than plugins.
        settings = {**_without_type(profile), **(profile.get("properties") or {})}
        fields["compute"] = {"type": _type_of(profile, "compute", default="spark"), "config": settings}
    warehouse = fields.get("catalog", {}).get("config", {}).get("warehouse")
    fields["layer_namespaces"] = {
        name: layer.namespace.removeprefix(f"{warehouse}.") for name, layer in shape.resolved_layers.items()
    }
    return fields


def _check_misspelled(given: Mapping[str, Any], known: Collection[str]) -> None:
    absent = [name for name in known if name not in given]
    for key in given:
        if key not in known and (guess := nearest(str(key), absent, cutoff=_MISSPELLED)) is not None:
            raise ValueError(f"'{key}' would be ignored (did you mean '{guess}'?)")


def _dump(plugin: PluginSection | None) -> dict[str, Any] | None:
    return None if plugin is None else {**plugin.model_dump(), "config": plugin.config or {}}


def _type_of(profile: Mapping[str, Any], path: str, *, default: str) -> str:
    name = profile.get("type", default)
    if not isinstance(name, str):
        raise ValidationError(f"{path}.type must be the name of a plugin, not {type(name).__name__}.")
    return name


def _without_type(profile: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in profile.items() if key != "type"}
