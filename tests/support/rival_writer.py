"""Another client of the same catalog, with a connection and a manager of its own."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from support.lake import Lake

from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager

QUICK = IcebergTableManagerConfig(retry_base_delay_seconds=0.1)


@contextmanager
def rival_writer(lake: Lake) -> Iterator[IcebergTableManager]:
    """A manager that shares nothing with the test's own but the catalog's file and the warehouse."""
    with closing(lake.connect()) as catalog:
        yield IcebergTableManager(catalog, config=QUICK)
