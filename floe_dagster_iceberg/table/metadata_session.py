"""Changes to a table's metadata: planned on its newest version, committed once, planned again after a lost race."""

from collections.abc import Callable
from typing import TypeVar

from pyiceberg.table import Table

from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table._pyiceberg import TableTransaction
from floe_dagster_iceberg.table.commit import commit, refresh
from floe_dagster_iceberg.table.names import TableRef
from floe_dagster_iceberg.table.session import CatalogSession

T = TypeVar("T")


class MetadataSession(CatalogSession):
    """What operations that change no row share."""

    def _load_newest(self, table: TableRef) -> Table:
        """The table as it is now; a handle is refreshed, because its holder's version decides nothing here."""
        loaded = self._load(table)
        if loaded is table:
            refresh(loaded)
        return loaded

    def _change(self, table: Table, stage: Callable[[TableTransaction], T]) -> T:
        """Commit what `stage` plans, and return what it returned for the attempt that landed."""
        planned: list[T] = []

        def plan(transaction: TableTransaction) -> None:
            planned[:] = [stage(transaction)]

        with translated(table.catalog.name, table=table_name(table)):
            commit(table, plan, budget=self._budget)
        return planned[0]


def table_name(table: Table) -> str:
    """The table's full name, as messages show it."""
    return ".".join(table.name())
