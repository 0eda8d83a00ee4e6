"""IO managers built from a configuration, from compiled artifacts, or on a connected catalog."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from dagster import InitResourceContext
from pydantic import Field, SecretStr
from pyiceberg.catalog import Catalog

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.connections import Connection
from floe_dagster_iceberg.errors import EngineCapabilityError, FloeStorageError, ValidationError
from floe_dagster_iceberg.io_managers.managers import IcebergIOManager
from floe_dagster_iceberg.models import IcebergIOManagerConfig
from floe_dagster_iceberg.plugins.base import HEALTH_CHECK_SECONDS, run_within
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.plugins.protocols import HealthStatus
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager


class _Live(NamedTuple):
    process: int
    manager: IcebergTableManager


_live: dict[str, _Live] = {}


class LiveCatalogResource(IcebergResource):
    """Tables of a connected catalog, for runs in this process.

    Dagster rebuilds resources from their configuration, so the resource holds a handle, and this process remembers
    its catalog. Executors that start other processes (multiprocess, Kubernetes) and Spark need `IcebergResource`.
    """

    handle: str = Field(description="Identifies the catalog in this process.")

    @classmethod
    def of(cls, catalog: Catalog, *, default_namespace: str = "public") -> Self:
        """The resource for a catalog, which the process keeps."""
        handle = uuid.uuid4().hex
        _live[handle] = _Live(os.getpid(), IcebergTableManager(catalog))
        return cls(handle=handle, catalog_name=catalog.name, default_namespace=default_namespace)

    @property
    def table_manager(self) -> IcebergTableManager:
        """The manager of the catalog's tables, in the process that has the catalog."""
        live = _live.get(self.handle)
        if live is None or live.process != os.getpid():
            raise ValidationError(
                f"Catalog '{self.catalog_name}' is an object of another process. "
                "Use the in-process executor, or configure the catalog by its address."
            )
        return live.manager

    def setup_for_execution(self, context: InitResourceContext) -> None:
        del context
        _ = self.table_manager

    def health_check(self, *, writes: bool = False) -> HealthStatus:
        """List the catalog's namespaces, for at most 5 seconds; there is no storage to write to."""
        del writes
        try:
            with translate_errors(self.catalog_name):
                run_within(HEALTH_CHECK_SECONDS, self.catalog.list_namespaces)
        except FloeStorageError as error:
            return HealthStatus(state="unhealthy", message=str(error), details={"error": type(error).__name__})
        return HealthStatus(state="healthy")

    @property
    def _connection(self) -> Connection:
        raise EngineCapabilityError(
            f"Catalog '{self.catalog_name}' is a PyIceberg object, which Spark cannot use. "
            "Configure the catalog by its address.",
            engine="spark",
        )


_POLARIS_PATH = "/api/catalog"


def create_io_manager(config: IcebergIOManagerConfig, catalog: Catalog | None = None) -> IcebergIOManager:
    """Build an IO manager for `Definitions(resources=...)`.

    Nothing is connected before a run needs it. A `catalog_uri` that starts with http is a REST catalog, Apache
    Polaris if it ends with `/api/catalog`; any other is an SQLAlchemy URL.

    Args:
        config: The settings.
        catalog: A connected PyIceberg catalog instead of the configured one, only for runs in this process.

    Examples:
        >>> io_manager = create_io_manager(IcebergIOManagerConfig(default_namespace="bronze"))
    """
    return IcebergIOManager(
        iceberg=_resource(config)
        if catalog is None
        else LiveCatalogResource.of(catalog, default_namespace=config.default_namespace),
        write_mode=config.write_mode,
        schema_evolution_enabled=config.schema_evolution_enabled,
        # Without columns from the data, tables have to be created elsewhere.
        auto_create_tables=config.auto_create_tables and config.infer_schema_from_data,
        partition_column=config.partition_column,
        table_name_pattern=config.table_name_pattern,
        commit_strategy=config.commit_strategy,
        rows_outside_partition=config.rows_outside_partition,
        column_projection_enabled=config.column_projection_enabled,
        format_version=config.format_version,
    )


def create_io_manager_from_artifacts(
    artifacts: CompiledArtifacts | Mapping[str, Any] | str | Path,
) -> IcebergIOManager:
    """Build an IO manager for the catalog and storage of compiled artifacts, or of a path, text or dict of them.

    Raises:
        ValidationError: They cannot be read, or have no catalog.
    """
    return IcebergIOManager(iceberg=IcebergResource.from_artifacts(CompiledArtifacts.load(artifacts)))


def _resource(config: IcebergIOManagerConfig) -> IcebergResource:
    return IcebergResource(
        catalog_type=_catalog_type(config.catalog_uri),
        catalog_uri=config.catalog_uri,
        warehouse=config.warehouse,
        client_id=config.client_id,
        client_secret=_revealed(config.client_secret),
        token=_revealed(config.token),
        default_namespace=config.default_namespace,
    )


def _catalog_type(uri: str | None) -> str:
    parts = urlsplit(uri or "")
    if parts.scheme not in {"http", "https"}:
        return "sql"
    return "polaris" if parts.path.rstrip("/").endswith(_POLARIS_PATH) else "rest"


def _revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()
