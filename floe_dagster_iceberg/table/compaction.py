"""Small files into larger ones, by PyIceberg and Arrow alone; no row changes."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

from floe_dagster_iceberg.errors import (
    CommitConflictError,
    EngineCapabilityError,
    ValidationError,
)
from floe_dagster_iceberg.models import (
    CompactionStrategy,
    CompactionStrategyType,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenanceResult,
    MaintenanceStatus,
)
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table._pyiceberg import SnapshotProducer, TableTransaction
from floe_dagster_iceberg.table._pyiceberg.manifest_reading import read_manifests
from floe_dagster_iceberg.table.arrow_rows import ArrowRows
from floe_dagster_iceberg.table.branches import head_of
from floe_dagster_iceberg.table.commit import CommitBudget, commit, new_snapshot_id, refresh
from floe_dagster_iceberg.table.file_changes import FileChanges
from floe_dagster_iceberg.table.file_groups import FileGroup, GroupLimits, plan_groups, share_out
from floe_dagster_iceberg.table.maintenance_marks import mark_snapshot
from floe_dagster_iceberg.table.names import TableRef, to_identifier
from floe_dagster_iceberg.table.read_ahead import in_larger_pieces, read_ahead
from floe_dagster_iceberg.table.row_removal import read_task, tasks_for
from floe_dagster_iceberg.table.session import CatalogSession, table_attributes
from floe_dagster_iceberg.table.uncommitted import UncommittedFiles
from floe_dagster_iceberg.telemetry import tell_maintenance, traced

Progress = Callable[[str], None]
"""Told what has been done, in words."""


class CompactionOperations(CatalogSession):
    """Rewriting files. Only when asked: the manager never starts it by itself."""

    @traced("compact_table", table_attributes, report=tell_maintenance)
    def compact_table(self, table: TableRef, strategy: CompactionStrategy | None = None) -> MaintenanceResult:
        """Rewrite files that are too small or too large, in one commit that changes no row.

        Writers are not blocked. Rows that others add meanwhile stay; when others replace the very
        files being rewritten, their version wins and the rewrite is planned again.

        Args:
            table: The table.
            strategy: How files are arranged; bin-pack to 128 MiB if not given.

        Raises:
            ValidationError: A sort column is not in the table.
            EngineCapabilityError: Z-order, which only Spark can do.
            CommitConflictError: Others kept replacing the files being rewritten.
        """
        loaded, started, clock = self._load(table), datetime.now(UTC), time.perf_counter()
        before = loaded.metadata.current_snapshot_id
        rewrite = rewrite_files(loaded, strategy or CompactionStrategy(), self._budget)
        return MaintenanceResult(
            table=to_identifier(loaded),
            operation=MaintenanceOperation.COMPACTION,
            engine=MaintenanceEngine.PYICEBERG,
            status=MaintenanceStatus.DONE if rewrite.removed else MaintenanceStatus.SKIPPED,
            started_at=started,
            duration=timedelta(seconds=time.perf_counter() - clock),
            snapshot_id_before=before,
            snapshot_id_after=loaded.metadata.current_snapshot_id,
            files_removed=len(rewrite.removed),
            bytes_removed=rewrite.bytes_removed,
            files_added=len(rewrite.added),
            bytes_added=rewrite.bytes_added,
        )


@dataclass(frozen=True)
class FileRewrite:
    """Data files that took the place of others; none when there was nothing to do."""

    removed: Sequence[DataFile] = ()
    added: Sequence[DataFile] = ()

    @property
    def bytes_removed(self) -> int:
        """Bytes of the files that went."""
        return sum(file.file_size_in_bytes for file in self.removed)

    @property
    def bytes_added(self) -> int:
        """Bytes of the files that came."""
        return sum(file.file_size_in_bytes for file in self.added)


def rewrite_files(
    table: Table,
    strategy: CompactionStrategy,
    budget: CommitBudget,
    *,
    limits: GroupLimits | None = None,
    progress: Progress | None = None,
    snapshot_properties: Mapping[str, str] | None = None,
) -> FileRewrite:
    """Rewrite files in one commit that changes no row; planned again when others replace the same files.

    Args:
        table: The table as last seen; refreshed in place.
        strategy: How files are arranged.
        budget: How often to try against other writers.
        limits: Which files, and how many; all that are worth it if not given.
        progress: Told about each group of files that is written.
        snapshot_properties: Kept in the snapshot.

    Raises:
        ValidationError: A sort column is not in the table.
        EngineCapabilityError: Z-order, which only Spark can do.
        CommitConflictError: Others kept replacing the files being rewritten.
    """
    _check(table, strategy)
    for attempt in range(1, budget.retries + 2):
        try:
            return _Rewriting(
                table, strategy, budget, limits or GroupLimits(), progress, snapshot_properties or {}
            ).run()
        except _FilesChangedError as changed:
            if attempt > budget.retries:
                raise CommitConflictError(".".join(table.name()), attempts=attempt, reason=changed.reason) from changed
            refresh(table)
    raise AssertionError("the last attempt returns or raises")


class _FilesChangedError(Exception):
    """Another writer changed what is being rewritten, so that it has to be rewritten again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _check(table: Table, strategy: CompactionStrategy) -> None:
    name = ".".join(table.name())
    if strategy.strategy_type is CompactionStrategyType.Z_ORDER:
        raise EngineCapabilityError(
            f"Z-order compaction of '{name}' needs Spark. Use strategy sort, or compact with engine='spark'.",
            engine="pyiceberg",
            table=name,
        )
    known = [field.name for field in table.schema().fields]
    if missing := [column for column in strategy.sort_columns if column not in known]:
        raise ValidationError(
            f"Table '{name}' has no column {', '.join(map(repr, missing))} to sort by. It has: {', '.join(known)}.",
            table=name,
        )


@dataclass(frozen=True)
class _Rewriting:
    """One attempt, on the table as it is now."""

    table: Table
    strategy: CompactionStrategy
    budget: CommitBudget
    limits: GroupLimits
    progress: Progress | None
    snapshot_properties: Mapping[str, str]
    started: float = field(default_factory=time.perf_counter)

    def run(self) -> FileRewrite:
        table, name = self.table, ".".join(self.table.name())
        metadata, base = table.metadata, head_of(table.metadata, MAIN_BRANCH, name)
        if base is None:
            return FileRewrite()
        with UncommittedFiles(name, table.io) as files, translated(table.catalog.name, table=name):
            live = FileChanges.read(metadata, table.io, base, may_hold=self.limits.row_filter)
            groups = plan_groups(live, metadata, self.strategy, self.limits)
            removed = [file for group in groups for file in group.files]
            if not removed:
                return FileRewrite()
            tasks = {task.file.file_path: task for task in tasks_for(metadata, table.io, base, removed, AlwaysTrue())}
            added = self._write(groups, tasks, files)
            snapshot_id = new_snapshot_id()
            mark = mark_snapshot(MaintenanceOperation.COMPACTION, seconds=time.perf_counter() - self.started)
            mark |= self.snapshot_properties
            opened = {manifest.manifest_path: entries for manifest, entries in live.opened}
            stage = _Replacement(table, base.snapshot_id, metadata, opened, removed, added, snapshot_id, files, mark)
            commit(table, stage, budget=self.budget, snapshot_id=snapshot_id, on_lost_response=files.response_lost)
        return FileRewrite(removed, added)

    def _write(
        self, groups: Sequence[FileGroup], tasks: Mapping[str, FileScanTask], files: UncommittedFiles
    ) -> list[DataFile]:
        def write(group: FileGroup) -> list[DataFile]:
            # One writer a group: what one partition's files become does not wait for another's.
            # Groups are what is done at once; files of one that are side by side would leave small ones at the end.
            target = self.strategy.target_file_size_bytes
            out = files.open_writer(self.table.metadata, target_file_size_bytes=target, side_by_side=False)
            of_group = [tasks[file.file_path] for file in group.files]
            for rows in _read_group(self.table, of_group, self.strategy, threads=cores // workers):
                out.write(ArrowRows(rows))
            return out.finish()

        added: list[DataFile] = []
        cores = min(self.strategy.max_concurrent_file_group_rewrites, os.cpu_count() or 1)
        groups = share_out(groups, self.strategy, among=cores)
        workers = min(len(groups), cores)
        with ThreadPoolExecutor(max_workers=workers) as threads:
            for number, written in enumerate(threads.map(write, groups), start=1):
                added += written
                if self.progress is not None:
                    self.progress(f"{number} of {len(groups)} groups of files rewritten")
        return added


def _read_group(
    table: Table, tasks: Sequence[FileScanTask], strategy: CompactionStrategy, *, threads: int
) -> Iterator[pa.Table]:
    """Rows of a group: a few files at a time, or all at once when they are to be in order."""
    tables = read_ahead(
        lambda task: read_task(table.metadata, table.io, task),
        tasks,
        size=lambda task: task.file.file_size_in_bytes,
        threads=threads,
    )
    if strategy.sort_columns:
        # Files of other engines may come as string where ours come as large_string.
        rows = pa.concat_tables(tables, promote_options="permissive")
        yield rows.sort_by([(column, "ascending") for column in strategy.sort_columns])
    else:
        yield from in_larger_pieces(tables)


@dataclass(frozen=True)
class _Replacement:
    """Puts files in the place of others, on whatever the table has become meanwhile."""

    table: Table
    base_id: int
    written_for: TableMetadata
    opened: Mapping[str, list[ManifestEntry]]
    removed: Sequence[DataFile]
    added: Sequence[DataFile]
    snapshot_id: int
    files: UncommittedFiles
    mark: dict[str, str]

    def __call__(self, transaction: TableTransaction) -> None:
        self.files.next_attempt()
        metadata, name = transaction.table_metadata, ".".join(self.table.name())
        if metadata.spec() != self.written_for.spec():
            raise _FilesChangedError("another writer changed the partitioning")
        head = head_of(metadata, MAIN_BRANCH, name)
        changes = self._changes_to(head)
        if len(changes.removed) < len(self.removed):
            # Somebody may have put manifests together, which leaves the files as they are.
            changes = FileChanges.read(metadata, self.table.io, head, may_hold=AlwaysTrue())
            changes.remove(self.removed)
        if len(changes.removed) < len(self.removed):
            raise _FilesChangedError("another writer replaced files that were being rewritten")
        changes.added = list(self.added)
        producer = SnapshotProducer(
            transaction,
            changes,
            operation=Operation.REPLACE,
            snapshot_id=self.snapshot_id,
            snapshot_properties=self.mark,
            branch=MAIN_BRANCH,
        )
        try:
            producer.validate_removed_files_since(self.base_id)
        except CommitConflictError as conflict:
            raise _FilesChangedError(conflict.reason) from conflict
        producer.commit()
        self.files.send()

    def _changes_to(self, head: Snapshot | None) -> FileChanges:
        """Look only into manifests that were opened before: manifests never change, and a retry must be quick."""
        changes = FileChanges()
        for manifest in read_manifests(head, self.table.io):
            if (entries := self.opened.get(manifest.manifest_path)) is None:
                changes.unopened.append(manifest)
            else:
                changes.opened.append((manifest, entries))
        changes.remove(self.removed)
        return changes
