"""A real catalog whose responses to commits can get lost, and before which others can commit."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import CommitTableResponse, Table

Fate = Literal[
    "lands",
    "is lost after it landed",
    "is lost before it landed",
    "lands late",
    "lands in part",
    "lands in part without an error",
]


class Interrupted(BaseException):
    """What ends a run from outside."""


class UnreliableCatalog(Catalog):
    """A catalog that was made unreliable. Each commit meets the next of `fates`; when there are none left, it lands.

    Attributes:
        fates: What becomes of the commits to come.
        meanwhile: Called before each commit, as if another client had been quicker.
        commits: How many commits were sent.
        unreachable: Whether tables can no longer be loaded.
        lost: What a lost response looks like.
        late: Lets the commit that was to land late do so.
    """

    fates: list[Fate]
    meanwhile: Callable[[], object]
    commits: int
    unreachable: bool
    late: Callable[[], object]
    lost: Callable[[], BaseException]

    @classmethod
    def of(cls, catalog: Catalog) -> "UnreliableCatalog":
        """Make any catalog unreliable: it stays what it is, and its commits go through here."""
        catalog.__class__ = type("UnreliableCatalog", (cls, type(catalog)), {})
        assert isinstance(catalog, cls)
        catalog.fates, catalog.commits, catalog.unreachable = [], 0, False
        catalog.meanwhile = catalog.late = lambda: None
        catalog.lost = lambda: CommitStateUnknownException("no response")
        return catalog

    def commit_table(self, table: Table, *arguments: Any) -> CommitTableResponse:
        self.commits += 1
        self.meanwhile()
        fate = self.fates.pop(0) if self.fates else "lands"
        if fate == "lands late":
            self.late = lambda: super(UnreliableCatalog, self).commit_table(table, *arguments)
        if fate in ("is lost before it landed", "lands late"):
            raise self.lost()
        response = super().commit_table(table, *arguments)
        if fate == "is lost after it landed":
            raise self.lost()
        return response

    def commit_tables(self, changes: Any) -> None:
        self.commits += 1
        self.meanwhile()
        fate = self.fates.pop(0) if self.fates else "lands"
        if fate == "is lost before it landed":
            raise self.lost()
        if fate == "lands in part":
            # As Iceberg's reference server: one table after the other, until one of them has changed.
            super().commit_tables(changes[:1])  # type: ignore[misc]
            raise CommitFailedException("Requirement failed: branch main has changed")
        if fate == "lands in part without an error":
            # The same server, if a table changes after the requirements were checked.
            super().commit_tables(changes[:1])  # type: ignore[misc]
            return
        super().commit_tables(changes)  # type: ignore[misc]
        if fate == "is lost after it landed":
            raise self.lost()

    def load_table(self, identifier: Any) -> Table:
        if self.unreachable:
            raise ConnectionError("the catalog is away")
        return super().load_table(identifier)

    @contextmanager
    def away_after_commit(self) -> Iterator[None]:
        """The response to the next commit is lost, and then the catalog cannot be asked either."""

        def go_away() -> BaseException:
            self.unreachable = True
            return CommitStateUnknownException("no response")

        lost, self.lost = self.lost, go_away
        yield
        self.lost, self.unreachable = lost, False
