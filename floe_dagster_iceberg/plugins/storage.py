"""Where the files are: what all built-in storages share, and the local file system."""

import os
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field, SecretStr

from floe_dagster_iceberg.errors import FloeStorageError, ValidationError
from floe_dagster_iceberg.plugins.base import BuiltInPlugin, PluginConfig
from floe_dagster_iceberg.plugins.lifecycle import HEALTH_CHECK_SECONDS, run_within
from floe_dagster_iceberg.plugins.mapping import Setting, resolved
from floe_dagster_iceberg.plugins.protocols import HealthStatus
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.secrets import NamedSecret, SecretReference, resolve_text


class StorageConfig(PluginConfig):
    """What every storage has."""

    warehouse: str | None = Field(default=None, description="Location below which tables are created.")
    py_io_impl: str | None = Field(default=None, description="PyIceberg FileIO class to use instead of the usual one.")


StorageConfigT = TypeVar("StorageConfigT", bound=StorageConfig)


class BuiltInStorage(BuiltInPlugin[StorageConfigT]):
    """A storage plugin on PyIceberg's FileIO."""

    def warehouse_uri(self) -> str | None:
        """Location below which tables are created, or None when only the catalog knows."""
        return None if self.config.warehouse is None else resolve_text(self.config.warehouse).rstrip("/")

    def get_warehouse_uri(self, namespace: str) -> str:
        """Location of a namespace; a dotted one is nested.

        Raises:
            ValidationError: The configuration names no location.
        """
        root = self.warehouse_uri()
        if root is None:
            raise ValidationError(f"Storage '{self.name}' has no location. Set 'warehouse' or 'bucket'.")
        return "/".join([root, *namespace.split(".")]) if namespace else root

    def get_pyiceberg_fileio(self) -> Any:
        """A PyIceberg FileIO; its `properties` are what a catalog needs to know about this storage."""
        # PyIceberg's FileIO modules are slow to import, and a code location needs none.
        from pyiceberg.io import load_file_io  # noqa: PLC0415

        return load_file_io(self.pyiceberg_properties(), self.warehouse_uri())

    def get_dbt_profile_config(self) -> dict[str, Any]:
        """What a dbt profile needs to find the files; secrets are left to dbt's own environment."""
        return {"type": self.name, **self._open_settings(), "warehouse": self.warehouse_uri()}

    def get_dagster_io_manager_config(self) -> dict[str, Any]:
        """Arguments of `IcebergResource` that choose this storage; secrets must be given there as `EnvVar`."""
        properties = {field: str(resolved(value)) for field, value in self._open_settings().items()}
        return {"storage_type": self.name, "storage_properties": properties, "warehouse": self.warehouse_uri()}

    def get_helm_values_override(self) -> dict[str, Any]:
        """Nothing: this package deploys no storage."""
        return {}

    def health_check(self) -> HealthStatus:
        """Look whether the warehouse can be reached, for at most 5 seconds."""
        try:
            with translated(self.name):
                run_within(HEALTH_CHECK_SECONDS, self._look)
        except FloeStorageError as error:
            return HealthStatus(state="unhealthy", message=str(error), details={"error": type(error).__name__})
        return HealthStatus(state="healthy")

    def _look(self) -> None:
        self.get_pyiceberg_fileio().new_input(f"{self.get_warehouse_uri('')}/.floe-health-check").exists()

    def _open_settings(self) -> dict[str, Any]:
        secret = (SecretStr, SecretReference, NamedSecret)
        fields = {setting.field: getattr(self.config, setting.field) for setting in self.settings}
        return {field: value for field, value in fields.items() if value is not None and not isinstance(value, secret)}


class LocalStorageConfig(StorageConfig):
    """A folder of this machine."""


class LocalStoragePlugin(BuiltInStorage[LocalStorageConfig]):
    """The local file system: development, tests, and small installations on one machine."""

    name: ClassVar[str] = "local"
    description: ClassVar[str] = "Files on this machine."
    config_type: ClassVar[type[PluginConfig]] = LocalStorageConfig
    settings: ClassVar[tuple[Setting, ...]] = (Setting("py_io_impl", python="py-io-impl", java=None),)

    def warehouse_uri(self) -> str:
        """The folder as a `file://` location; the embedded default when none is configured."""
        given = super().warehouse_uri()
        if given is None:
            return (embedded_home() / "warehouse").as_uri()
        return given if "://" in given else Path(given).absolute().as_uri()


def embedded_home() -> Path:
    """Folder of the catalog and the files when nothing is configured: `$FLOE_HOME`, else `.floe` here."""
    return Path(os.environ.get("FLOE_HOME") or ".floe").absolute()
