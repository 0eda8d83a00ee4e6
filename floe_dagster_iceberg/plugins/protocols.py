"""The interfaces of plugins. A floe plugin implements them by its methods alone; floe is never imported."""

from collections.abc import Mapping
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, Field

from floe_dagster_iceberg.models.base import FrozenModel


class HealthStatus(FrozenModel):
    """The result of a health check."""

    state: Literal["healthy", "degraded", "unhealthy"] = Field(description="The result of the check.")
    message: str = Field(default="", description="Why, in one sentence.")
    details: dict[str, str] = Field(default_factory=dict, description="Values that help to find the cause.")

    @property
    def healthy(self) -> bool:
        """True for 'degraded' too."""
        return self.state != "unhealthy"


@runtime_checkable
class FileIO(Protocol):
    """Reads, writes and deletes files by location, as PyIceberg's FileIO does."""

    def new_input(self, location: str) -> Any: ...

    def new_output(self, location: str) -> Any: ...

    def delete(self, location: str) -> None: ...


@runtime_checkable
class Catalog(Protocol):
    """Lists namespaces and tables, and loads tables, as PyIceberg's catalogs do."""

    def list_namespaces(self) -> list[tuple[str, ...]]: ...

    def list_tables(self, namespace: str) -> list[Any]: ...

    def load_table(self, identifier: str) -> Any: ...


@runtime_checkable
class Plugin(Protocol):
    """Identity and lifecycle of a plugin: `startup` within 30 seconds, `health_check` within 5."""

    @property
    def name(self) -> str:
        """Identifier, such as 'polaris'."""

    @property
    def version(self) -> str:
        """Version of the plugin, X.Y.Z."""

    @property
    def floe_api_version(self) -> str:
        """Version of the plugin interface, X.Y."""

    def startup(self) -> None: ...

    def shutdown(self) -> None: ...

    def health_check(self) -> Any: ...

    def get_config_schema(self) -> type[BaseModel] | None: ...


@runtime_checkable
class CatalogPlugin(Plugin, Protocol):
    """Opens a PyIceberg catalog, and creates, lists and drops namespaces and tables."""

    def connect(self, config: Mapping[str, str]) -> Any: ...

    def create_namespace(self, namespace: str, properties: dict[str, str] | None = None) -> None: ...

    def list_namespaces(self, parent: str | None = None) -> list[str]: ...

    def delete_namespace(self, namespace: str) -> None: ...

    def create_table(self, identifier: str, schema: Any) -> None: ...

    def list_tables(self, namespace: str) -> list[str]: ...

    def drop_table(self, identifier: str, purge: bool = False) -> None: ...  # noqa: FBT001, FBT002 - floe's signature

    def vend_credentials(self, table_path: str, operations: list[str]) -> dict[str, Any]: ...


@runtime_checkable
class StoragePlugin(Plugin, Protocol):
    """Locations of files, and access to them."""

    def get_pyiceberg_fileio(self) -> Any: ...

    def get_warehouse_uri(self, namespace: str) -> str: ...

    def get_dbt_profile_config(self) -> dict[str, Any]: ...

    def get_dagster_io_manager_config(self) -> dict[str, Any]: ...

    def get_helm_values_override(self) -> dict[str, Any]: ...


@runtime_checkable
class SparkConfigured(Protocol):
    """Spark conf of a catalog or storage; the built-in plugins have it, others may."""

    def spark_conf(self, catalog_name: str) -> dict[str, str]:
        """Conf below `spark.sql.catalog.<catalog_name>`."""

    def spark_packages(self) -> list[str]:
        """Jars that Spark needs: Maven coordinates, or bare names of Iceberg's own bundles."""
