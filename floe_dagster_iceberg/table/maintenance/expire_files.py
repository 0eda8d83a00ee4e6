"""Branches and tags that an expiry took along on a REST catalog, found and brought back.

A REST server can be told where known branches and tags must stand, but not that no other may have
appeared. A tag that somebody makes on an expiring snapshot between our plan and our commit goes
with that snapshot, without an error for either side. The version of the table before the commit
still has it, and no file is deleted before it was looked at.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetPropertiesUpdate

from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, point_ref
from floe_dagster_iceberg.errors import CommitConflictError, EngineCapabilityError, FloeStorageError, IcebergError
from floe_dagster_iceberg.models import ExpiryPolicy, Guardrail, MaintenanceOperation, MaintenanceResult
from floe_dagster_iceberg.models.maintenance import MIN_EXPIRY_AGE
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.commit import CommitBudget, commit
from floe_dagster_iceberg.table.commit.refs import to_timestamp_ms
from floe_dagster_iceberg.table.maintenance.expiry import ExpiryPlan, Retention, plan_expiry, stage_expiry
from floe_dagster_iceberg.table.maintenance.last_run import last_run_property
from floe_dagster_iceberg.table.maintenance.unreferenced_files import (
    DeletedFiles,
    ReadManifests,
    ReferencedFiles,
    UnreferencedFiles,
    delete_unreferenced,
    find_old_metadata,
    find_unreferenced,
    list_metadata_folder,
    without_snapshots,
)
from floe_dagster_iceberg.table.names import table_name, to_identifier
from floe_dagster_iceberg.table.storage import FileLocation, StoredFile


class RefCheck(Enum):
    """What a look at the branches and tags right after an expiry showed."""

    COMPLETE = auto()
    """None is lost, or all are back."""
    UNKNOWN = auto()
    """Somebody committed in between, and only the server may read what. No file may be deleted."""


def bring_back_lost_refs(table: Table, plan: ExpiryPlan, budget: CommitBudget) -> RefCheck:
    """Look right after an expiry whether it took branches or tags along, and commit those again.

    Args:
        table: The table as the expiry's commit left it; refreshed in place.
        plan: What the commit took.
        budget: How often to try against other writers.

    Raises:
        IcebergError: Some are lost and could not be brought back; the message says where they are.
    """
    if not plan.has_work or isinstance(table.catalog, MetastoreCatalog):
        return RefCheck.COMPLETE
    log = [entry.metadata_file for entry in table.metadata.metadata_log]
    if plan.planned_on not in log:
        return RefCheck.UNKNOWN
    try:
        found = _last_before(table, plan, log[log.index(plan.planned_on) + 1 :])
    except OSError:
        return RefCheck.UNKNOWN
    if found is None:
        return RefCheck.COMPLETE
    earlier, before = found
    there = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    lost = {name: ref for name, ref in before.refs.items() if ref.snapshot_id not in there and name not in plan.refs}
    if lost:
        name = ".".join(table.name())
        try:
            with translate_errors(table.catalog.name, table=name):
                commit(table, _Return(before, lost), budget=budget)
        except FloeStorageError as error:
            raise IcebergError(
                f"{', '.join(sorted(lost))} of '{name}' appeared while its snapshots expired, on one that did, and "
                "went with it. No file was deleted: register_table() opens the table as it was before, from "
                f"{earlier}.",
                table=name,
            ) from error
    return RefCheck.COMPLETE


def _last_before(table: Table, plan: ExpiryPlan, versions: Sequence[str]) -> tuple[str, TableMetadata] | None:
    """The last version between the plan and its commit, if there is one; the log may go on after the commit."""
    last = None
    for location in versions:
        metadata = FromInputFile.table_metadata(table.io.new_input(location))
        if plan.expired_from(metadata) == len(plan.snapshot_ids) and not metadata.refs.keys() & set(plan.refs):
            return last
        last = (location, metadata)
    return last


@dataclass(frozen=True)
class _Return:
    """Adds snapshots and the names that they had, unless somebody gave the names away meanwhile."""

    before: TableMetadata
    lost: Mapping[str, SnapshotRef]

    def __call__(self, transaction: TableTransaction) -> None:
        metadata = transaction.table_metadata
        names = {name: ref for name, ref in self.lost.items() if name not in metadata.refs}
        if names:
            transaction.stage(
                [
                    *(AddSnapshotUpdate(snapshot=snapshot) for snapshot in self._snapshots(metadata, names)),
                    *(point_ref(name, ref) for name, ref in names.items()),
                ],
                [AssertRefSnapshotId(ref=name, snapshot_id=None) for name in names],
            )

    def _snapshots(self, metadata: TableMetadata, names: Mapping[str, SnapshotRef]) -> Iterator[Snapshot]:
        """What they were, with the next sequence numbers: catalogs count on, and refuse to count back.

        Readers take the sequence numbers of files from the manifests, which stay as they are.
        """
        number = metadata.next_sequence_number()
        for snapshot_id in sorted({ref.snapshot_id for ref in names.values()}):
            snapshot = self.before.snapshot_by_id(snapshot_id)
            if snapshot is None or metadata.snapshot_by_id(snapshot_id) is not None:
                continue
            again = {"timestamp_ms": time.time_ns() // 1_000_000}
            if metadata.format_version > 1:
                again["sequence_number"] = number
                number += 1
            yield snapshot.model_copy(update=again)


Progress = Callable[[str], None]
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class ExpiryForecast:
    """What an expiry would take.

    Attributes:
        plan: The snapshots, branches and tags.
        unreferenced: Files that only they need, if files are deleted at all.
        old_metadata: Metadata files that the table has forgotten.
    """

    plan: ExpiryPlan
    unreferenced: UnreferencedFiles
    old_metadata: UnreferencedFiles

    @property
    def files(self) -> list[StoredFile]:
        """All files that would go."""
        return [*self.unreferenced.files, *self.old_metadata.files]


def to_retention(policy: ExpiryPolicy, now: datetime, *, table: str) -> Retention:
    """What a policy keeps, counted from a point in time.

    A snapshot that was the newest one within the last day may be in use, however old it is. Only
    overriding the floor of a snapshot's age lets it go.
    """
    now_ms = to_timestamp_ms(now, argument="now", table=table)
    return Retention(
        older_than_ms=now_ms - policy.max_age // _MILLISECOND,
        min_snapshots_to_keep=policy.min_snapshots_to_keep,
        now_ms=now_ms,
        superseded_before_ms=None
        if Guardrail.EXPIRY_AGE in policy.overrides
        else now_ms - MIN_EXPIRY_AGE // _MILLISECOND,
    )


def forecast_expiry(
    table: Table, policy: ExpiryPolicy, now: datetime, read: ReadManifests | None = None
) -> ExpiryForecast:
    """Find out what an expiry would take; changes nothing.

    Args:
        table: The table.
        policy: What expires.
        now: The time from which ages are counted.
        read: Remembers the manifests that are read.
    """
    metadata, name = table.metadata, table_name(table)
    plan = plan_expiry(metadata, to_retention(policy, now, table=name))
    nothing = UnreferencedFiles((), ReferencedFiles(table.io))
    if not policy.delete_files:
        return ExpiryForecast(plan, nothing, nothing)
    with translate_errors(table.catalog.name, table=name):
        listed = _listed(table)
        after = without_snapshots(metadata, plan.snapshot_ids)
        unreferenced = _unreferenced(plan, metadata, after, table, listed=listed, read=read)
        return ExpiryForecast(plan, unreferenced, find_old_metadata(table, listed, older_than=now - policy.max_age))


def expire(
    table: Table,
    policy: ExpiryPolicy,
    now: datetime,
    budget: CommitBudget,
    *,
    progress: Progress | None = None,
    read: ReadManifests | None = None,
) -> MaintenanceResult:
    """Expire snapshots, then delete the files that only they needed.

    Each batch of snapshots is one commit, planned again when a branch or tag changes before it.
    An interrupted run has expired the oldest ones; files that it did not get to are orphans.

    Args:
        table: The table; refreshed in place.
        policy: What expires.
        now: The time from which ages are counted.
        budget: How often to try against other writers.
        progress: Called with a line of text after each batch.
        read: Manifests that were read for the plan.

    Raises:
        MaintenanceRefusedError: The table's property gc.enabled is false.
        CommitConflictError: Other writers won more often than the budget allows; nothing has expired.
    """
    snapshots, refs, deleted = 0, set[str](), DeletedFiles()
    while True:
        batch = _Batch(table, policy, now, read)
        try:
            plan = batch.commit(budget)
        except CommitConflictError:
            if not snapshots:
                raise
            # What has expired stays expired; the rest is for the next run.
            break
        snapshots += plan.expired_from(table.metadata)
        refs.update(plan.refs)
        if policy.delete_files and plan.snapshot_ids:
            deleted += batch.delete_files(plan, progress)
        if progress is not None and plan.snapshot_ids:
            progress(f"{snapshots} snapshots expired")
        if plan.is_complete:
            break
    deleted += delete_old_metadata(table, policy, now, progress=progress)
    return MaintenanceResult.of_work(
        to_identifier(table),
        MaintenanceOperation.SNAPSHOT_EXPIRY,
        started_at=now,
        done=bool(snapshots or refs or deleted.files),
        files_removed=deleted.files,
        bytes_removed=deleted.total_bytes,
        snapshots_expired=snapshots,
    )


def delete_old_metadata(
    table: Table, policy: ExpiryPolicy, now: datetime, *, progress: Progress | None = None
) -> DeletedFiles:
    """Delete metadata files that the table has forgotten, if the policy deletes files at all."""
    if not policy.delete_files:
        return DeletedFiles()
    with translate_errors(table.catalog.name, table=table_name(table)):
        old = find_old_metadata(table, _listed(table), older_than=now - policy.max_age)
    return delete_unreferenced(table, old, progress=progress)


class _Batch:
    """One commit's worth of snapshots."""

    def __init__(self, table: Table, policy: ExpiryPolicy, now: datetime, read: ReadManifests | None) -> None:
        self._table, self._policy, self._now, self._read = table, policy, now, read
        self._planned: tuple[ExpiryPlan, TableMetadata] | None = None
        self._refs = RefCheck.UNKNOWN

    def commit(self, budget: CommitBudget) -> ExpiryPlan:
        with translate_errors(self._table.catalog.name, table=table_name(self._table)):
            commit(self._table, self._stage, budget=budget)
        plan, _ = self._landed()
        self._refs = bring_back_lost_refs(self._table, plan, budget)
        return plan

    def delete_files(self, plan: ExpiryPlan, progress: Progress | None) -> DeletedFiles:
        _, before = self._landed()
        table = self._table
        if self._refs is RefCheck.UNKNOWN:
            # They may be needed. Otherwise they are orphans, and wait in quarantine before they are deleted.
            return DeletedFiles()
        with translate_errors(table.catalog.name, table=table_name(table)):
            unreferenced = _unreferenced(plan, before, table.metadata, table, listed=_listed(table), read=self._read)
        return delete_unreferenced(table, unreferenced, progress=progress)

    def _stage(self, transaction: TableTransaction) -> None:
        metadata, name = transaction.table_metadata, table_name(self._table)
        plan = stage_expiry(
            transaction,
            name,
            to_retention(self._policy, self._now, table=name),
            max_snapshots=self._policy.max_snapshots_per_commit,
            allow_gc_disabled=Guardrail.GC_DISABLED in self._policy.overrides,
        )
        if transaction.changes_anything:
            mark = last_run_property(MaintenanceOperation.SNAPSHOT_EXPIRY, self._now.astimezone(UTC))
            transaction.stage([SetPropertiesUpdate(updates=mark)])
        self._planned = (plan, metadata)

    def _landed(self) -> tuple[ExpiryPlan, TableMetadata]:
        if self._planned is None:
            raise AssertionError("a commit stages at least once")
        return self._planned


def _unreferenced(
    plan: ExpiryPlan,
    before: TableMetadata,
    after: TableMetadata,
    table: Table,
    *,
    listed: list[StoredFile],
    read: ReadManifests | None,
) -> UnreferencedFiles:
    ids = set(plan.snapshot_ids)
    gone = [snapshot for snapshot in before.snapshots if snapshot.snapshot_id in ids]
    sizes = {FileLocation.of(file.location): file.size_bytes for file in listed}
    return find_unreferenced(gone, before, after, table.io, sizes=sizes, read=read)


def _listed(table: Table) -> list[StoredFile]:
    try:
        return list_metadata_folder(table)
    except EngineCapabilityError:
        # Then sizes of manifest lists are unknown and forgotten metadata files stay, which does no harm.
        return []
