"""One look at a table: its data version, what has changed since an earlier look, and the files behind that.

The data version is the id of the last snapshot of main that changed rows. Snapshots that only move rows between files
(`replace`: compaction, manifest rewrites) and those that add and remove nothing do not count, so the version changes
when rows do, and at no other time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from floe_dagster_iceberg._pyiceberg.manifest_reader import read_entries, read_manifests
from floe_dagster_iceberg._pyiceberg.transaction import history_of
from floe_dagster_iceberg.models import SnapshotInfo, SnapshotWriter, TableObservation, TableState
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.names import table_name, to_identifier

_CHANGES: Final = (
    "added-data-files",
    "deleted-data-files",
    "added-delete-files",
    "removed-delete-files",
    "added-records",
    "deleted-records",
)
# Writers that record counts leave out those that are zero, but always record one of these.
_RECORDED: Final = ("changed-partition-count", "total-records", "total-data-files")
_CHANGED_BY_SNAPSHOT: Final = (ManifestEntryStatus.ADDED, ManifestEntryStatus.DELETED)


@dataclass(frozen=True)
class ObservedTable:
    """A table as one look found it.

    Attributes:
        table: The table; over REST it may hold the newest snapshots only.
        observation: What the look says.
        since: The state that an earlier look left, if it was of the same table.
    """

    table: Table
    observation: TableObservation
    since: TableState | None

    def changed_files(self) -> list[tuple[int, list[DataFile]]] | None:
        """The files that each new snapshot added or removed, oldest first; None if not known since the earlier look.

        After a rollback there is one entry: the files that only one of the two versions has.
        """
        with translate_errors(self.table.catalog.name, table=table_name(self.table)):
            new = self.observation.new_snapshots
            if new is not None:
                return [(snapshot_id, list(_changes_of(self.table, snapshot_id))) for snapshot_id in new]
            before = self.since and self.since.snapshot_id and self.table.snapshot_by_id(self.since.snapshot_id)
            head = self.table.current_snapshot()
            if not before or head is None:
                return None
            old, now = _live_files(self.table, before), _live_files(self.table, head)
            differing = [file for path, file in {**old, **now}.items() if (path in old) != (path in now)]
            return [(head.snapshot_id, differing)]

    def live_files(self) -> list[DataFile]:
        """Data files of the newest snapshot of main."""
        with translate_errors(self.table.catalog.name, table=table_name(self.table)):
            head = self.table.current_snapshot()
            return [] if head is None else list(_live_files(self.table, head).values())


def observe_table(table: Table, since: TableState | None, load_history: Callable[[], Table] | None) -> ObservedTable:
    """Look at a table.

    Args:
        table: The table.
        since: What an earlier look left.
        load_history: Loads the table with all its snapshots, if it may lack some; called only if they are needed.
    """
    look = _Look(table, since, has_history=load_history is None)
    if load_history is not None and not look.is_complete:
        look = _Look(load_history(), since, has_history=True)
    return ObservedTable(look.table, look.to_observation(), look.since)


def changes_rows(snapshot: Snapshot) -> bool:
    """Whether a snapshot added or removed rows; one whose writer recorded nothing may have."""
    summary = snapshot.summary
    if summary is None:
        return True
    if summary.operation is Operation.REPLACE:
        return False
    counts = summary.additional_properties
    return any(_number(counts.get(key)) for key in _CHANGES) or not any(key in counts for key in _RECORDED)


def newer_than_main(table: Table) -> list[SnapshotInfo]:
    """Snapshots that changed rows after the newest one of main and are not part of it, oldest first."""
    head = table.current_snapshot()
    on_main = {snapshot.snapshot_id for snapshot in history_of(table.metadata, head)}
    after = 0 if head is None else head.timestamp_ms
    newer = (each for each in table.metadata.snapshots if each.timestamp_ms > after and each.snapshot_id not in on_main)
    found = sorted(filter(changes_rows, newer), key=lambda snapshot: snapshot.timestamp_ms)
    return [SnapshotInfo.from_pyiceberg_snapshot(snapshot) for snapshot in found]


class _Look:
    """Main's snapshots from the newest one back to that of an earlier look."""

    def __init__(self, table: Table, since: TableState | None, *, has_history: bool) -> None:
        self.table, self._has_history, self._now = table, has_history, datetime.now(UTC)
        self.uuid = str(table.metadata.table_uuid or table.metadata.location)
        # A table that was created again has nothing in common with the one of the same name before it.
        self.since = since if since is not None and since.table_uuid == self.uuid else None
        self.head = table.current_snapshot()
        self._is_other_table = since is not None and self.since is None

    @cached_property
    def _new(self) -> list[Snapshot]:
        """Snapshots after the earlier look's, newest first; all of the history if that is not part of it."""
        new: list[Snapshot] = []
        for snapshot in history_of(self.table.metadata, self.head):
            if self.since is not None and snapshot.snapshot_id == self.since.snapshot_id:
                break
            new.append(snapshot)
        return new

    @cached_property
    def _follows(self) -> bool:
        """Whether every snapshot since the earlier look is known."""
        if self.since is None:
            return False
        if not self._new:
            return self.since.snapshot_id == (None if self.head is None else self.head.snapshot_id)
        oldest = self._new[-1]
        if oldest.parent_snapshot_id is not None:
            return oldest.parent_snapshot_id == self.since.snapshot_id
        # It has no parent because it is the first, or because expiry has cut the history before it.
        if oldest.sequence_number:
            return oldest.sequence_number == self.since.sequence_number + 1
        return self.since.snapshot_id is None and changes_rows(oldest)

    @cached_property
    def _changes(self) -> list[Snapshot]:
        return [snapshot for snapshot in self._new if changes_rows(snapshot)]

    @property
    def is_complete(self) -> bool:
        """Whether older snapshots would say nothing more."""
        if self.since is not None:
            return self._follows
        return self.head is None or bool(self._changes) or self._new[-1].parent_snapshot_id is None

    def to_observation(self) -> TableObservation:
        state, summary = self._state(), _summary(self.head)
        added = [SnapshotInfo.from_pyiceberg_snapshot(snapshot) for snapshot in self._changes]
        known = self._follows
        writer = next(iter(self._changes), None)
        return TableObservation(
            table=to_identifier(self.table),
            state=state,
            rows_changed=self.since is None or state.data_version != self.since.data_version,
            row_count=0 if self.head is None else _rows(summary),
            data_files=0 if self.head is None else _number(summary.get("total-data-files")),
            total_bytes=0 if self.head is None else _number(summary.get("total-files-size")),
            snapshots=self._count(),
            writer=SnapshotWriter.from_summary(_summary(writer)),
            added_rows=sum(each.added_records for each in added) if known else None,
            added_files=sum(each.added_files for each in added) if known else None,
            new_snapshots=[each.snapshot_id for each in reversed(self._changes)] if known else None,
            note=None if known else self._note(),
        )

    def _count(self) -> int:
        ids = {snapshot.snapshot_id for snapshot in self.table.metadata.snapshots}
        # Servers send the log of main's snapshots in any case.
        logged = () if self._has_history else self.table.metadata.snapshot_log
        return len(ids | {entry.snapshot_id for entry in logged})

    def _state(self) -> TableState:
        given: dict[str, Any] = {
            "table_uuid": self.uuid,
            "snapshot_id": None if self.head is None else self.head.snapshot_id,
            "sequence_number": getattr(self.table.metadata, "last_sequence_number", 0),
            "observed_at": self._now,
        }
        if self._changes:
            last = SnapshotInfo.from_pyiceberg_snapshot(self._changes[0])
            return TableState(**given, data_version=str(last.snapshot_id), last_updated=last.timestamp)
        if self.since is not None and self._follows:
            return self.since.model_copy(update=given)
        return TableState(**given, data_version=self._version_before_history())

    def _version_before_history(self) -> str:
        """The version if no snapshot that is left changed rows: the last change came before them, if there was one."""
        if not self._new:
            return self.uuid
        oldest = self._new[-1]
        if oldest.parent_snapshot_id is not None:
            return str(oldest.parent_snapshot_id)
        replaces = oldest.summary is not None and oldest.summary.operation is Operation.REPLACE
        return str(oldest.snapshot_id) if replaces else self.uuid

    def _note(self) -> str | None:
        if self._is_other_table:
            return "The table was dropped and created again since the last look."
        if self.since is None:
            return None
        if self.since.snapshot_id is not None and self.table.snapshot_by_id(self.since.snapshot_id) is not None:
            return f"Main was set to another history since the last look, at snapshot {self.since.snapshot_id}."
        return (
            f"Snapshot {self.since.snapshot_id} of the last look has expired, so the changes since then are not known "
            "one by one. The table was looked at as a whole. Look more often, or keep snapshots for longer."
        )


def _changes_of(table: Table, snapshot_id: int) -> Iterator[DataFile]:
    for manifest in read_manifests(table.snapshot_by_id(snapshot_id), table.io):
        if manifest.added_snapshot_id == snapshot_id:
            for entry in read_entries(manifest, table.io, discard_deleted=False):
                if entry.status in _CHANGED_BY_SNAPSHOT and entry.snapshot_id == snapshot_id:
                    yield entry.data_file


def _live_files(table: Table, snapshot: Snapshot) -> dict[str, DataFile]:
    entries = (entry for manifest in read_manifests(snapshot, table.io) for entry in read_entries(manifest, table.io))
    return {entry.data_file.file_path: entry.data_file for entry in entries}


def _summary(snapshot: Snapshot | None) -> dict[str, str]:
    return {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties


def _rows(summary: dict[str, str]) -> int | None:
    """Rows after deletes; None with equality deletes, which do not say how many rows they match."""
    rows, positions = _number(summary.get("total-records")), _number(summary.get("total-position-deletes")) or 0
    if rows is None or _number(summary.get("total-equality-deletes")):
        return None
    return max(rows - positions, 0)


def _number(text: str | None) -> int | None:
    # The summary is free text that any tool may write.
    return int(text) if text is not None and text.isdecimal() else None
