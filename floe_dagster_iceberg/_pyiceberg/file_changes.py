"""Which files a commit adds and removes, which manifests that touches, and what others changed meanwhile."""

from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.exceptions import ValidationException
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator, inclusive_projection, manifest_evaluator
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import CommitWindow
from pyiceberg.table.update.validate import _validation_history
from pyiceberg.types import UUIDType

from floe_dagster_iceberg._pyiceberg.manifest_reader import (
    read_all_entries,
    read_entries,
    read_manifests,
    reading_files,
)
from floe_dagster_iceberg._pyiceberg.transaction import StagedTransaction


@dataclass
class FileChanges:
    """The manifests of a snapshot, read as far as needed, and what is to change in them.

    Attributes:
        unopened: Manifests that cannot hold a file of interest.
        opened: Manifests that can, with their live entries.
        added: Data files that the commit adds.
    """

    unopened: list[ManifestFile] = field(default_factory=list)
    opened: list[tuple[ManifestFile, list[ManifestEntry]]] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)
    _removed_paths: set[str] = field(default_factory=set)

    @classmethod
    def read(
        cls, metadata: TableMetadata, io: FileIO, snapshot: Snapshot | None, *, may_hold: BooleanExpression
    ) -> "FileChanges":
        """Read a snapshot's manifests, opening only those that may hold rows matching a filter."""
        changes = cls()
        may_match = _manifest_matcher(metadata, may_hold)
        with reading_files(metadata.location):
            to_open: list[ManifestFile] = []
            for manifest in read_manifests(snapshot, io):
                is_of_interest = manifest.content == ManifestContent.DATA and may_match(manifest)
                (to_open if is_of_interest else changes.unopened).append(manifest)
            changes.opened = list(zip(to_open, read_all_entries(to_open, io), strict=True))
        return changes

    def live_entries(self) -> Iterator[ManifestEntry]:
        """Entries of the data files in the opened manifests."""
        for _, entries in self.opened:
            for entry in entries:
                if entry.data_file.content == DataFileContent.DATA:
                    yield entry

    def remove(self, files: Iterable[DataFile]) -> None:
        self._removed_paths.update(file.file_path for file in files)

    @property
    def removed(self) -> list[ManifestEntry]:
        """Entries of the files that the commit removes."""
        if not self._removed_paths:
            return []
        return [entry for entry in self.live_entries() if entry.data_file.file_path in self._removed_paths]

    @property
    def operation(self) -> Operation:
        """Iceberg's name for a commit of these changes."""
        if not self._removed_paths:
            return Operation.APPEND
        return Operation.OVERWRITE if self.added else Operation.DELETE

    def carried_over(self) -> Iterator[ManifestFile]:
        """Manifests that the commit leaves as they are."""
        yield from self.unopened
        for manifest, entries in self.opened:
            if len(self._kept(entries)) == len(entries):
                yield manifest

    def rewritten(self) -> Iterator[tuple[ManifestFile, list[ManifestEntry]]]:
        """Manifests that lose files, with the entries that stay."""
        for manifest, entries in self.opened:
            if len(kept := self._kept(entries)) < len(entries):
                yield manifest, kept

    def _kept(self, entries: list[ManifestEntry]) -> list[ManifestEntry]:
        return [entry for entry in entries if entry.data_file.file_path not in self._removed_paths]


def _manifest_matcher(metadata: TableMetadata, row_filter: BooleanExpression) -> Callable[[ManifestFile], bool]:
    if isinstance(row_filter, AlwaysTrue | AlwaysFalse):
        return lambda _: isinstance(row_filter, AlwaysTrue)
    schema, evaluators = metadata.schema(), dict[int, Callable[[ManifestFile], bool]]()
    for spec_id, spec in metadata.specs().items():
        fields = zip(spec.fields, spec.partition_type(schema).fields, strict=True)
        # Manifests cannot be skipped by UUIDs: Iceberg's Java orders them in another way.
        ordered = [field for field, kind in fields if not isinstance(kind.field_type, UUIDType)]
        on_partitions = inclusive_projection(schema, PartitionSpec(*ordered))(row_filter)
        evaluators[spec_id] = manifest_evaluator(spec, schema, on_partitions)
    return lambda manifest: bool(evaluators[manifest.partition_spec_id](manifest))


# Rewrites of files change no row.
_CHANGE_ROWS: Final = frozenset({Operation.APPEND, Operation.OVERWRITE, Operation.DELETE})


@dataclass(frozen=True)
class ConcurrentChanges:
    """Changes to rows that match a filter, after a snapshot.

    Attributes:
        added: Data files with new rows, and the id of the snapshot of each.
        rows_removed: Whether rows were removed; also if that is unknown, because the snapshot has expired or the branch
            was rolled back behind it.
        rewritten: Files that were rewritten without changing a row; only known if there are added ones.
    """

    added: dict[str, int | None] = field(default_factory=dict)
    rows_removed: bool = False
    rewritten: frozenset[str] = frozenset()

    @classmethod
    def since(
        cls,
        base_snapshot_id: int | None,
        transaction: StagedTransaction,
        branch: str,
        *,
        row_filter: BooleanExpression,
    ) -> "ConcurrentChanges":
        """Read what was committed to a branch after a snapshot; None stands for the empty branch."""
        metadata, table = transaction.table_metadata, transaction.table
        try:
            window = CommitWindow.resolve(metadata, base_snapshot_id, branch)
            if window.is_empty() or window.head is None:
                return cls()
            matches = _InclusiveMetricsEvaluator(metadata.schema(), row_filter)
            changed = [
                entry
                for entry in _entries_between(table, window.base, window.head, _CHANGE_ROWS)
                if matches.eval(entry.data_file)
            ]
            added = {entry.data_file.file_path: entry.snapshot_id for entry in changed if _adds_rows(entry)}
            removed = any(not _adds_rows(entry) for entry in changed)
            rewrites = _entries_between(table, window.base, window.head, {Operation.REPLACE}) if added else ()
            rewritten = frozenset(
                entry.data_file.file_path for entry in rewrites if entry.status == ManifestEntryStatus.DELETED
            )
        except ValidationException:
            return cls(rows_removed=True)
        return cls(added, removed, rewritten)


def _adds_rows(entry: ManifestEntry) -> bool:
    return entry.status == ManifestEntryStatus.ADDED and entry.data_file.content == DataFileContent.DATA


def _entries_between(
    table: Table, base: Snapshot | None, head: Snapshot, operations: AbstractSet[Operation]
) -> Iterator[ManifestEntry]:
    """Files that commits of some kinds after the base added or removed."""
    for content in (ManifestContent.DATA, ManifestContent.DELETES):
        manifests, snapshot_ids = _validation_history(table, base, head, set(operations), content)
        for manifest in manifests:
            for entry in read_entries(manifest, table.io, discard_deleted=False):
                if entry.snapshot_id in snapshot_ids and entry.status != ManifestEntryStatus.EXISTING:
                    yield entry
