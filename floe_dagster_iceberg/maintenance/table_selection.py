"""Selection of tables by globs, and tables with overlapping locations."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from floe_dagster_iceberg.errors import FloeStorageError, ScanError
from floe_dagster_iceberg.models import TableIdentifier

if TYPE_CHECKING:
    # They load PyIceberg and Arrow, which takes seconds; loading definitions must not.
    from pyiceberg.table import Table

    from floe_dagster_iceberg.table.manager import IcebergTableManager

_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class SelectedTables:
    """The tables that globs select.

    Attributes:
        found: Tables of the catalog, in order of their names.
        missing: Names without a wildcard that the catalog does not have.
    """

    found: Sequence[TableIdentifier]
    missing: Sequence[str]


def select_tables(manager: "IcebergTableManager", globs: Sequence[str]) -> SelectedTables:
    """Find the tables that match any of the globs; `*` also matches the dots of nested namespaces.

    Only namespaces that can hold a match are listed; a full table name is looked up without listing.
    """
    names = {glob for glob in globs if _WILDCARD.search(glob) is None}
    patterns = [glob for glob in globs if glob not in names]
    missing = {name for name in names if not _exists(manager, name)}
    listed = set() if not patterns else set(_tables(manager, patterns))
    found = listed | {TableIdentifier.from_string(name) for name in names - missing}
    return SelectedTables(sorted(found, key=str), sorted(missing))


def _exists(manager: "IcebergTableManager", name: str) -> bool:
    if "." not in name:
        return False
    try:
        return manager.table_exists(name)
    except ScanError:
        # The catalog has it; the error is reported with this table, and does not stop the others.
        return True


def _tables(manager: "IcebergTableManager", patterns: Sequence[str], parent: str = "") -> Iterator[TableIdentifier]:
    for namespace in manager.list_namespaces(parent) if parent else manager.list_namespaces():
        if not any(_may_hold(namespace, pattern) for pattern in patterns):
            continue
        for name in manager.list_tables(namespace):
            if any(fnmatchcase(f"{namespace}.{name}", pattern) for pattern in patterns):
                # Another tool may have chosen a name that breaks our rules.
                yield TableIdentifier.model_construct(namespace=namespace, name=name)
        yield from _tables(manager, patterns, namespace)


def _may_hold(namespace: str, pattern: str) -> bool:
    fixed = _WILDCARD.split(pattern, maxsplit=1)[0]
    inside = f"{namespace}."
    return inside.startswith(fixed) or fixed.startswith(inside)


# Properties that put files of a table outside its location.
_PATHS = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


class TableLocations:
    """Where all tables of a catalog keep their files.

    The catalog is listed once. Tables created later do not matter: their files are too young
    to count as orphans.
    """

    def __init__(self, manager: "IcebergTableManager") -> None:
        self._manager = manager

    def overlapping_tables(self, table: "Table") -> list[str]:
        """Names of the other tables whose files lie below this table's location, or above it."""
        from floe_dagster_iceberg.table.storage import FileLocation  # noqa: PLC0415 - it loads PyIceberg

        own, name = FileLocation.of(table.location()), ".".join(table.name())
        places = ((other, FileLocation.of(location)) for other, location in self._locations if other != name)
        return sorted({other for other, place in places if own.contains(place) or place.contains(own)})

    @cached_property
    def _locations(self) -> list[tuple[str, str]]:
        return list(self._list_locations())

    def _list_locations(self) -> Iterator[tuple[str, str]]:
        for identifier in select_tables(self._manager, ["*"]).found:
            try:
                table = self._manager.load_table(identifier)
            except FloeStorageError:
                # A broken table must not stop the others; its metadata files reveal it if it lies below them.
                continue
            yield str(identifier), table.location()
            yield from ((str(identifier), table.properties[path]) for path in _PATHS if path in table.properties)
