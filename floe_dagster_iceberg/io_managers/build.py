"""IO managers from plain settings, from compiled artifacts, or around a catalog that is connected already."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr
from pyiceberg.catalog import Catalog

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.io_managers.either import IcebergIOManager
from floe_dagster_iceberg.io_managers.live_catalog import LiveCatalogResource
from floe_dagster_iceberg.models import IcebergIOManagerConfig
from floe_dagster_iceberg.resources import IcebergResource

_POLARIS_PATH = "/api/catalog"


def create_io_manager(config: IcebergIOManagerConfig, catalog: Catalog | None = None) -> IcebergIOManager:
    """Build an IO manager for `Definitions(resources=...)`.

    Nothing is connected before a run needs it. A `catalog_uri` that begins with http is a REST
    catalog, Apache Polaris if it ends with `/api/catalog`; any other is an SQLAlchemy URL.

    Args:
        config: The settings.
        catalog: A connected PyIceberg catalog to use instead of the one that `config` describes.
            It serves runs of this process only: executors that start other processes cannot use it.

    Example:
        >>> io_manager = create_io_manager(IcebergIOManagerConfig(default_namespace="bronze"))
    """
    return IcebergIOManager(
        iceberg=_resource(config)
        if catalog is None
        else LiveCatalogResource.of(catalog, default_namespace=config.default_namespace),
        write_mode=config.write_mode,
        schema_evolution_enabled=config.schema_evolution_enabled,
        # A table whose columns may not come from the data has to be created by somebody else.
        auto_create_tables=config.auto_create_tables and config.infer_schema_from_data,
        partition_column=config.partition_column,
        table_name_pattern=config.table_name_pattern,
        commit_strategy=config.commit_strategy,
        rows_outside_partition=config.rows_outside_partition,
        column_projection_enabled=config.column_projection_enabled,
    )


def create_io_manager_from_artifacts(
    artifacts: CompiledArtifacts | Mapping[str, Any] | str | Path,
) -> IcebergIOManager:
    """Build an IO manager on the catalog and storage that compiled artifacts name.

    Args:
        artifacts: The artifacts, or a path, text or dict that holds them.

    Raises:
        ValidationError: They cannot be read, or name no catalog.
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
