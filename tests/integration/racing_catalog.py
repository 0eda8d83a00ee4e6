"""A real catalog in which other clients act at the worst moments: right before a commit, and right after it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table

from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager

QUICK = IcebergTableManagerConfig(retry_base_delay_seconds=0.1)
Action = Callable[[], object]


class RacingCatalog(SqlCatalog):
    """Runs one of `meanwhile` before each commit and one of `afterwards` after each that landed, in their order."""

    def __init__(self, name: str, **properties: Any) -> None:
        super().__init__(name, **properties)
        self.meanwhile: list[Action] = []
        self.afterwards: list[Action] = []

    def commit_table(self, table: Table, *arguments: Any) -> CommitTableResponse:
        if self.meanwhile:
            self.meanwhile.pop(0)()
        response = super().commit_table(table, *arguments)
        if self.afterwards:
            self.afterwards.pop(0)()
        return response


def racing_manager(folder: Path, *meanwhile: Action, afterwards: Sequence[Action] = ()) -> IcebergTableManager:
    """A manager that always comes second, once per action given."""
    catalog = RacingCatalog(
        "floe", uri=f"sqlite:///{folder}/catalog.db?timeout=60", warehouse=f"file://{folder}/warehouse"
    )
    catalog.meanwhile, catalog.afterwards = list(meanwhile), list(afterwards)
    return IcebergTableManager(catalog, config=QUICK)
