"""Compaction: rewrites small files, reading ahead while rows are written."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, TypeVar

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot

from floe_dagster_iceberg import models
from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.manifest_reader import read_manifests
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.errors import CommitConflictError, EngineCapabilityError, ValidationError
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget, commit, new_snapshot_id, refresh, refuse_newer_format
from floe_dagster_iceberg.table.commit.refs import head_of
from floe_dagster_iceberg.table.maintenance import Progress, compaction_plan
from floe_dagster_iceberg.table.maintenance.compaction_plan import GroupLimits, RewritePlan, total_bytes
from floe_dagster_iceberg.table.maintenance.last_run import snapshot_properties_of
from floe_dagster_iceberg.table.names import table_name, to_identifier
from floe_dagster_iceberg.table.properties import check_properties
from floe_dagster_iceberg.table.write.delete import read_task, tasks_for
from floe_dagster_iceberg.table.write.uncommitted_files import UncommittedFiles

Item = TypeVar("Item")
Result = TypeVar("Result")

# Writing a table of this size takes about as long as one of a hundredth of it.
_PIECE_BYTES: Final = 32 * 1024 * 1024

# As much as is encoded at once, so that reading need not stop meanwhile; takes a few times that in memory.
_WAITING_BYTES: Final = 32 * 1024 * 1024


def read_ahead(
    read: Callable[[Item], Result], items: Iterable[Item], *, size: Callable[[Item], int], threads: int
) -> Iterator[Result]:
    """Yield the items' results in order; the next ones are read in other threads meanwhile.

    Args:
        read: Reads an item; called in other threads.
        items: The items to read.
        size: Bytes of an item; limits how many results wait.
        threads: How many items are read at once.
    """
    waiting: deque[tuple[Future[Result], int]] = deque()
    waiting_bytes = 0
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for item in items:
            waiting.append((pool.submit(read, item), size(item)))
            waiting_bytes += size(item)
            while len(waiting) > threads and waiting_bytes > _WAITING_BYTES:
                result, taken = waiting.popleft()
                waiting_bytes -= taken
                yield result.result()
        while waiting:
            yield waiting.popleft()[0].result()


def in_larger_pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join consecutive tables with the same schema into larger ones."""
    gathered: list[pa.Table] = []
    for table in tables:
        if gathered and table.schema != gathered[0].schema:
            yield _joined(gathered)
            gathered = []
        gathered.append(table)
        if sum(each.nbytes for each in gathered) >= _PIECE_BYTES:
            yield _joined(gathered)
            gathered = []
    if gathered:
        yield _joined(gathered)


def _joined(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()


def compact(
    table: Table,
    strategy: models.CompactionStrategy,
    budget: CommitBudget,
    *,
    plan: RewritePlan | None = None,
    limits: GroupLimits | None = None,
    groups_per_commit: int | None = None,
    progress: Progress | None = None,
    snapshot_properties: Mapping[str, str] | None = None,
) -> models.MaintenanceResult:
    """Rewrite files without changing a row, and plan again when other writers replace the same files.

    Args:
        table: The table; refreshed in place.
        strategy: How files are arranged.
        budget: How often to retry against other writers.
        plan: What to rewrite; by default planned on the table as given.
        limits: Which files are planned again after a conflict; by default all that are worth rewriting.
        groups_per_commit: File groups per commit; by default all.
        progress: Called after each rewritten file group.
        snapshot_properties: Added to the snapshot summary.

    Raises:
        ValidationError: A sort column is not in the table.
        EngineCapabilityError: The strategy is Z-order, or PyIceberg does not write the table's format version.
        ScanError: A file to rewrite cannot be read.
        CommitConflictError: Other writers kept replacing the files being rewritten; nothing was changed.
    """
    _check(table, strategy)
    started, before = datetime.now(UTC), table.metadata.current_snapshot_id
    rewriting = _Rewriting(table, strategy, budget, progress, snapshot_properties or {})
    rewriting.run(plan, limits or GroupLimits(), groups_per_commit)
    return models.MaintenanceResult.of_work(
        to_identifier(table),
        models.MaintenanceOperation.COMPACTION,
        started_at=started,
        done=bool(rewriting.removed),
        snapshot_id_before=before,
        snapshot_id_after=table.metadata.current_snapshot_id,
        files_removed=len(rewriting.removed),
        bytes_removed=total_bytes(rewriting.removed),
        files_added=len(rewriting.added),
        bytes_added=total_bytes(rewriting.added),
    )


class _FilesChangedError(Exception):
    """Another writer changed the files being rewritten, so that they have to be planned again."""


def _check(table: Table, strategy: models.CompactionStrategy) -> None:
    name = table_name(table)
    refuse_newer_format(name, table.metadata.format_version)
    check_properties(table.metadata.properties, name)
    if strategy.strategy_type is models.CompactionStrategyType.Z_ORDER:
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


@dataclass
class _Rewriting:
    """One compaction, with the files it has removed and added so far."""

    table: Table
    strategy: models.CompactionStrategy
    budget: CommitBudget
    progress: Progress | None
    snapshot_properties: Mapping[str, str]
    removed: list[DataFile] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)

    def run(self, plan: RewritePlan | None, limits: GroupLimits, groups_per_commit: int | None) -> None:
        """Rewrite and commit; batches committed before a conflict stay, the next run does the rest."""
        attempt = 0
        while True:
            if plan is None:
                left = None if limits.max_bytes is None else limits.max_bytes - total_bytes(self.removed)
                plan = compaction_plan.plan_rewrite(self.table, self.strategy, replace(limits, max_bytes=left))
            try:
                for batch in plan.batches(groups_per_commit):
                    self._commit(batch)
                    attempt = 0
            except _FilesChangedError as changed:
                attempt += 1
                if attempt <= self.budget.retries:
                    refresh(self.table)
                    plan = None
                    continue
                if not self.removed:
                    raise CommitConflictError(
                        table_name(self.table), attempts=attempt, reason=str(changed)
                    ) from changed
            except CommitConflictError:
                if not self.removed:
                    raise
            return

    def _commit(self, plan: RewritePlan) -> None:
        table, name, started = self.table, table_name(self.table), time.perf_counter()
        removed = [file for group in plan.groups for file in group.files]
        with UncommittedFiles(name, table.io) as files, translate_errors(table.catalog.name, table=name):
            added = self._write(plan, files)
            seconds = time.perf_counter() - started
            properties = snapshot_properties_of(models.MaintenanceOperation.COMPACTION, seconds=seconds)
            stage = _Replacement(table, plan, removed, added, files, properties | dict(self.snapshot_properties))
            commit(
                table, stage, budget=self.budget, snapshot_id=stage.snapshot_id, on_lost_response=files.response_lost
            )
        self.removed += removed
        self.added += added

    def _write(self, plan: RewritePlan, files: UncommittedFiles) -> list[DataFile]:
        tasks = _scan_tasks(plan, self.table.io)

        def write(group: compaction_plan.FileGroup) -> list[DataFile]:
            # One writer per group, so that partitions do not wait for each other. Within a group files are
            # written one after the other: side by side, each would end as a small file.
            target = self.strategy.target_file_size_bytes
            out = files.open_writer(plan.metadata, target_file_size_bytes=target, side_by_side=False)
            of_group = [tasks[file.file_path] for file in group.files]
            for rows in _read_group(plan.metadata, self.table.io, of_group, self.strategy, threads=cores // workers):
                out.write(ArrowRows(rows))
            return out.finish()

        added: list[DataFile] = []
        cores = min(self.strategy.max_concurrent_file_group_rewrites, os.cpu_count() or 1)
        groups = compaction_plan.split_for_workers(plan.groups, self.strategy, among=cores)
        workers = min(len(groups), cores)
        with ThreadPoolExecutor(max_workers=workers) as threads:
            for number, written in enumerate(threads.map(write, groups), start=1):
                added += written
                if self.progress is not None:
                    self.progress(f"{number} of {len(groups)} file groups rewritten")
        return added


def _scan_tasks(plan: RewritePlan, io: FileIO) -> Mapping[str, FileScanTask]:
    """Scan tasks of a plan's files by path, with the delete files that apply to them."""
    files = [file for group in plan.groups for file in group.files]
    if plan.base is None or not any(each.content == ManifestContent.DELETES for each in plan.changes.unopened):
        return {file.file_path: FileScanTask(file) for file in files}
    return {task.file.file_path: task for task in tasks_for(plan.metadata, io, plan.base, files, AlwaysTrue())}


def _read_group(
    metadata: TableMetadata,
    io: FileIO,
    tasks: Sequence[FileScanTask],
    strategy: models.CompactionStrategy,
    *,
    threads: int,
) -> Iterator[pa.Table]:
    """Rows of a group: a few files at a time, or all at once if they are sorted."""
    tables = read_ahead(
        lambda task: read_task(metadata, io, task),
        tasks,
        size=lambda task: task.file.file_size_in_bytes,
        threads=threads,
    )
    if strategy.sort_columns:
        # Other engines' files may be read as string, ours as large_string.
        rows = pa.concat_tables(tables, promote_options="permissive")
        yield rows.sort_by([(column, "ascending") for column in strategy.sort_columns])
    else:
        yield from in_larger_pieces(tables)


@dataclass(frozen=True)
class _Replacement:
    """Replaces files in the newest version of the table."""

    table: Table
    plan: RewritePlan
    removed: Sequence[DataFile]
    added: Sequence[DataFile]
    files: UncommittedFiles
    snapshot_properties: dict[str, str]
    snapshot_id: int = field(default_factory=new_snapshot_id)

    def __call__(self, transaction: TableTransaction) -> None:
        self.files.next_attempt()
        metadata = transaction.table_metadata
        if metadata.spec() != self.plan.metadata.spec():
            raise _FilesChangedError("another writer changed the partitioning")
        head = head_of(metadata, MAIN_BRANCH, table_name(self.table))
        changes = self._changes_to(head)
        if len(changes.removed) < len(self.removed):
            # Manifests may have been merged meanwhile, which does not change the files.
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
            snapshot_properties=self.snapshot_properties,
            branch=MAIN_BRANCH,
        )
        try:
            producer.validate_removed_files_since(self.plan.base_id)
        except CommitConflictError as conflict:
            raise _FilesChangedError(conflict.reason) from conflict
        producer.commit()
        self.files.send()

    def _changes_to(self, head: Snapshot | None) -> FileChanges:
        """Reuse the entries of manifests that the plan has read: manifests never change, and a retry must be quick."""
        changes = FileChanges()
        opened = {manifest.manifest_path: entries for manifest, entries in self.plan.changes.opened}
        for manifest in read_manifests(head, self.table.io):
            if (entries := opened.get(manifest.manifest_path)) is None:
                changes.unopened.append(manifest)
            else:
                changes.opened.append((manifest, entries))
        changes.remove(self.removed)
        return changes
