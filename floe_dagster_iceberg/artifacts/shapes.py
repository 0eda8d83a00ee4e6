"""The two shapes artifacts come in, told apart by their keys and never by a version."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as PydanticError

from floe_dagster_iceberg.artifacts.plugin_configs import catalog_config, storage_config, storage_type
from floe_dagster_iceberg.errors import ValidationError

_RUNTIME_KEYS = frozenset({"resolved_profiles", "resolved_catalog", "resolved_layers", "catalog"})
_FLOE_KEYS = frozenset({"plugins", "identity", "governance", "observability", "transforms", "metadata"})
# The compiler's word for a catalog that speaks the REST protocol.
_CATALOG_TYPES = {"nessie": "rest", "unity": "rest"}


class _Read(BaseModel):
    # The producer adds keys with every version; what we do not know does not concern us.
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)


class _Metadata(_Read):
    product_name: str | None = None
    product_version: str | None = None


class _Plugin(_Read):
    type: str = Field(min_length=1)
    version: str | None = None
    config: dict[str, Any] | None = None


class _Plugins(_Read):
    compute: _Plugin | None = None
    orchestrator: _Plugin | None = None
    catalog: _Plugin | None = None
    storage: _Plugin | None = None


class _Governance(_Read):
    default_ttl_hours: float | None = Field(default=None, gt=0)
    snapshot_keep_last: int | None = Field(default=None, ge=1)
    data_retention_days: int | None = Field(default=None, ge=1)
    policy_enforcement_level: str | None = Field(default=None, pattern="^(off|warn|strict)$")

    def as_read(self) -> dict[str, Any]:
        hours = self.default_ttl_hours
        return {
            "snapshot_max_age": None if hours is None else timedelta(hours=hours),
            "snapshot_keep_last": self.snapshot_keep_last,
            "data_retention_days": self.data_retention_days,
            "enforcement": self.policy_enforcement_level or "off",
        }


class _Shape(_Read):
    version: str | None = None
    metadata: _Metadata = Field(default_factory=_Metadata)
    governance: _Governance | None = None
    observability: dict[str, Any] | None = None
    transforms: dict[str, Any] | list[dict[str, Any]] | None = None

    def shared(self) -> dict[str, Any]:
        transforms = self.transforms.get("models", []) if isinstance(self.transforms, dict) else self.transforms
        return {
            "version": self.version,
            "product_name": self.metadata.product_name,
            "product_version": self.metadata.product_version,
            "governance": (self.governance or _Governance()).as_read(),
            "observability": self.observability or {},
            "transforms": transforms or [],
        }


class _FloeShape(_Shape):
    plugins: _Plugins = Field(default_factory=_Plugins)


class _Profiles(_Read):
    catalog: dict[str, Any] | None = None
    storage: dict[str, Any] | None = None
    compute: dict[str, Any] | None = None


class _Layer(_Read):
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
        return _read_runtime(_RuntimeShape.model_validate(dict(data)))
    if data.keys().isdisjoint(_FLOE_KEYS):
        raise ValidationError(
            f"These are no compiled artifacts: top-level keys are {', '.join(sorted(map(str, data))) or 'none'}. "
            "Expected 'plugins', or 'resolved_profiles', or 'catalog'."
        )
    return _read_floe(_FloeShape.model_validate(dict(data)))


@contextmanager
def faults_as_errors(prefix: str = "") -> Iterator[None]:
    """Raise a Pydantic error as ours, with the path of each offending key and without its value."""
    faults: list[str] = []
    try:
        yield
    except PydanticError as error:
        faults = [
            f"{'.'.join(filter(None, [prefix, *map(str, fault['loc'])])) or 'artifacts'}: {fault['msg']}"
            for fault in error.errors(include_input=False, include_url=False, include_context=False)
        ]
    if faults:
        raise ValidationError(f"Compiled artifacts are not valid. {'; '.join(faults)}.")


def _read_floe(shape: _FloeShape) -> dict[str, Any]:
    catalog, storage = shape.plugins.catalog, shape.plugins.storage
    orchestrator = shape.plugins.orchestrator
    own = (orchestrator.config if orchestrator else None) or {}
    fields = {
        **shape.shared(),
        "compute": _as_written(shape.plugins.compute),
        "orchestrator": _as_written(orchestrator),
        "namespace": own.get("default_namespace"),
    }
    if catalog is not None:
        config, namespace = catalog_config(catalog.config or {}, path="plugins.catalog.config")
        fields["catalog"] = {"type": _catalog_type(catalog.type), "version": catalog.version, "config": config}
        fields["namespace"] = fields["namespace"] or namespace
    if storage is not None:
        config = storage_config(storage.config or {}, path="plugins.storage.config")
        fields["storage"] = {"type": storage_type(storage.type), "version": storage.version, "config": config}
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
        fields["catalog"] = {"type": _catalog_type(_type_of(profile, path, default="polaris")), "config": config}
    if (profile := shape.resolved_profiles.storage) is not None:
        path = "resolved_profiles.storage"
        config = storage_config(_without_type(profile), path=path)
        fields["storage"] = {"type": storage_type(_type_of(profile, path, default="s3")), "config": config}
    if (profile := shape.resolved_profiles.compute or shape.compute) is not None:
        # Profiles wrap their engine's settings one level deeper than plugins do.
        settings = {**_without_type(profile), **(profile.get("properties") or {})}
        fields["compute"] = {"type": _type_of(profile, "compute", default="spark"), "config": settings}
    warehouse = fields.get("catalog", {}).get("config", {}).get("warehouse")
    fields["layer_namespaces"] = {
        name: layer.namespace.removeprefix(f"{warehouse}.") for name, layer in shape.resolved_layers.items()
    }
    return fields


def _as_written(plugin: _Plugin | None) -> dict[str, Any] | None:
    return None if plugin is None else {**plugin.model_dump(), "config": plugin.config or {}}


def _catalog_type(name: str) -> str:
    return _CATALOG_TYPES.get(name, name)


def _type_of(profile: Mapping[str, Any], path: str, *, default: str) -> str:
    name = profile.get("type", default)
    if not isinstance(name, str):
        raise ValidationError(f"{path}.type must be the name of a plugin, not {type(name).__name__}.")
    return name


def _without_type(profile: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in profile.items() if key != "type"}
