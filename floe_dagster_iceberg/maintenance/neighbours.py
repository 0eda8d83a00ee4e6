"""Tables whose files lie in the same place as another table's."""

from collections.abc import Iterator
from functools import cached_property

from pyiceberg.table import Table

from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.maintenance.table_selection import select_tables
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.stored_files import Place

# Properties by which a table keeps files outside its location.
_PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


class Neighbourhood:
    """Where all tables of a catalog keep their files.

    The catalog is asked once. A table that is made afterwards does not matter: its files are
    too young to count as orphans.
    """

    def __init__(self, manager: IcebergTableManager) -> None:
        self._manager = manager

    def sharing(self, table: Table) -> list[str]:
        """Names of the other tables whose place contains this table's location, or lies below it."""
        own, name = Place.of(table.location()), ".".join(table.name())
        return sorted(
            {other for other, place in self._places if other != name and (own.contains(place) or place.contains(own))}
        )

    @cached_property
    def _places(self) -> list[tuple[str, Place]]:
        return list(self._ask())

    def _ask(self) -> Iterator[tuple[str, Place]]:
        for identifier in select_tables(self._manager, ["*"]).found:
            try:
                table = self._manager.load_table(identifier)
            except FloeStorageError:
                # A broken table must not stop the others; its metadata files show when it lies below them.
                continue
            yield str(identifier), Place.of(table.location())
            for path in _PATHS:
                if path in table.properties:
                    yield str(identifier), Place.of(table.properties[path])
