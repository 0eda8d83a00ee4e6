"""A real lake for every test: a catalog and a warehouse of its own, on whatever `--lake` names."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from support.lake import NAMESPACE, Lake
from support.lake_choice import LAKE, print_figures, print_what_did_not_run, runs_on, skip_unless_ci
from support.place import LAKES, Place, empty_place
from support.servers.running import ServerMissing, Servers
from support.span_tree import SpanRecorder

from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lake", choices=LAKES, default="sqlite", help="the catalog and the storage that tests run on")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[LAKE] = config.getoption("lake")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lake = config.stash[LAKE]
    config.hook.pytest_deselected(items=[item for item in items if not runs_on(lake, item)])
    items[:] = [item for item in items if runs_on(lake, item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    del item
    try:
        return (yield)
    except ServerMissing as missing:
        skip_unless_ci(missing)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    print_figures(terminalreporter)
    print_what_did_not_run(terminalreporter, config)


@pytest.fixture(autouse=True)
def _isolated_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a .pyiceberg.yaml nor a FLOE_ variable of the person running the tests matters."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "floe"))
    for name in [name for name in os.environ if name.startswith("PYICEBERG_CATALOG")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Real servers, one of each for all tests of a process; a server starts when a test first asks for it."""
    with Servers.below(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


@pytest.fixture
def place(pytestconfig: pytest.Config, tmp_path: Path, servers: Servers) -> Place:
    """A lake with nothing in it."""
    return empty_place(pytestconfig.stash[LAKE], tmp_path, servers)


@pytest.fixture
def lake(place: Place) -> Iterator[Lake]:
    with closing(place.connect()) as catalog:
        catalog.create_namespace(NAMESPACE)
        yield Lake(place, catalog)


@pytest.fixture
def manager(lake: Lake) -> IcebergTableManager:
    """A manager that does not wait long for other writers."""
    return IcebergTableManager(lake.catalog, config=IcebergTableManagerConfig(retry_base_delay_seconds=0.1))


@pytest.fixture
def recorder() -> SpanRecorder:
    """Records the spans of its tracer."""
    return SpanRecorder()


@pytest.fixture
def orders() -> pa.Schema:
    return pa.schema([("id", pa.int64()), ("day", pa.date32()), ("amount", pa.float64()), ("region", pa.string())])
