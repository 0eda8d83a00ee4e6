"""Tables that several suites of the manager begin with."""

import pytest
from pyiceberg.table import Table
from support.sales_table import BY_REGION, rows
from support.snapshot_history import SCHEMA, T, numbers

from floe_dagster_iceberg.table.manager import IcebergTableManager


@pytest.fixture
def sales(manager: IcebergTableManager) -> str:
    """Three partitions, one of them NULL, a file each."""
    manager.create_table("bronze.sales", rows().schema, BY_REGION)
    manager.append("bronze.sales", rows((1, "EU"), (2, "EU"), (3, "US"), (4, None)))
    return "bronze.sales"


@pytest.fixture
def table(manager: IcebergTableManager) -> Table:
    """A table without rows."""
    return manager.create_table(T, SCHEMA)


@pytest.fixture
def three(manager: IcebergTableManager, table: Table) -> list[int]:
    """The ids of three snapshots that append 1, 2 and 3."""
    return [manager.append(table, numbers(value)).snapshot_id for value in (1, 2, 3)]
