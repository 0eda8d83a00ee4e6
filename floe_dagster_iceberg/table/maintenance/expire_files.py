"""Expires snapshots, restores branches and tags lost on a REST catalog, and deletes unreferenced files.

A REST server can assert known branches and tags, but not that no new one exists. A tag that is
created on an expiring snapshot between plan and commit is removed with it, without an error. The
table version before the commit still has it, and no file is deleted before that was checked.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetPropertiesUpdate

from floe_dagster_iceberg import errors
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, point_ref
from floe_dagster_iceberg.models import ExpiryPolicy, Guardrail, MaintenanceOperation, MaintenanceResult
from floe_dagster_iceberg.models.maintenance import MIN_EXPIRY_AGE
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.changes.cursors import TableReader
from floe_dagster_iceberg.table.commit.commit import CommitBudget, CommitterProvider, commit
from floe_dagster_iceberg.table.commit.refs import to_timestamp_ms
from floe_dagster_iceberg.table.maintenance import Progress, unreferenced_files
from floe_dagster_iceberg.table.maintenance.expiry import ExpiryPlan, Retention, plan_expiry, stage_expiry
from floe_dagster_iceberg.table.maintenance.last_run import last_run_property
from floe_dagster_iceberg.table.maintenance.unreferenced_files import DeletedFiles, ReadManifests, UnreferencedFiles
from floe_dagster_iceberg.table.names import table_name, to_identifier
from floe_dagster_iceberg.table.storage import StoredFile, list_files


def bring_back_lost_refs(table: Table, plan: ExpiryPlan, budget: CommitBudget) -> bool:
    """Check right after an expiry whether branches or tags were lost with it, and commit those again.

    Args:
        table: The table after the expiry's commit; refreshed in place.
        plan: What the commit removed.
        budget: How often to retry against other writers.

    Returns:
        Whether no branch or tag is missing. False if that is unknown, because another commit came in
        between that only the server can read. Then no file may be deleted.

    Raises:
        IcebergError: Branches or tags are lost and cannot be restored; the message says where they are.
    """
    if not plan.has_work or isinstance(table.catalog, MetastoreCatalog):
        return True
    log = [entry.metadata_file for entry in table.metadata.metadata_log]
    if plan.planned_on not in log:
        return False
    try:
        found = _last_before(table, plan, log[log.index(plan.planned_on) + 1 :])
    except OSError:
        return False
    if found is None:
        return True
    earlier, before = found
    present = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    lost = {name: ref for name, ref in before.refs.items() if ref.snapshot_id not in present and name not in plan.refs}
    if lost:
        name = table_name(table)
        try:
            with translate_errors(table.catalog.name, table=name):
                commit(table, _RestoreRefs(before, lost), budget=budget)
        except errors.FloeStorageError as error:
            raise errors.IcebergError(
                f"Branches or tags of '{name}' were created on a snapshot while it expired, and are lost: "
                f"{', '.join(sorted(lost))}. No file was deleted: register_table() opens the table as it was before, "
                f"from {earlier}.",
                table=name,
            ) from error
    return True


def _last_before(table: Table, plan: ExpiryPlan, versions: Sequence[str]) -> tuple[str, TableMetadata] | None:
    """The last version between the plan and its commit, if there is one; the log may have later ones."""
    last = None
    for location in versions:
        metadata = FromInputFile.table_metadata(table.io.new_input(location))
        if plan.expired_from(metadata) == len(plan.snapshot_ids) and not metadata.refs.keys() & set(plan.refs):
            return last
        last = (location, metadata)
    return last


@dataclass(frozen=True)
class _RestoreRefs:
    """Adds lost snapshots with their branches and tags, except names that are in use again."""

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
        """The lost snapshots with new sequence numbers: catalogs reject numbers that go back.

        Readers take the sequence numbers of files from the manifests, which do not change.
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


_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class ExpiryForecast:
    """What an expiry would remove.

    Attributes:
        plan: The snapshots, branches and tags.
        unreferenced: Files that only they need; none if the policy deletes no files.
        old_metadata: Metadata files no longer in the metadata log.
    """

    plan: ExpiryPlan
    unreferenced: UnreferencedFiles
    old_metadata: UnreferencedFiles

    @property
    def files(self) -> list[StoredFile]:
        return [*self.unreferenced.files, *self.old_metadata.files]


def to_retention(
    policy: ExpiryPolicy,
    now: datetime,
    *,
    table: str,
    readers: Sequence[TableReader] = (),
    idle_environments: frozenset[str] = frozenset(),
) -> Retention:
    """Convert a policy to the retention at a point in time.

    A snapshot that was the newest one within the last day may be in use, however old it is. It expires
    only if the policy overrides the minimum age. `readers` are the incremental readers of the table,
    `idle_environments` those that the policy drops.
    """
    now_ms = to_timestamp_ms(now, argument="now", table=table)
    in_use_since_ms = now_ms - MIN_EXPIRY_AGE // _MILLISECOND
    return Retention(
        older_than_ms=now_ms - policy.max_age // _MILLISECOND,
        min_snapshots_to_keep=policy.min_snapshots_to_keep,
        now_ms=now_ms,
        superseded_before_ms=None if Guardrail.EXPIRY_AGE in policy.overrides else in_use_since_ms,
        read_up_to=()
        if Guardrail.READER_CURSORS in policy.overrides
        else tuple(reader.cursor.snapshot_id for reader in readers),
        unread_since_ms=now_ms - policy.max_cursor_age // _MILLISECOND,
        idle_environments=idle_environments,
        idle_since_ms=0 if policy.max_environment_age is None else now_ms - policy.max_environment_age // _MILLISECOND,
    )


def forecast_expiry(
    table: Table,
    policy: ExpiryPolicy,
    now: datetime,
    read: ReadManifests | None = None,
    *,
    retention: Retention,
) -> ExpiryForecast:
    """Plan an expiry and find the files it would delete; changes nothing. `read` keeps the manifests it reads."""
    metadata, name = table.metadata, table_name(table)
    plan = plan_expiry(metadata, retention)
    if not policy.delete_files:
        nothing = UnreferencedFiles((), unreferenced_files.ReferencedFiles(table.io))
        return ExpiryForecast(plan, nothing, nothing)
    with translate_errors(table.catalog.name, table=name):
        listed = _list_metadata_folder(table)
        after = unreferenced_files.without_snapshots(metadata, plan.snapshot_ids)
        return ExpiryForecast(
            plan,
            unreferenced_files.find_unreferenced(
                plan.snapshot_ids, metadata, after, table.io, listed=listed, read=read
            ),
            unreferenced_files.find_old_metadata(table, listed, older_than=now - policy.max_age),
        )


def expire(
    table: Table,
    policy: ExpiryPolicy,
    now: datetime,
    budget: CommitBudget,
    *,
    retention: Retention | None = None,
    progress: Progress | None = None,
    read: ReadManifests | None = None,
    through: CommitterProvider | None = None,
) -> MaintenanceResult:
    """Expire snapshots, then delete the files that only they needed.

    Each batch of snapshots is one commit, planned again when a branch or tag changes before it.
    An interrupted run has expired the oldest ones; files that it did not delete are orphans.

    Args:
        table: The table; refreshed in place.
        policy: What expires.
        now: The current time.
        budget: How often to retry against other writers.
        retention: What expires, if not what the policy says.
        progress: Called after each batch.
        read: Manifests that were already read.
        through: Commits to a table that PyIceberg cannot commit to.

    Raises:
        MaintenanceRefusedError: The table's property gc.enabled is false.
        CommitConflictError: Other writers committed more often than the budget allows; nothing has expired.
    """
    snapshots, refs, deleted = 0, set[str](), DeletedFiles()
    retention = retention or to_retention(policy, now, table=table_name(table))
    while True:
        try:
            plan, before = _commit_batch(table, policy, now, budget, retention=retention, through=through)
        except errors.CommitConflictError:
            if not snapshots:
                raise
            # What has expired stays expired; the next run does the rest.
            break
        # If refs may be lost, their files may be needed: all files stay, and orphan removal quarantines the others.
        refs_complete = bring_back_lost_refs(table, plan, budget)
        snapshots += plan.expired_from(table.metadata)
        refs.update(plan.refs)
        if policy.delete_files and plan.snapshot_ids and refs_complete:
            with translate_errors(table.catalog.name, table=table_name(table)):
                listed = _list_metadata_folder(table)
                unreferenced = unreferenced_files.find_unreferenced(
                    plan.snapshot_ids, before, table.metadata, table.io, listed=listed, read=read
                )
            deleted += unreferenced_files.delete_unreferenced(table, unreferenced, progress=progress)
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
        files_left=deleted.left,
        snapshots_expired=snapshots,
    )


def delete_old_metadata(
    table: Table, policy: ExpiryPolicy, now: datetime, *, progress: Progress | None = None
) -> DeletedFiles:
    """Delete metadata files that are no longer in the metadata log, if the policy deletes files."""
    if not policy.delete_files:
        return DeletedFiles()
    with translate_errors(table.catalog.name, table=table_name(table)):
        listed = _list_metadata_folder(table)
        old = unreferenced_files.find_old_metadata(table, listed, older_than=now - policy.max_age)
    return unreferenced_files.delete_unreferenced(table, old, progress=progress)


def _commit_batch(
    table: Table,
    policy: ExpiryPolicy,
    now: datetime,
    budget: CommitBudget,
    *,
    retention: Retention,
    through: CommitterProvider | None,
) -> tuple[ExpiryPlan, TableMetadata]:
    """Expire one commit's worth of snapshots; returns what was removed, and the metadata before."""
    name, staged = table_name(table), list[tuple[ExpiryPlan, TableMetadata]]()

    def stage(transaction: TableTransaction) -> None:
        before = transaction.table_metadata
        plan = stage_expiry(
            transaction,
            name,
            retention,
            max_snapshots=policy.max_snapshots_per_commit,
            allow_gc_disabled=Guardrail.GC_DISABLED in policy.overrides,
        )
        if transaction.changes_anything:
            last_run = last_run_property(MaintenanceOperation.SNAPSHOT_EXPIRY, now)
            transaction.stage([SetPropertiesUpdate(updates=last_run)])
        staged.append((plan, before))

    with translate_errors(table.catalog.name, table=name):
        commit(table, stage, budget=budget, through=through)
    return staged[-1]


def _list_metadata_folder(table: Table) -> list[StoredFile]:
    try:
        return list_files(table.io, table.metadata_location.rpartition("/")[0])
    except errors.EngineCapabilityError:
        # Then sizes of manifest lists are unknown and old metadata files stay, which does no harm.
        return []
