"""A real catalog in which other clients act at the worst moment: after planning, right before the commit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table

from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager

QUICK = IcebergTableManagerConfig(retry_base_delay_seconds=0.1)


class RacingCatalog(SqlCatalog):
    """Runs one of `meanwhile` before each commit, first come first served."""

    meanwhile: list[Callable[[], object]]

    def commit_table(self, table: Table, *arguments: Any) -> CommitTableResponse:
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return super().commit_table(table, *arguments)


def racing_manager(folder: Path, *meanwhile: Callable[[], object]) -> IcebergTableManager:
    """A manager that always comes second, once per action given."""
    catalog = RacingCatalog(
        "floe", uri=f"sqlite:///{folder}/catalog.db?timeout=60", warehouse=f"file://{folder}/warehouse"
    )
    catalog.meanwhile = list(meanwhile)
    return IcebergTableManager(catalog, config=QUICK)
