"""Cursors in the history of a table: how far its writers have read other tables.

A cursor is a property of the snapshot that holds the rows that were read up to it, so that both are one commit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg._pyiceberg.transaction import history_of, summary_property
from floe_dagster_iceberg.errors import CommitConflictError
from floe_dagster_iceberg.models import Cursor, TableIdentifier, snapshot_properties


@dataclass(frozen=True)
class ReaderPosition:
    """How far a target has read a source.

    Attributes:
        since: What it has; None if it has nothing.
        until: How far the write with a key has read, if it is committed; `since` is then what it had before.
    """

    since: Cursor | None = None
    until: Cursor | None = None


@dataclass(frozen=True)
class TableReader:
    """A table whose writers read another one incrementally.

    Attributes:
        table: Name of the table.
        cursor: How far it has read.
    """

    table: str
    cursor: Cursor


def cursor_key(source: TableIdentifier | str) -> str:
    """The snapshot property of a source."""
    return snapshot_properties.CURSOR.format(table=source)


def find_position(
    metadata: TableMetadata, branch: str, source: TableIdentifier | str, idempotency_key: str
) -> ReaderPosition:
    """How far the writers of a branch have read a source; rolled back snapshots do not count."""
    until: Cursor | None = None
    for snapshot, cursor in _cursors(metadata, branch, source):
        if summary_property(snapshot, snapshot_properties.IDEMPOTENCY_KEY) == idempotency_key:
            until = until or cursor
            continue
        return ReaderPosition(cursor, until)
    return ReaderPosition(None, until)


@dataclass(frozen=True)
class PositionCheck:
    """The precondition of a write of changes: its branch stands where it did when they were read.

    Attributes:
        table: The table that is written.
        idempotency_key: Identifies the write, whose own snapshot does not count.
        since: How far the branch had read each source.
    """

    table: TableIdentifier
    idempotency_key: str
    since: Mapping[str, Cursor | None]

    def __call__(self, metadata: TableMetadata, branch: str) -> None:
        """Check a version of the table.

        Raises:
            CommitConflictError: Another run has committed changes meanwhile: the same rows would be there twice.
        """
        for source, since in self.since.items():
            if find_position(metadata, branch, source, self.idempotency_key).since != since:
                reason = f"another run has read the changes of '{source}' meanwhile"
                raise CommitConflictError(self.table, attempts=1, reason=reason)


def newest_cursors(metadata: TableMetadata) -> dict[str, tuple[Cursor, Snapshot]]:
    """How far the writers of main have read each source, and the snapshot that says so."""
    prefix, found = cursor_key(""), dict[str, tuple[Cursor, Snapshot]]()
    for snapshot in _history(metadata, MAIN_BRANCH):
        for key, value in (snapshot.summary.additional_properties if snapshot.summary else {}).items():
            if key.startswith(prefix) and (cursor := parse_cursor(value)) is not None:
                found.setdefault(key.removeprefix(prefix), (cursor, snapshot))
    return found


def _cursors(metadata: TableMetadata, branch: str, source: TableIdentifier | str) -> Iterator[tuple[Snapshot, Cursor]]:
    for snapshot in _history(metadata, branch):
        text = summary_property(snapshot, cursor_key(source))
        if text is not None and (cursor := parse_cursor(text)) is not None:
            yield snapshot, cursor


def _history(metadata: TableMetadata, branch: str) -> Iterator[Snapshot]:
    ref = metadata.refs.get(branch) or metadata.refs.get(MAIN_BRANCH)
    return history_of(metadata, None if ref is None else metadata.snapshot_by_id(ref.snapshot_id))


def parse_cursor(text: str) -> Cursor | None:
    """The cursor of a text; None if it is no cursor."""
    try:
        return Cursor.parse(text)
    except ValueError:
        # Not ours.
        return None
