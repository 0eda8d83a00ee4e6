"""The door to PyIceberg's private parts; `_pyiceberg_nulls.py` is the only other one.

Written against PyIceberg 0.12 and pinned to it; `tests/contract/test_pyiceberg_contract.py`
fails when something used here changes. Three things are done differently from PyIceberg:

- A transaction remembers its staged metadata instead of applying every update and
  deep-copying the whole metadata about thirty times per write.
- One producer makes one snapshot for any mix of added and removed files, and lets go of
  manifests that hold no live file.
- A transaction commits once. Retrying means planning again on fresh metadata, which is
  the business of `commit.py`.
"""
# ruff: noqa: SLF001 - private parts are what this module is for

import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Literal

import pyarrow as pa
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import (
    ROWS_MIGHT_NOT_MATCH,
    ROWS_MUST_MATCH,
    _InclusiveMetricsEvaluator,
)
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import (
    ArrowScan,
    ParquetFormatWriter,
    _pyarrow_to_schema_without_ids,
    _read_all_delete_files,
    _to_requested_schema,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CreateTableTransaction, FileScanTask, Table, TableProperties, Transaction
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, is_ancestor_of
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    UpdatesAndRequirements,
    ValidatableTableRequirement,
    _apply_table_update,
    _TableMetadataUpdateContext,
)
from pyiceberg.table.update.snapshot import CommitWindow, _ManifestMergeManager, _SnapshotProducer
from pyiceberg.table.update.validate import _validation_history
from pyiceberg.typedef import TableVersion

from floe_dagster_iceberg.errors import CommitConflictError
from floe_dagster_iceberg.table._pyiceberg_nulls import ProvingEvaluator
from floe_dagster_iceberg.table.damaged_files import reading_files
from floe_dagster_iceberg.table.file_changes import FileChanges

# Merging at every call is what asking for a merge commit means; a table may set its own threshold.
MERGE_COMMIT_MIN_MANIFESTS = 2


def _apply_updates(base: TableMetadata, updates: Sequence[TableUpdate]) -> TableMetadata:
    context = _TableMetadataUpdateContext()
    for update in updates:
        base = _apply_table_update(update, base, context)
    return base


class StagedTransaction(Transaction):
    """Staged metadata is worked out once per set of updates."""

    _staged: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates = self._table.metadata, self._updates
        if self._staged is None or self._staged[0] is not base or self._staged[1] is not updates:
            self._staged = (base, updates, _apply_updates(base, updates))
        return self._staged[2]

    @property
    def table(self) -> Table:
        """The table this transaction works on."""
        return self._table

    @property
    def changes_anything(self) -> bool:
        """Whether something is staged."""
        return bool(self._updates)

    def stage(self, updates: Sequence[TableUpdate], requirements: Sequence[TableRequirement] = ()) -> None:
        """Stage updates; all requirements of one call are kept, several of one kind included."""
        self._stage(tuple(updates), tuple(requirements))

    @property
    def manifest_lists(self) -> list[str]:
        """Manifest lists written for the snapshots staged here."""
        return [path for producer in self._snapshot_producers for path in producer._written_manifest_lists]

    def discard_metadata_files(self) -> None:
        """Delete the manifests and manifest lists written for a commit that did not land."""
        for producer in self._snapshot_producers:
            for path in (*producer._written_manifests, *producer._written_manifest_lists):
                with suppress(OSError):
                    producer._io.delete(path)


class TableTransaction(StagedTransaction):
    """Changes to one existing table, committed together, once."""

    def commit_once(self) -> None:
        """Send what is staged to the catalog as one commit, without retrying."""
        requirements = (*self._requirements, AssertTableUUID(uuid=self.table_metadata.table_uuid))
        self._table._do_commit(updates=self._updates, requirements=requirements)


class CreateTransaction(StagedTransaction, CreateTableTransaction):
    """The creation of a table together with its first rows, committed together, once."""

    @classmethod
    def open(
        cls,
        catalog: Catalog,
        identifier: tuple[str, ...],
        schema: Schema,
        spec: PartitionSpec,
        properties: dict[str, str],
    ) -> "CreateTransaction":
        """Stage a new table that exists only here until `commit_once`."""
        staged = catalog.create_table_transaction(identifier, schema, partition_spec=spec, properties=properties)
        return cls(staged._table)  # type: ignore[arg-type]

    def commit_once(self) -> Table:
        """Create the table in the catalog with everything staged, without retrying."""
        self.commit_transaction()
        staged = self._table
        return Table(staged.name(), staged.metadata, staged.metadata_location, staged.io, staged.catalog)


class SnapshotProducer(_SnapshotProducer["SnapshotProducer"]):
    """Makes one snapshot out of file changes."""

    def __init__(
        self,
        transaction: StagedTransaction,
        changes: FileChanges,
        *,
        operation: Operation,
        snapshot_id: int,
        snapshot_properties: dict[str, str],
        branch: str,
        merge_manifests: bool = False,
    ) -> None:
        super().__init__(
            operation, transaction, transaction.table.io, snapshot_properties=snapshot_properties, branch=branch
        )
        # Chosen by the caller and kept over attempts, so that a commit whose answer was lost can be recognised.
        self._snapshot_id = snapshot_id
        self._changes = changes
        self._merge_manifests = merge_manifests
        self._added_data_files = list(changes.added)
        self._deleted_data_files = {entry.data_file for entry in changes.removed}

    def validate_since(self, base_snapshot_id: int | None, *, row_filter: BooleanExpression) -> None:
        """Refuse to replace rows that others changed after the base snapshot.

        Only the filter decides, never the table's isolation level: the removal is planned on what
        the table has become, so rows that nobody here has seen would go with the others. Rewrites
        of files, which change no row, do not matter.

        Raises:
            CommitConflictError: Rows matching the filter came or went.
        """
        table, base = self._transaction._table, base_snapshot_id
        try:
            window = CommitWindow.resolve(self._transaction.table_metadata, base, self._target_branch)
            if window.is_empty() or window.head is None:
                return
            matches = _InclusiveMetricsEvaluator(self.schema(), row_filter)
            changed = any(matches.eval(entry.data_file) for entry in _changes_between(table, window.base, window.head))
        except ValidationException:
            # The base has expired, or the branch was rolled back behind it: nobody knows what was changed.
            changed = True
        if changed:
            raise CommitConflictError(
                ".".join(table.name()), attempts=1, reason="another writer changed rows that are being replaced"
            )

    def validate_removed_files_since(self, base_snapshot_id: int | None) -> None:
        """Refuse to replace files that others deleted, or deleted rows from, after the base snapshot.

        Rows that others added meanwhile do not matter to a rewrite that changes no row.

        Raises:
            CommitConflictError: A removed file is not what it was.
        """
        metadata, table = self._transaction.table_metadata, self._transaction._table
        base, head = metadata.snapshot_by_id(base_snapshot_id or 0), metadata.snapshot_by_name(self._target_branch)
        if head is None or (base is not None and base.snapshot_id == head.snapshot_id):
            return
        # The base has expired, or the branch was rolled back behind it: nobody knows what was deleted.
        is_known = base is not None and is_ancestor_of(head.snapshot_id, base.snapshot_id, metadata)
        if base is None or not is_known or _has_new_deletes(self._changes, base, table.io, self._deleted_data_files):
            raise CommitConflictError(
                ".".join(table.name()), attempts=1, reason="another writer changed files that are being rewritten"
            )

    def _manifests(self) -> list[ManifestFile]:
        # One after the other. Of PyIceberg's threads one may still be writing when another has failed
        # and everything is cleaned up.
        manifests = [
            *self._write_manifest(self._transaction.table_metadata.spec(), self._added_entries()),
            *self._deleted_manifests(),
            *self._existing_manifests(),
        ]
        return self._process_manifests(manifests)

    def _write_manifest(self, spec: PartitionSpec, entries: Sequence[ManifestEntry]) -> Iterator[ManifestFile]:
        if not entries:
            return
        with self.new_manifest_writer(spec) as writer:
            for entry in entries:
                writer.add_entry(entry)
        yield writer.to_manifest_file()

    def _added_entries(self) -> list[ManifestEntry]:
        return [
            ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=file)
            for file in self._added_data_files
        ]

    def _deleted_manifests(self) -> Iterator[ManifestFile]:
        by_spec: dict[int, list[ManifestEntry]] = defaultdict(list)
        for entry in self._deleted_entries():
            by_spec[entry.data_file.spec_id].append(entry)
        for spec_id, entries in by_spec.items():
            yield from self._write_manifest(self.spec(spec_id), entries)

    def _deleted_entries(self) -> list[ManifestEntry]:
        return [_with_status(entry, ManifestEntryStatus.DELETED, self._snapshot_id) for entry in self._changes.removed]

    def _existing_manifests(self) -> list[ManifestFile]:
        manifests = [manifest for manifest in self._changes.carried_over() if _has_live_files(manifest)]
        for manifest, entries in self._changes.rewritten():
            stay = [_with_status(entry, ManifestEntryStatus.EXISTING, entry.snapshot_id) for entry in entries]
            manifests += self._write_manifest(self.spec(manifest.partition_spec_id), stay)
        return manifests

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        if not self._merge_manifests:
            return manifests
        properties = self._transaction.table_metadata.properties
        data = [manifest for manifest in manifests if manifest.content == ManifestContent.DATA]
        deletes = [manifest for manifest in manifests if manifest.content == ManifestContent.DELETES]
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
        merged: list[ManifestFile] = manager.merge_manifests(data) + deletes
        self._delete_all_but({manifest.manifest_path for manifest in merged})
        return merged

    def _delete_all_but(self, needed: set[str]) -> None:
        """Manifests of this commit that were merged into another one are nobody's."""
        for path in [path for path in self._written_manifests if path not in needed]:
            self._written_manifests.remove(path)
            with suppress(OSError):
                self._io.delete(path)

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        if self._operation is not Operation.REPLACE:
            return super()._summary(snapshot_properties or {})
        # PyIceberg knows no replace; its totals are those of an overwrite.
        self._operation = Operation.OVERWRITE
        summary = super()._summary(snapshot_properties or {})
        self._operation = Operation.REPLACE
        return summary.model_copy(update={"operation": Operation.REPLACE})

    def _commit(self) -> UpdatesAndRequirements:
        updates, requirements = super()._commit()
        ref = self._transaction.table_metadata.refs.get(self._target_branch or "")
        if ref is None:
            return updates, requirements
        # PyIceberg would reset the branch's own retention on every write.
        moved = point_ref(self._target_branch or "", ref.model_copy(update={"snapshot_id": self._snapshot_id}))
        return tuple(moved if isinstance(update, SetSnapshotRefUpdate) else update for update in updates), requirements


def _with_status(entry: ManifestEntry, status: ManifestEntryStatus, snapshot_id: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _changes_between(table: Table, base: Snapshot | None, head: Snapshot) -> Iterator[ManifestEntry]:
    """Files that commits after the base added or removed, other than by rewriting them."""
    changing = {Operation.APPEND, Operation.OVERWRITE, Operation.DELETE}
    for content in (ManifestContent.DATA, ManifestContent.DELETES):
        manifests, snapshot_ids = _validation_history(table, base, head, changing, content)
        for manifest in manifests:
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                if entry.snapshot_id in snapshot_ids and entry.status != ManifestEntryStatus.EXISTING:
                    yield entry


def _has_new_deletes(changes: FileChanges, base: Snapshot, io: FileIO, files: Iterable[DataFile]) -> bool:
    """Whether rows of one of the files were deleted after the base.

    PyIceberg's own check counts from the sequence number of the head, and so misses what an earlier
    commit deleted. Equality deletes may mean rows of any partition, so each of them is one too many.
    """
    since, index = base.sequence_number or 0, DeleteFileIndex()
    for manifest in changes.unopened:
        if manifest.content != ManifestContent.DELETES or manifest.sequence_number <= since:
            continue
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
            if (entry.sequence_number or 0) <= since:
                continue
            if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                return True
            index.add_delete_file(entry, entry.data_file.partition)
    return any(index.for_data_file(since, file, file.partition) for file in files)


def _has_live_files(manifest: ManifestFile) -> bool:
    return bool(manifest.has_added_files() or manifest.has_existing_files())


class MetricsMatcher:
    """Tells from column statistics whether all, none or some rows of a file match a filter."""

    def __init__(self, schema: Schema, row_filter: BooleanExpression) -> None:
        self._strict = ProvingEvaluator(schema, row_filter)
        self._inclusive = _InclusiveMetricsEvaluator(schema, row_filter)

    def all_rows_match(self, file: DataFile) -> bool:
        """Whether the statistics prove that every row matches."""
        return bool(self._strict.eval(file) == ROWS_MUST_MATCH)

    def no_row_matches(self, file: DataFile) -> bool:
        """Whether the statistics prove that no row matches."""
        return bool(self._inclusive.eval(file) == ROWS_MIGHT_NOT_MATCH)


def open_parquet_writer(output: OutputFile, schema: Schema, properties: dict[str, str]) -> ParquetFormatWriter:
    """A writer of one Parquet data file whose columns carry the schema's field ids."""
    model = FileFormatFactory.get(FileFormat.PARQUET)
    with warnings.catch_warnings():
        # Row-group bytes are honoured by DataFileWriter, so PyIceberg's "not implemented" would be untrue.
        warnings.filterwarnings("ignore", message=r"Parquet writer option\(s\).*not implemented")
        writer = model.create_writer(output, schema, properties)
    if not isinstance(writer, ParquetFormatWriter):
        raise TypeError(f"PyIceberg's Parquet writer is a {type(writer).__name__}")
    return writer


def bytes_written(writer: ParquetFormatWriter) -> int:
    """Bytes of the file so far, as they are on disk."""
    return 0 if writer._fos is None else int(writer._fos.tell())


def close_quietly(writer: ParquetFormatWriter) -> None:
    """Let go of a writer whose file is about to be deleted."""
    if writer._writer is not None:
        # Or Arrow would try to end the file properly once it is collected, and complain that it cannot.
        writer._writer.is_open = False
    if writer._fos is not None:
        try:
            writer._fos.close()
        except (OSError, ValueError, pa.ArrowException):
            return


def project_batch(batch: pa.RecordBatch, *, batch_schema: Schema, table_schema: Schema) -> pa.RecordBatch:
    """The batch in the table's column order and types, with field ids, missing optional columns filled with NULL."""
    return _to_requested_schema(
        requested_schema=table_schema,
        file_schema=batch_schema,
        batch=batch,
        include_field_ids=True,
        format_model=FileFormatFactory.get(FileFormat.PARQUET),
    )


def arrow_schema_without_ids(schema: pa.Schema, *, format_version: TableVersion) -> Schema:
    """The Iceberg schema an Arrow schema stands for, field ids not assigned yet."""
    return _pyarrow_to_schema_without_ids(schema, format_version=format_version)


def stream_batches(scan: ArrowScan, tasks: Iterable[FileScanTask]) -> Iterator[pa.RecordBatch]:
    """Rows of the tasks, one file after the other, a row group or so in memory at a time."""
    for task in tasks:
        with reading_files(scan._table_metadata.location):
            deletes = _read_all_delete_files(scan._io, [task])
            yield from scan._record_batches_from_scan_tasks_and_deletes([task], deletes)


def point_ref(name: str, ref: SnapshotRef) -> SetSnapshotRefUpdate:
    """An update that makes a branch or tag what `ref` says, retention included."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=ref.snapshot_ref_type,
        snapshot_id=ref.snapshot_id,
        max_ref_age_ms=ref.max_ref_age_ms,
        max_snapshot_age_ms=ref.max_snapshot_age_ms,
        min_snapshots_to_keep=ref.min_snapshots_to_keep,
    )


def ref_assertions(metadata: TableMetadata) -> list[AssertRefSnapshotId]:
    """Requirements that every branch and tag still points where this metadata says."""
    return [AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in metadata.refs.items()]


class _AssertHistory(ValidatableTableRequirement):
    """Snapshots are still there and, if asked for, no branch or tag has come, gone or moved."""

    type: Literal["floe-assert-history"] = "floe-assert-history"
    snapshot_ids: frozenset[int]
    refs: dict[str, SnapshotRef] | None = None

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if base_metadata is None:
            raise CommitFailedException("Requirement failed: current table metadata is missing")
        if self.refs is not None and self.refs != base_metadata.refs:
            raise CommitFailedException("Requirement failed: branches or tags have changed")
        if not self.snapshot_ids <= {snapshot.snapshot_id for snapshot in base_metadata.snapshots}:
            raise CommitFailedException("Requirement failed: snapshots have expired meanwhile")


def history_assertions(
    transaction: StagedTransaction, *, snapshot_ids: Iterable[int], all_refs: bool = False
) -> list[TableRequirement]:
    """What Iceberg's own requirements cannot say; none for catalogs that check requirements on a server.

    Metastore catalogs (SQL, Glue, Hive) check requirements here, on the version that they then
    swap atomically, so this leaves no gap. A REST server knows only the standard ones.
    """
    if not isinstance(transaction.table.catalog, MetastoreCatalog):
        return []
    refs = transaction.table_metadata.refs if all_refs else None
    assertion = _AssertHistory(snapshot_ids=frozenset(snapshot_ids), refs=refs)
    return [assertion]  # type: ignore[list-item]


__all__ = [
    "AddSnapshotUpdate",
    "AssertCurrentSchemaId",
    "AssertRefSnapshotId",
    "CreateTransaction",
    "MetricsMatcher",
    "RemoveSnapshotRefUpdate",
    "RemoveSnapshotsUpdate",
    "SetSnapshotRefUpdate",
    "SnapshotProducer",
    "StagedTransaction",
    "TableTransaction",
    "arrow_schema_without_ids",
    "bytes_written",
    "close_quietly",
    "history_assertions",
    "open_parquet_writer",
    "point_ref",
    "project_batch",
    "ref_assertions",
    "stream_batches",
]
