"""A catalog object that is connected already, as a Dagster resource.

Dagster rebuilds resources from their configuration, so an object cannot travel inside one. The
resource carries a handle instead, and this process remembers which object it stands for.
"""

import os
import uuid
from typing import NamedTuple, Self

from dagster import InitResourceContext
from pydantic import Field
from pyiceberg.catalog import Catalog

from floe_dagster_iceberg.connections import Connection
from floe_dagster_iceberg.errors import EngineCapabilityError, FloeStorageError, ValidationError
from floe_dagster_iceberg.plugins.lifecycle import HEALTH_CHECK_SECONDS, run_within
from floe_dagster_iceberg.plugins.protocols import HealthStatus
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager


class _Live(NamedTuple):
    process: int
    manager: IcebergTableManager


_live: dict[str, _Live] = {}


class LiveCatalogResource(IcebergResource):
    """Tables of a catalog object of this process.

    It serves runs that are executed in this very process. Executors that start others
    (multiprocess, Kubernetes) and Spark cannot have the object: configure `IcebergResource` for them.
    """

    handle: str = Field(description="What this process knows the catalog by.")

    @classmethod
    def of(cls, catalog: Catalog, *, default_namespace: str = "public") -> Self:
        """The resource for a catalog; the process keeps the catalog from now on."""
        handle = uuid.uuid4().hex
        _live[handle] = _Live(os.getpid(), IcebergTableManager(catalog))
        return cls(handle=handle, catalog_name=catalog.name, default_namespace=default_namespace)

    @property
    def table_manager(self) -> IcebergTableManager:
        """The manager of the catalog's tables.

        Raises:
            ValidationError: The catalog is an object of another process.
        """
        live = _live.get(self.handle)
        if live is None or live.process != os.getpid():
            raise ValidationError(
                f"Catalog '{self.catalog_name}' is an object of another process, and connections do not travel. "
                "Use the in-process executor, or configure the catalog by its address instead of handing one over."
            )
        return live.manager

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Check that the catalog is one of this process."""
        del context
        _ = self.table_manager

    def health_check(self) -> HealthStatus:
        """Ask the catalog for its namespaces, for at most 5 seconds."""
        try:
            with translated(self.catalog_name):
                run_within(HEALTH_CHECK_SECONDS, self.catalog.list_namespaces)
        except FloeStorageError as error:
            return HealthStatus(state="unhealthy", message=str(error), details={"error": type(error).__name__})
        return HealthStatus(state="healthy")

    @property
    def _connection(self) -> Connection:
        raise EngineCapabilityError(
            f"Catalog '{self.catalog_name}' was handed over as an object, which only PyIceberg can use. "
            "For Spark, configure the catalog by its address.",
            engine="spark",
        )
