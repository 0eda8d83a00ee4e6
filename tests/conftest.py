"""A real lake for every test: a SQLite catalog and a warehouse folder of its own."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from services.lake import NAMESPACE, Lake, open_catalog

from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager


@pytest.fixture(autouse=True)
def _nobody_elses_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a .pyiceberg.yaml nor a FLOE_ variable of the person running the tests matters."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "floe"))
    for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG")]:
        monkeypatch.delenv(name)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    catalog = open_catalog(tmp_path)
    catalog.create_namespace(NAMESPACE)
    yield Lake(tmp_path, catalog)
    catalog.close()


@pytest.fixture
def manager(lake: Lake) -> IcebergTableManager:
    """A manager that does not wait long for other writers."""
    return IcebergTableManager(lake.catalog, config=IcebergTableManagerConfig(retry_base_delay_seconds=0.1))


@pytest.fixture
def orders() -> pa.Schema:
    return pa.schema([("id", pa.int64()), ("day", pa.date32()), ("amount", pa.float64()), ("region", pa.string())])
