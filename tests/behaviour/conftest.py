"""One promise, one test, every engine: the `warehouse` fixture hands out frames of each engine's own kind.

What must differ between the engines is in docs/engines.md and asserted by test_engine_differences.py.
"""

from collections.abc import Iterator

import pytest
from dagster import DagsterInstance
from support.place import Place
from support.warehouse import WAREHOUSES, ArrowWarehouse, Warehouse


@pytest.fixture(scope="session")
def shared_instance() -> Iterator[DagsterInstance]:
    """One for all runs that do not look at it: making one costs as much as a run."""
    with DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture(params=WAREHOUSES)
def warehouse(request: pytest.FixtureRequest, place: Place, shared_instance: DagsterInstance) -> Warehouse:
    return WAREHOUSES[request.param].open(place, shared_instance)


@pytest.fixture
def arrow_warehouse(place: Place, shared_instance: DagsterInstance) -> ArrowWarehouse:
    """For what only Arrow takes: frames of other libraries, streams."""
    return ArrowWarehouse.open(place, shared_instance)
