"""Which snapshots lie between two positions in a table's history, and which files they added and removed.

Pure but for reading manifests: of each snapshot only those that it wrote itself, so that a day appended to a table of
years costs what the day costs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pydantic import TypeAdapter
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot

from floe_dagster_iceberg._pyiceberg.manifest_reader import read_entries, read_manifests, reading_files
from floe_dagster_iceberg._pyiceberg.scan_planner import NullSafeScan
from floe_dagster_iceberg._pyiceberg.transaction import history_of, summary_property
from floe_dagster_iceberg.errors import ScanError, ValidationError
from floe_dagster_iceberg.models import ChangesMode
from floe_dagster_iceberg.models.quantities import SizeInBytes, counted
from floe_dagster_iceberg.table.names import table_name

_MOST_SNAPSHOTS_NAMED = 5
_SIZE: TypeAdapter[int] = TypeAdapter(SizeInBytes[int])


@dataclass(frozen=True)
class SnapshotChanges:
    """What one snapshot did to the rows of a table.

    Attributes:
        table: The table.
        snapshot: The snapshot.
        undone: The reader has the snapshot's changes, and they were rolled back: what it added is to be removed.
    """

    table: Table
    snapshot: Snapshot
    undone: bool = False

    @property
    def position(self) -> int | None:
        """The snapshot whose rows a reader has after these changes."""
        return self.snapshot.parent_snapshot_id if self.undone else self.snapshot.snapshot_id

    @property
    def added_bytes(self) -> int:
        """Bytes of the files that the snapshot added, by its summary."""
        return int(summary_property(self.snapshot, "added-files-size") or 0)

    @cached_property
    def files(self) -> Sequence[tuple[DataFile, bool]]:
        """Data and delete files that the snapshot added (True) or removed (False)."""
        io, own = self.table.io, self.snapshot.snapshot_id
        with reading_files(self.table.location()):
            return [
                (entry.data_file, entry.status is ManifestEntryStatus.ADDED)
                for manifest in read_manifests(self.snapshot, io)
                if manifest.added_snapshot_id == own
                for entry in read_entries(manifest, io, discard_deleted=False)
                if entry.snapshot_id == own and entry.status is not ManifestEntryStatus.EXISTING
            ]

    @property
    def only_appends(self) -> bool:
        """Whether it did nothing but add data files; an overwrite that found nothing to replace is one, too."""
        return not self.undone and all(added and _is_data(file) for file, added in self.files)

    @cached_property
    def lists_deletes(self) -> bool:
        """Whether the snapshot has delete files, its own or older ones."""
        return _lists_deletes(self.table, self.snapshot)

    @cached_property
    def has_deletes(self) -> bool:
        """Whether delete files may decide which rows of the changed files were there."""
        if any(not _is_data(file) for file, _ in self.files):
            return True
        if all(added for _, added in self.files):
            return False
        parent = self.table.metadata.snapshot_by_id(self.snapshot.parent_snapshot_id or -1)
        return self.lists_deletes or _lists_deletes(self.table, parent)

    def tasks(self) -> tuple[list[FileScanTask], list[FileScanTask]]:
        """What to read for the rows before and after: the files in which they may differ, with their deletes.

        Raises:
            NotImplementedError: Equality deletes, which Arrow cannot read.
        """
        if not self.has_deletes:
            before = [FileScanTask(file) for file, added in self.files if not added]
            after = [FileScanTask(file) for file, added in self.files if added]
        else:
            old, new = self._live(self.snapshot.parent_snapshot_id), self._live(self.snapshot.snapshot_id)
            before = [task for key, task in old.items() if key not in new]
            after = [task for key, task in new.items() if key not in old]
        return (after, before) if self.undone else (before, after)

    def _live(self, snapshot_id: int | None) -> dict[tuple[str, frozenset[str]], FileScanTask]:
        if snapshot_id is None:
            return {}
        scan = NullSafeScan.of_table(self.table, snapshot_id=snapshot_id)
        return {
            (task.file.file_path, frozenset(file.file_path for file in task.delete_files)): task
            for task in scan.plan_files()
        }


def _lists_deletes(table: Table, snapshot: Snapshot | None) -> bool:
    with reading_files(table.location()):
        return any(manifest.content == ManifestContent.DELETES for manifest in read_manifests(snapshot, table.io))


def _is_data(file: DataFile) -> bool:
    return file.content == DataFileContent.DATA


@dataclass(frozen=True)
class ChangesPlan:
    """The changes of a table between two snapshots, in the order in which they happened.

    Attributes:
        table: The table.
        mode: How they are read.
        since: The snapshot that the reader has; None if it has nothing, and reads all rows.
        until: The last snapshot to read.
        steps: Snapshots that changed rows.
    """

    table: Table
    mode: ChangesMode
    since: int | None
    until: int
    steps: Sequence[SnapshotChanges] = field(default=(), repr=False)

    @property
    def reads_everything(self) -> bool:
        """Whether the reader gets all rows, and is to replace what it has."""
        return self.since is None

    def limited(self, limit: int | str | None) -> "ChangesPlan":
        """The first of these changes, up to a number of snapshots or a size of added files, but at least one."""
        if limit is None:
            return self
        snapshots, size = (limit, None) if isinstance(limit, int) else (None, int(_SIZE.validate_python(limit)))
        taken, total = 0, 0
        for step in self.steps:
            total += step.added_bytes
            if taken and ((snapshots is not None and taken >= snapshots) or (size is not None and total > size)):
                break
            taken += 1
        position = self.steps[taken - 1].position if 0 < taken < len(self.steps) else self.until
        if position is None or taken == len(self.steps):
            # There is no position before the first snapshot.
            return self
        return replace(self, until=position, steps=self.steps[:taken])


def plan_changes(table: Table, *, mode: ChangesMode, since: int | None, until: int | None = None) -> ChangesPlan:
    """Find the snapshots that changed rows after one snapshot, up to another; rewrites of files change none.

    If the table was rolled back behind `since`, the changes that were rolled back come first, undone.

    Args:
        table: The table.
        mode: How the changes are read.
        since: The snapshot that the reader has; None if it has nothing.
        until: The last snapshot to read; the newest of main if not given.

    Raises:
        ValidationError: The table has no snapshot, or the range has more than appends and the mode is appends.
        ScanError: Snapshots of the range have expired.
    """
    metadata, name = table.metadata, table_name(table)
    current = metadata.current_snapshot_id if until is None else until
    head = None if current is None else metadata.snapshot_by_id(current)
    if head is None:
        raise ValidationError(
            f"Table '{name}' has no snapshot yet, so there are no changes to read. Materialize it first.", table=name
        )
    plan = ChangesPlan(table, mode, since, head.snapshot_id)
    if since is None:
        return plan
    steps = [
        SnapshotChanges(table, snapshot, undone)
        for snapshot, undone in _path(table, name, since, head)
        if snapshot.summary is None or snapshot.summary.operation is not Operation.REPLACE
    ]
    return replace(plan, steps=steps)


def check_appends(plan: ChangesPlan) -> None:
    """Refuse a range with more than appends, in the mode that reads only those.

    Raises:
        ValidationError: It names the snapshots.
    """
    if plan.mode is not ChangesMode.APPENDS:
        return
    others = [step for step in plan.steps if not step.only_appends]
    if not others:
        return
    name = table_name(plan.table)
    named = ", ".join(_describe(step) for step in others[:_MOST_SNAPSHOTS_NAMED])
    more = (
        f" and {counted(len(others) - _MOST_SNAPSHOTS_NAMED, 'other')}" if len(others) > _MOST_SNAPSHOTS_NAMED else ""
    )
    raise ValidationError(
        f"Since snapshot {plan.since}, rows of '{name}' were not only appended: {named}{more}. Read the changes as "
        "'changelog' or 'partitions' instead of 'appends', or read everything again with the run tag "
        "'iceberg/full_refresh'.",
        table=name,
    )


def _describe(step: SnapshotChanges) -> str:
    summary = step.snapshot.summary
    what = "rolled back" if step.undone else "overwrite" if summary is None else summary.operation.value
    return f"snapshot {step.snapshot.snapshot_id} ({what})"


def _path(table: Table, name: str, since: int, head: Snapshot) -> list[tuple[Snapshot, bool]]:
    """Snapshots from one position to another: rolled back ones, newest first, then the others, oldest first."""
    metadata, forward = table.metadata, list[Snapshot]()
    for snapshot in history_of(metadata, head):
        if snapshot.snapshot_id == since:
            return [(each, False) for each in reversed(forward)]
        forward.append(snapshot)
    start = metadata.snapshot_by_id(since)
    if start is None:
        raise _expired(name, since)
    ancestors = {snapshot.snapshot_id: number for number, snapshot in enumerate(forward)}
    undone: list[Snapshot] = []
    for snapshot in history_of(metadata, start):
        if (number := ancestors.get(snapshot.snapshot_id)) is not None:
            forward = forward[:number]
            break
        undone.append(snapshot)
    else:
        # Histories without a common snapshot are complete only if both go back to a first one.
        if not all(_is_first(table, each[-1]) for each in (undone, forward) if each):
            raise _expired(name, since)
    return [*((each, True) for each in undone), *((each, False) for each in reversed(forward))]


def _is_first(table: Table, snapshot: Snapshot) -> bool:
    """Whether nothing was there before a snapshot.

    Not having a parent does not suffice: expiry takes that from the oldest snapshot that it leaves.
    """
    if snapshot.parent_snapshot_id is not None:
        return False
    with reading_files(table.location()):
        return all(
            manifest.added_snapshot_id == snapshot.snapshot_id
            and manifest.existing_files_count == 0
            and manifest.deleted_files_count == 0
            for manifest in read_manifests(snapshot, table.io)
        )


def _expired(name: str, since: int) -> ScanError:
    return ScanError(
        f"The changes of '{name}' since snapshot {since} are lost, because snapshots after it have expired. Read "
        "everything again, with the run tag 'iceberg/full_refresh', and let expiry keep more snapshots: it keeps "
        "those that known readers need up to the policy's max_cursor_age.",
        table=name,
    )


def read_everything(plan: ChangesPlan) -> Iterator[FileScanTask]:
    """What to read for a reader that has nothing."""
    yield from NullSafeScan.of_table(plan.table, snapshot_id=plan.until).plan_files()
