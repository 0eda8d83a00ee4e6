"""Maintenance by either engine: what holds for one holds for the other."""

from pathlib import Path

import pytest
from maintenance_upkeep import Upkeep

from floe_dagster_iceberg.models import MaintenanceEngine


@pytest.fixture(params=[MaintenanceEngine.PYICEBERG, MaintenanceEngine.SPARK], ids=str)
def upkeep(request: pytest.FixtureRequest, tmp_path: Path) -> Upkeep:
    return Upkeep.open(tmp_path, request.param)


@pytest.fixture
def spark_upkeep(tmp_path: Path) -> Upkeep:
    """For what only Spark can do."""
    return Upkeep.open(tmp_path, MaintenanceEngine.SPARK)
