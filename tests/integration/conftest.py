"""What several suites share: a catalog that may fail, and maintenance by either engine."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.lake import NAMESPACE
from support.maintenance_upkeep import Upkeep
from support.place import Place
from support.polaris_lake import PolarisLake
from support.servers.running import Servers
from support.unreliable_catalog import UnreliableCatalog

from floe_dagster_iceberg.models import MaintenanceEngine


@pytest.fixture
def catalog(place: Place) -> Iterator[UnreliableCatalog]:
    with closing(UnreliableCatalog.of(place.connect())) as catalog:
        catalog.create_namespace(NAMESPACE)
        yield catalog


@pytest.fixture(params=[MaintenanceEngine.PYICEBERG, MaintenanceEngine.SPARK], ids=str)
def upkeep(request: pytest.FixtureRequest, tmp_path: Path) -> Upkeep:
    return Upkeep.open(tmp_path, request.param)


@pytest.fixture
def spark_upkeep(tmp_path: Path) -> Upkeep:
    """For what only Spark can do."""
    return Upkeep.open(tmp_path, MaintenanceEngine.SPARK)


@pytest.fixture(scope="session")
def polaris_servers(servers: Servers) -> Iterator[PolarisLake]:
    with PolarisLake.on(servers) as lake:
        yield lake


@pytest.fixture
def polaris(polaris_servers: PolarisLake) -> Iterator[PolarisLake]:
    """An empty catalog behind the gateway, whose storage vends keys."""
    with polaris_servers.fresh() as lake:
        yield lake
