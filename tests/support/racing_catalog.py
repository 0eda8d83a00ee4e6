"""A real catalog in which other clients act at the worst times: right before a commit, and right after it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import CommitTableResponse, Table
from support.place import LocalPlace, Place

from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.table.manager import IcebergTableManager

QUICK = IcebergTableManagerConfig(retry_base_delay_seconds=0.1)
Action = Callable[[], object]


class RacingCatalog(Catalog):
    """A catalog that was made to lose races.

    Runs one of `meanwhile` before each commit and one of `afterwards` after each that landed, in their order.
    """

    meanwhile: list[Action]
    afterwards: list[Action]

    @classmethod
    def of(cls, catalog: Catalog) -> "RacingCatalog":
        """Make any catalog lose races: it stays what it is, and its commits go through here."""
        catalog.__class__ = type("RacingCatalog", (cls, type(catalog)), {})
        assert isinstance(catalog, cls)
        catalog.meanwhile, catalog.afterwards = [], []
        return catalog

    def commit_table(self, table: Table, *arguments: Any) -> CommitTableResponse:
        if self.meanwhile:
            self.meanwhile.pop(0)()
        response = super().commit_table(table, *arguments)
        if self.afterwards:
            self.afterwards.pop(0)()
        return response


def racing_manager(lake: Place | Path, *meanwhile: Action, afterwards: Sequence[Action] = ()) -> IcebergTableManager:
    """A manager that always comes second, once per action given; a folder is a SQLite lake in it."""
    place = lake if isinstance(lake, Place) else LocalPlace.below(lake)
    catalog = RacingCatalog.of(place.connect())
    catalog.meanwhile, catalog.afterwards = list(meanwhile), list(afterwards)
    return IcebergTableManager(catalog, config=QUICK)
