"""Snapshots made of file changes, and the merging of small manifests that keeps their lists short."""
# ruff: noqa: SLF001 - private parts are what this folder is for

import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyiceberg import manifest as formats
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import TableProperties
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.metadata import SUPPORTED_TABLE_FORMAT_VERSION, TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import SetSnapshotRefUpdate, UpdatesAndRequirements
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _SnapshotProducer
from pyiceberg.typedef import Record
from pyiceberg.utils.concurrent import ExecutorFactory

from floe_dagster_iceberg._pyiceberg import transaction as transactions
from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.file_io import FloeFileIO, Uploads
from floe_dagster_iceberg._pyiceberg.manifest_reader import read_entries
from floe_dagster_iceberg._pyiceberg.manifest_writer import (
    PartitionKeys,
    WrittenSpec,
    dropped_fields,
    manifest_writer,
    to_avro_codec,
)
from floe_dagster_iceberg.errors import CommitConflictError, EngineCapabilityError
from floe_dagster_iceberg.telemetry import trace_properties

MERGE_BELOW_FILES: Final = 100
"""A manifest with fewer files is small. A single large manifest would have to be rewritten for each partition."""
STEPS: Final = (10, MERGE_BELOW_FILES)
"""Manifests are merged in steps: ten with less than ten files each, then ten with less than a hundred.

A single step would leave up to a hundred of them, and make every hundredth commit read them all.
"""


def groups_to_merge(
    metadata: TableMetadata, manifests: Sequence[ManifestFile], *, being_written: int
) -> Iterator[list[ManifestFile]]:
    """Groups of small data manifests to merge, oldest first, without those of the snapshot being written.

    Table properties may disable this or set the number of manifests.
    """
    properties = metadata.properties
    if properties.get(TableProperties.MANIFEST_MERGE_ENABLED, "true").lower() == "false":
        return
    given = properties.get(TableProperties.MANIFEST_MIN_MERGE_COUNT)
    steps = STEPS if given is None else (int(given),)
    by_spec: dict[int, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id != being_written:
            by_spec[manifest.partition_spec_id].append(manifest)
    for spec_id, of_spec in by_spec.items():
        for fewest, enough in zip((1, *steps), steps, strict=False):
            for group in _full_groups(of_spec, fewest, enough):
                if may_merge(metadata, spec_id):
                    yield group


def _live_files_in(manifest: ManifestFile) -> int:
    """How many files the manifest adds or keeps; many, when an old writer did not say."""
    added, existing = manifest.added_files_count, manifest.existing_files_count
    return sys.maxsize if added is None or existing is None else added + existing


def may_merge(metadata: TableMetadata, spec_id: int) -> bool:
    """Whether manifests of a spec are merged: not of one whose columns were dropped, which gets no more of them."""
    return not dropped_fields(metadata, spec_id)


def _full_groups(manifests: Sequence[ManifestFile], fewest: int, enough: int) -> Iterator[list[ManifestFile]]:
    """Groups of manifests with `fewest` to less than `enough` files, each group with enough together."""
    small = [manifest for manifest in manifests if fewest <= max(1, _live_files_in(manifest)) < enough]
    if len(small) * fewest < enough:
        return
    small.sort(key=lambda manifest: manifest.sequence_number)
    group: list[ManifestFile] = []
    files = 0
    for manifest in small:
        group.append(manifest)
        files += _live_files_in(manifest)
        if files >= enough and len(group) > 1:
            yield group
            group, files = [], 0


# A merge commit always merges; a table may set its own threshold.
MERGE_COMMIT_MIN_MANIFESTS = 2


class SnapshotProducer(_SnapshotProducer["SnapshotProducer"]):
    """Makes one snapshot out of file changes."""

    def __init__(
        self,
        transaction: transactions.StagedTransaction,
        changes: FileChanges,
        *,
        operation: Operation,
        snapshot_id: int,
        snapshot_properties: dict[str, str],
        branch: str,
        merge_manifests: bool = False,
    ) -> None:
        properties = {**snapshot_properties, **trace_properties()}
        self.io, self._branch = transaction.table.io, branch
        # As the snapshot finds it: nothing else is staged between here and its commit.
        self._metadata = transaction.table_metadata
        if self._metadata.format_version > SUPPORTED_TABLE_FORMAT_VERSION:
            # Another writer has upgraded the table since the operation began.
            raise EngineCapabilityError(
                f"Table '{'.'.join(transaction.table.name())}' has format version {self._metadata.format_version} now, "
                f"and PyIceberg writes only up to version {SUPPORTED_TABLE_FORMAT_VERSION}. Use Spark for it.",
                engine="pyiceberg",
                table=".".join(transaction.table.name()),
            )
        super().__init__(operation, transaction, self.io, snapshot_properties=properties, branch=branch)
        self._compression = to_avro_codec(self._compression)
        # Chosen by the caller and kept over attempts, so that a commit whose response was lost can be recognised.
        self._snapshot_id = snapshot_id
        self._changes, self._removed = changes, changes.removed
        self._merge_manifests = merge_manifests
        for file in changes.added:
            self.append_data_file(file)
        for entry in self._removed:
            self.delete_data_file(entry.data_file)

    def discard(self) -> None:
        """Delete the manifests written so far; for a snapshot that definitely was not made."""
        transactions.delete_quietly(self.io, self._written_manifests)

    def validate_removed_files_since(self, base_snapshot_id: int | None) -> None:
        """Refuse to replace files that others deleted, or deleted rows from, after the base snapshot.

        Rows that others added meanwhile do not matter to a rewrite that changes no row.

        Raises:
            CommitConflictError: A removed file has changed.
        """
        metadata, table = self._metadata, self._transaction._table
        base, head = metadata.snapshot_by_id(base_snapshot_id or 0), metadata.snapshot_by_name(self._branch)
        if head is None or (base is not None and base.snapshot_id == head.snapshot_id):
            return
        # The base has expired, or the branch was rolled back behind it: the deletes are unknown.
        is_known = base is not None and transactions.is_in_history(metadata, base.snapshot_id, of=head.snapshot_id)
        if base is None or not is_known or _has_new_deletes(metadata, self._changes, base, table.io):
            raise CommitConflictError(
                ".".join(table.name()), attempts=1, reason="another writer changed files that are being rewritten"
            )

    def new_manifest_writer(self, spec: PartitionSpec) -> formats.ManifestWriter:
        version, schema = self._metadata.format_version, self._metadata.schema()
        output, snapshot_id = self.new_manifest_output(), self._snapshot_id
        written = WrittenSpec.of(self._metadata, spec)
        return manifest_writer(version, written, schema, output, snapshot_id, self._compression)

    def fetch_manifest_entry(self, manifest: ManifestFile, discard_deleted: bool = True) -> list[ManifestEntry]:  # noqa: FBT001, FBT002 - PyIceberg's signature
        return read_entries(manifest, self.io, discard_deleted=discard_deleted)

    def _manifests(self) -> list[ManifestFile]:
        # Not in PyIceberg's threads: one may still be writing when another has failed and the files are deleted.
        snapshot_id, added = self._snapshot_id, ManifestEntryStatus.ADDED
        entries = [
            ManifestEntry.from_args(status=added, snapshot_id=snapshot_id, data_file=file)
            for file in self._changes.added
        ]
        manifests = [
            *self._write_manifest(self._metadata.spec(), entries),
            *(self._deleted_manifests() if self._removed else ()),
            *self._existing_manifests(),
        ]
        return self._merge_all(manifests) if self._merge_manifests else self._merge_small(manifests)

    def _write_manifest(self, spec: PartitionSpec, entries: Sequence[ManifestEntry]) -> Iterator[ManifestFile]:
        if not entries:
            return
        with self.new_manifest_writer(spec) as writer:
            for entry in entries:
                writer.add_entry(entry)
        yield writer.to_manifest_file()

    def _deleted_manifests(self) -> Iterator[ManifestFile]:
        by_spec: dict[int, list[ManifestEntry]] = defaultdict(list)
        for entry in self._deleted_entries():
            by_spec[entry.data_file.spec_id].append(entry)
        for spec_id, entries in by_spec.items():
            yield from self._write_manifest(self.spec(spec_id), entries)

    def _deleted_entries(self) -> list[ManifestEntry]:
        return [_with_status(entry, ManifestEntryStatus.DELETED, self._snapshot_id) for entry in self._removed]

    def _existing_manifests(self) -> list[ManifestFile]:
        manifests = [
            manifest
            for manifest in self._changes.carried_over()
            if manifest.has_added_files() or manifest.has_existing_files()
        ]
        for manifest, entries in self._changes.rewritten() if self._removed else ():
            stay = [_with_status(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id) for entry in entries]
            manifests += self._write_manifest(self.spec(manifest.partition_spec_id), stay)
        return manifests

    def _merge_all(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        properties = self._metadata.properties
        data, others = list[ManifestFile](), list[ManifestFile]()
        for manifest in manifests:
            is_data = manifest.content == ManifestContent.DATA
            (data if is_data and may_merge(self._metadata, manifest.partition_spec_id) else others).append(manifest)
        manager = _ManifestMergeManager(
            target_size_bytes=int(
                properties.get(
                    TableProperties.MANIFEST_TARGET_SIZE_BYTES, TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT
                )
            ),
            min_count_to_merge=int(
                properties.get(TableProperties.MANIFEST_MIN_MERGE_COUNT, MERGE_COMMIT_MIN_MANIFESTS)
            ),
            merge_enabled=True,
            snapshot_producer=self,
        )
        merged: list[ManifestFile] = manager.merge_manifests(data) + others
        self._delete_all_but({manifest.manifest_path for manifest in merged})
        return merged

    def _merge_small(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Keep the manifest list short: reading and writing it dominates the commit to an old table."""
        for group in groups_to_merge(self._metadata, manifests, being_written=self._snapshot_id):
            entries = [
                _with_status(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id)
                for found in ExecutorFactory.get_or_create().map(
                    lambda manifest: read_entries(manifest, self.io), group
                )
                for entry in found
            ]
            merged = {manifest.manifest_path for manifest in group}
            manifests = [manifest for manifest in manifests if manifest.manifest_path not in merged]
            manifests += self._write_manifest(self.spec(group[0].partition_spec_id), entries)
        return manifests

    def _delete_all_but(self, needed: set[str]) -> None:
        """Delete manifests of this commit that were merged into another one."""
        merged = [path for path in self._written_manifests if path not in needed]
        self._written_manifests = [path for path in self._written_manifests if path in needed]
        transactions.delete_quietly(self.io, merged)

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        if self._operation is not Operation.REPLACE:
            return super()._summary(snapshot_properties or {})
        # PyIceberg has no replace; its totals are those of an overwrite.
        self._operation = Operation.OVERWRITE
        summary = super()._summary(snapshot_properties or {})
        self._operation = Operation.REPLACE
        return summary.model_copy(update={"operation": Operation.REPLACE})

    def _commit(self) -> UpdatesAndRequirements:
        if self._merge_manifests or not isinstance(self.io, FloeFileIO):
            # Merging reads the new manifests, and deletes those that it merges.
            updates, requirements = super()._commit()
        else:
            with Uploads(self.io) as self._io:
                updates, requirements = super()._commit()
            self._io = self.io
        ref = self._metadata.refs.get(self._branch)
        if ref is None:
            return updates, requirements
        # PyIceberg would reset the branch's own retention on every write.
        moved = transactions.point_ref(self._branch, ref.model_copy(update={"snapshot_id": self._snapshot_id}))
        return tuple(moved if isinstance(update, SetSnapshotRefUpdate) else update for update in updates), requirements


def _with_status(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _has_new_deletes(metadata: TableMetadata, changes: FileChanges, base: Snapshot, io: FileIO) -> bool:
    """Whether rows of one of the removed files were deleted after the base.

    PyIceberg's own check counts from the sequence number of the head, and so misses the deletes of earlier
    commits. Equality deletes may apply to any partition, so each of them counts.
    """
    since, index, keys = base.sequence_number or 0, DeleteFileIndex(), PartitionKeys(metadata)
    for manifest in changes.unopened:
        if manifest.content != ManifestContent.DELETES or manifest.sequence_number <= since:
            continue
        for entry in read_entries(manifest, io):
            if (entry.sequence_number or 0) <= since:
                continue
            if entry.data_file.content == formats.DataFileContent.EQUALITY_DELETES:
                return True
            index.add_delete_file(entry, keys.of(entry.data_file))
    removed = (entry.data_file for entry in changes.removed)
    return any(index.for_data_file(since, file, keys.of(file)) for file in removed)


class ManifestRewriter:
    """Writes manifests of existing entries, for a snapshot in this transaction or, with the same id, a later one."""

    def __init__(self, transaction: transactions.TableTransaction, snapshot_id: int) -> None:
        self._producer = SnapshotProducer(
            transaction,
            FileChanges(),
            operation=Operation.REPLACE,
            snapshot_id=snapshot_id,
            snapshot_properties={},
            branch=MAIN_BRANCH,
        )

    def rewrite(self, manifests: Sequence[ManifestFile], *, target_size_bytes: int) -> Iterator[ManifestFile]:
        """Rewrite the live entries of one partition spec, sorted by partition, so that readers skip more manifests."""
        producer = self._producer
        entries = sorted(
            (entry for manifest in manifests for entry in read_entries(manifest, producer.io)),
            key=lambda entry: _sortable(entry.data_file.partition),
        )
        remaining = iter(entries)
        for first in remaining:
            with producer.new_manifest_writer(producer.spec(manifests[0].partition_spec_id)) as writer:
                for entry in itertools.chain([first], remaining):
                    writer.existing(entry)
                    if writer.tell() >= target_size_bytes:
                        break
            yield writer.to_manifest_file()

    def discard(self) -> None:
        """Delete the manifests; for a snapshot that definitely was not made."""
        self._producer.discard()


def _sortable(partition: Record) -> tuple[tuple[bool, Any], ...]:
    """A partition as a key to sort by, NULL first."""
    return tuple(
        (value is not None, "" if value is None else value) for value in (partition[at] for at in range(len(partition)))
    )
