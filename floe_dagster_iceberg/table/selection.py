"""Selection of tables by globs, and tables with overlapping locations."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Final

from floe_dagster_iceberg.environments import environment_of
from floe_dagster_iceberg.errors import (
    CatalogAuthenticationError,
    CatalogConnectionError,
    NoSuchNamespaceError,
    NoSuchTableError,
    UnsupportedMetadataError,
    ValidationError,
)
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.models.base import nearest
from floe_dagster_iceberg.models.identifiers import join_parts, split_parts
from floe_dagster_iceberg.secrets import describe_failure

if TYPE_CHECKING:
    # They load PyIceberg and Arrow, which takes seconds; loading definitions must not.
    from pyiceberg.table import Table

    from floe_dagster_iceberg.table.changes.cursors import TableReader
    from floe_dagster_iceberg.table.manager import IcebergTableManager

EVERY_TABLE: Final = "*"
_MOST_NAMED: Final = 10
# Names in one namespace have that part in common.
_MIN_SIMILARITY: Final = 0.75
_WILDCARD = re.compile(r"[*?\[]")
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")


@dataclass(frozen=True)
class SelectedTables:
    """The tables that globs select.

    Attributes:
        found: Tables of the catalog, in order of their names.
        missing: Names without a wildcard that the catalog does not have.
        unmatched: Globs with a wildcard that no table matches.
        skipped: Namespaces whose tables cannot be listed, with the reason.
    """

    found: Sequence[TableIdentifier]
    missing: Sequence[str]
    skipped: Mapping[str, str] = field(default_factory=dict)
    unmatched: Sequence[str] = ()


def select_tables(manager: "IcebergTableManager", globs: Sequence[str]) -> SelectedTables:
    """Find the tables that match any of the globs; `*` also matches the dots of nested namespaces.

    In backticks, a wildcard is a character like any other.

    Only namespaces that can hold a match are listed; a full table name is looked up without listing. Whatever exists
    is found: the naming rule is for tables that this package creates.
    """
    names = {glob: identifier for glob in globs if (identifier := _to_identifier(glob)) is not None}
    missing = {name for name, identifier in names.items() if not _exists(manager, identifier)}
    found = {identifier for name, identifier in names.items() if name not in missing}
    patterns = [glob for glob in globs if has_wildcard(glob)]
    nameless = {glob for glob in globs if glob not in names and glob not in patterns}
    catalog = _Listing(manager, patterns)
    listed = set(catalog.tables()) if patterns else set()
    unmatched = [glob for glob in patterns if not any(matches_glob(table, glob) for table in listed)]
    return SelectedTables(sorted(found | listed, key=str), sorted(missing | nameless), catalog.skipped, unmatched)


def not_found(manager: "IcebergTableManager", name: str) -> NoSuchTableError:
    """The error for a name that the catalog does not have, with the nearest one that it has."""
    existing = [str(table) for table in select_tables(manager, [EVERY_TABLE]).found]
    same_name = (each for each in existing if each.rpartition(".")[2] == name.rpartition(".")[2])
    guess = nearest(name, existing, cutoff=_MIN_SIMILARITY) or next(same_name, None)
    return NoSuchTableError(name, hint=f"Did you mean '{guess}'?" if guess else _namespaces_hint(manager))


def no_match(manager: "IcebergTableManager", glob: str) -> ValidationError:
    """The error for a glob that no table matches."""
    return ValidationError(f"No table matches '{glob}'. {_namespaces_hint(manager)}")


def _namespaces_hint(manager: "IcebergTableManager") -> str:
    namespaces = manager.list_namespaces()
    if not namespaces:
        return "The catalog has no namespaces yet."
    more = f" and {len(namespaces) - _MOST_NAMED} more" if len(namespaces) > _MOST_NAMED else ""
    names = ", ".join(namespaces[:_MOST_NAMED])
    return f"Tables are matched as 'namespace.table'; namespaces are {names}{more}."


def _exists(manager: "IcebergTableManager", table: TableIdentifier) -> bool:
    try:
        return manager.table_exists(table)
    except (CatalogConnectionError, CatalogAuthenticationError):
        raise
    # The catalog may have it; the error is reported with this table, and does not stop the others.
    except Exception:  # noqa: BLE001
        return True


def _to_identifier(glob: str) -> TableIdentifier | None:
    """The table that a glob without a wildcard names; None if it has one, or is no name of a table."""
    if has_wildcard(glob):
        return None
    try:
        return TableIdentifier.from_tuple(split_parts(glob))
    except ValueError:
        return None


class _Listing:
    """The tables of a catalog that match patterns; a namespace that cannot be listed does not stop the others."""

    def __init__(self, manager: "IcebergTableManager", patterns: Sequence[str]) -> None:
        self._manager, self._patterns = manager, patterns
        self.skipped: dict[str, str] = {}

    def tables(self, parent: str = "") -> Iterator[TableIdentifier]:
        for namespace in self._namespaces(parent):
            if not any(_may_hold(namespace, pattern) for pattern in self._patterns):
                continue
            for name in self._names(namespace):
                table = TableIdentifier.from_tuple((*split_parts(namespace), name))
                if any(matches_glob(table, pattern) for pattern in self._patterns):
                    yield table
            yield from self.tables(namespace)

    def _namespaces(self, parent: str) -> list[str]:
        if not parent:
            return self._manager.list_namespaces()
        return self._list(parent, self._manager.list_namespaces)

    def _names(self, namespace: str) -> list[str]:
        return self._list(namespace, self._manager.list_tables)

    def _list(self, namespace: str, names_of: Callable[[str], list[str]]) -> list[str]:
        try:
            return names_of(namespace)
        except (CatalogConnectionError, CatalogAuthenticationError):
            raise
        except NoSuchNamespaceError as error:
            blanks = any(part != part.strip() or not part for part in split_parts(namespace))
            reason = "PyIceberg cannot use names that are empty, or begin or end with a blank."
            self.skipped[namespace] = reason if blanks else describe_failure(error)
            return []
        # Whatever PyIceberg or the server makes of a name that another tool has chosen.
        except Exception as error:  # noqa: BLE001
            self.skipped[namespace] = describe_failure(error)
            return []


def has_wildcard(glob: str) -> bool:
    """Whether a glob may match several tables, and not just the one that it names."""
    return _WILDCARD.search(_QUOTED.sub("", glob)) is not None


def matches_glob(table: TableIdentifier, glob: str) -> bool:
    """Whether a glob selects a table."""
    # A name may have the characters of wildcards itself.
    return glob == str(table) or fnmatchcase(".".join(table.as_tuple), _to_pattern(glob))


def _may_hold(namespace: str, glob: str) -> bool:
    fixed = _WILDCARD.split(_to_pattern(glob), maxsplit=1)[0]
    inside = f"{'.'.join(split_parts(namespace))}."
    return inside.startswith(fixed) or fixed.startswith(inside)


def _to_pattern(glob: str) -> str:
    """The pattern over names without backticks."""
    return _QUOTED.sub(lambda quoted: _WILDCARD.sub(r"[\g<0>]", quoted[1].replace("``", "`")), glob)


class TableLocations:
    """Where all tables of a catalog keep their files.

    The catalog is listed once. Tables created later do not matter: their files are too young
    to count as orphans.
    """

    def __init__(self, manager: "IcebergTableManager") -> None:
        self._manager, self._lock = manager, threading.Lock()

    def overlapping_tables(self, table: "Table") -> list[str]:
        """Names of the other tables whose files lie below this table's location, or above it."""
        from floe_dagster_iceberg.table.storage import FileLocation  # noqa: PLC0415 - it loads PyIceberg

        own, name = FileLocation.of(table.location()), join_parts(table.name())
        with self._lock:
            locations = self._locations
        places = ((other, FileLocation.of(location)) for other, location in locations if other != name)
        return sorted({other for other, place in places if own.contains(place) or place.contains(own)})

    @cached_property
    def _locations(self) -> list[tuple[str, str]]:
        return list(self._list_locations())

    def _list_locations(self) -> Iterator[tuple[str, str]]:
        from floe_dagster_iceberg._pyiceberg.metadata_errors import PATH_PROPERTIES  # noqa: PLC0415 - it loads PyIceberg

        for identifier in select_tables(self._manager, ["*"]).found:
            try:
                table = self._manager.load_table(identifier)
            except UnsupportedMetadataError as unsupported:
                yield from ((str(identifier), location) for location in unsupported.locations)
                continue
            # A broken table must not stop the others; its metadata files reveal it if it lies below them.
            except Exception:  # noqa: BLE001, S112
                continue
            yield str(identifier), table.location()
            yield from (
                (str(identifier), table.properties[path]) for path in PATH_PROPERTIES if path in table.properties
            )


class TableReaders:
    """Which tables of a catalog are written from the changes of others. The catalog is listed once."""

    def __init__(self, manager: "IcebergTableManager") -> None:
        self._manager, self._lock = manager, threading.Lock()

    def readers_of(self, table: "Table") -> list["TableReader"]:
        """The tables that read a table incrementally; not those that read one of the same name before."""
        own, name = str(table.metadata.table_uuid), join_parts(table.name())
        with self._lock:
            readers = self._readers
        return [reader for source, reader in readers if source == name and reader.cursor.table_uuid == own]

    @cached_property
    def _readers(self) -> list[tuple[str, "TableReader"]]:
        from floe_dagster_iceberg.table.changes.cursors import TableReader, newest_cursors  # noqa: PLC0415 - it loads PyIceberg

        found = []
        for identifier in select_tables(self._manager, ["*"]).found:
            try:
                metadata = self._manager.load_table(identifier).metadata
            # A broken table must not stop the maintenance of others.
            except Exception:  # noqa: BLE001, S112
                continue
            for source, (cursor, _) in newest_cursors(metadata).items():
                found.append((source, TableReader(str(identifier), cursor)))
        return found


@dataclass(frozen=True)
class IdleEnvironments:
    """The environments of a catalog that were not written for some time.

    Attributes:
        names: The environments; none if that is unknown.
        unknown_because: Why it is unknown.
    """

    names: frozenset[str] = frozenset()
    unknown_because: str | None = None


class EnvironmentActivity:
    """When the environments of a catalog were last written, in any of their tables. The catalog is listed once."""

    def __init__(self, manager: "IcebergTableManager") -> None:
        self._manager, self._lock = manager, threading.Lock()

    def idle_since(self, timestamp_ms: int) -> IdleEnvironments:
        """The environments whose newest snapshot was committed before a time."""
        with self._lock:
            last_written, unknown_because = self._last_written
        if unknown_because is not None:
            return IdleEnvironments(unknown_because=unknown_because)
        return IdleEnvironments(frozenset(name for name, written in last_written.items() if written < timestamp_ms))

    @cached_property
    def _last_written(self) -> tuple[dict[str, int], str | None]:
        selected, last_written = select_tables(self._manager, [EVERY_TABLE]), dict[str, int]()
        if selected.skipped:
            return {}, f"the tables of '{next(iter(selected.skipped))}' cannot be listed"
        for identifier in selected.found:
            try:
                metadata = self._manager.load_table(identifier).metadata
            except NoSuchTableError:
                # Dropped since they were listed, or a view.
                continue
            # A broken table must not stop the maintenance of others, but an environment may be in use there.
            except Exception:  # noqa: BLE001
                return {}, f"'{identifier}' cannot be loaded"
            for branch, ref in metadata.refs.items():
                head = metadata.snapshot_by_id(ref.snapshot_id)
                if (name := environment_of(branch)) is not None and head is not None:
                    last_written[name] = max(head.timestamp_ms, last_written.get(name, 0))
        return last_written, None
