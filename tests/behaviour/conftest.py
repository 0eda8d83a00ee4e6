"""One promise, one test, every engine: the `warehouse` fixture hands out frames of each engine's own kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance
from services.warehouse import Warehouse

from floe_dagster_iceberg.io_managers.arrow import ArrowIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource


@pytest.fixture(scope="session")
def shared_instance() -> Iterator[DagsterInstance]:
    """One for all runs that do not look at it: making one costs as much as a run."""
    with DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture(params=["arrow"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path, shared_instance: DagsterInstance) -> Warehouse:
    iceberg = IcebergResource(catalog_uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    return Warehouse(request.param, iceberg, ArrowIcebergIOManager(iceberg=iceberg), shared_instance)
