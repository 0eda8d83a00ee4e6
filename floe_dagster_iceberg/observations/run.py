"""One pass over many tables: each is looked at in a thread, and one that fails does not stop the others."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from floe_dagster_iceberg.errors import CatalogConnectionError
from floe_dagster_iceberg.models import TableIdentifier, TableState
from floe_dagster_iceberg.observations.assets import ObservationTargets
from floe_dagster_iceberg.secrets import describe_failure
from floe_dagster_iceberg.table.selection import select_tables

if TYPE_CHECKING:
    from floe_dagster_iceberg.table.manager import IcebergTableManager
    from floe_dagster_iceberg.table.observation import ObservedTable

_T = TypeVar("_T")
# As many connections as an HTTP session keeps open.
PARALLEL_LOOKS: Final = 10


@dataclass(frozen=True)
class FailedLook:
    """A table that could not be looked at, and why."""

    table: str
    reason: str

    def __str__(self) -> str:
        return f"Table '{self.table}' was not observed. {self.reason}"


def find_tables(
    manager: "IcebergTableManager", targets: ObservationTargets, only: Sequence[str] = ()
) -> tuple[list[TableIdentifier], list[FailedLook]]:
    """The tables to look at, and what could not be listed.

    Args:
        manager: The catalog's tables.
        targets: What is observed.
        only: Globs; tables that none of them matches are left out. All tables if empty.

    Raises:
        CatalogConnectionError: The catalog cannot be reached.
        CatalogAuthenticationError: The catalog refuses the credentials.
    """
    # A table that has an asset is looked at without asking whether it exists: the look finds out.
    found, failed = set(targets.assets), list[FailedLook]()
    if targets.globs:
        selected = select_tables(manager, targets.globs)
        found |= set(selected.found)
        failed += [FailedLook(f"{namespace}.*", reason) for namespace, reason in selected.skipped.items()]
    if only:
        found &= set(select_tables(manager, only).found)
    return sorted(found, key=str), failed


def look_at(
    manager: "IcebergTableManager",
    tables: Iterable[TableIdentifier],
    state_of: Callable[[TableIdentifier], TableState | None] | Mapping[TableIdentifier, TableState],
) -> "Iterator[tuple[TableIdentifier, ObservedTable | FailedLook]]":
    """Look at tables, a few at a time, and yield what was found in the order of the tables.

    Raises:
        CatalogConnectionError: The catalog cannot be reached.
    """
    state = state_of.get if isinstance(state_of, Mapping) else state_of

    def look(table: TableIdentifier) -> "ObservedTable | FailedLook":
        return attempt(table, lambda: manager.observe(table, state(table)))

    listed = list(tables)
    with ThreadPoolExecutor(PARALLEL_LOOKS, thread_name_prefix="iceberg-observe") as pool:
        yield from zip(listed, pool.map(look, listed), strict=True)


def attempt(table: TableIdentifier, work: Callable[[], _T]) -> _T | FailedLook:
    """What some work on one table returns, or why it failed.

    Raises:
        CatalogConnectionError: The catalog cannot be reached.
    """
    try:
        return work()
    except CatalogConnectionError:
        raise
    # Of any kind: what one broken table makes of a library must not keep the others from being observed.
    except Exception as error:  # noqa: BLE001
        return FailedLook(str(table), describe_failure(error))
