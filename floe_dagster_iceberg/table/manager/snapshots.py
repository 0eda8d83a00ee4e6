"""The table manager's operations on snapshots, branches and tags, and compaction."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType

from floe_dagster_iceberg._pyiceberg.rest_catalog import FloeRestCatalog
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import (
    CompactionStrategy,
    ExpiryPolicy,
    Guardrail,
    MaintenanceResult,
    SnapshotInfo,
    TableState,
)
from floe_dagster_iceberg.table.commit import refs as ref_changes
from floe_dagster_iceberg.table.commit.commit import commits_metadata
from floe_dagster_iceberg.table.commit.refs import to_milliseconds, to_timestamp_ms
from floe_dagster_iceberg.table.joint_publication import PublicationResult, publish_branch_of
from floe_dagster_iceberg.table.maintenance.compaction import compact
from floe_dagster_iceberg.table.maintenance.expire_files import expire
from floe_dagster_iceberg.table.maintenance.expiry import Retention, newest_first
from floe_dagster_iceberg.table.manager.base import MetadataSession, table_attributes
from floe_dagster_iceberg.table.names import TableRef, table_name, to_identifier
from floe_dagster_iceberg.table.observation import ObservedTable, observe_table
from floe_dagster_iceberg.table.publication import publish
from floe_dagster_iceberg.telemetry import annotate, attributes as attrs, set_maintenance_attributes, traced

_MILLISECONDS_PER_DAY = 24 * 60 * 60 * 1000


def _tables_attributes(tables: Sequence[TableRef], *_: object, **__: object) -> dict[str, int]:
    return {attrs.TABLES: len(tables)}


class SnapshotOperations(MetadataSession):
    """A table's history: listed, named, rolled back, expired; and its files, compacted."""

    @traced("list_snapshots", table_attributes)
    def list_snapshots(self, table: TableRef, limit: int | None = None) -> list[SnapshotInfo]:
        """All snapshots that have not expired, newest first, those of branches and those rolled back included.

        Args:
            table: The table, in its newest version even if a handle is given.
            limit: At most this many.

        Raises:
            NoSuchTableError: There is no such table.
            ValidationError: The limit is below 1.
        """
        identifier = to_identifier(table)
        if limit is not None and limit < 1:
            raise ValidationError(
                f"limit for the snapshots of '{identifier}' must be at least 1, got {limit}.", table=identifier
            )
        snapshots = newest_first(self._load(identifier).metadata)
        return [SnapshotInfo.from_pyiceberg_snapshot(snapshot) for snapshot in snapshots[:limit]]

    @traced("get_current_snapshot", table_attributes)
    def get_current_snapshot(self, table: TableRef) -> SnapshotInfo | None:
        """The snapshot that readers of main see now; None for a table that was never written.

        Raises:
            NoSuchTableError: There is no such table.
        """
        snapshot = self._load(to_identifier(table)).metadata.current_snapshot()
        return None if snapshot is None else SnapshotInfo.from_pyiceberg_snapshot(snapshot)

    @traced("observe", table_attributes)
    def observe(self, table: TableRef, since: TableState | None = None) -> ObservedTable:
        """Look at a table: its data version, counts, last writer, and what has changed since an earlier look.

        Reads metadata only. Over REST that is one request for the newest snapshots, and a second one for the others
        if they are needed to tell what has changed.

        Args:
            table: The table; a handle is looked at in the version that it holds.
            since: `observation.state` of an earlier look.

        Raises:
            NoSuchTableError: There is no such table, or it is a view.
        """
        identifier, catalog = to_identifier(table), self.catalog
        if isinstance(table, Table) or not isinstance(catalog, FloeRestCatalog):
            return observe_table(self._load(table), since, None)
        newest = self._load(identifier, catalog.load_newest_snapshots)
        return observe_table(newest, since, lambda: self._load(identifier))

    @traced("rollback_to_snapshot", table_attributes)
    def rollback_to_snapshot(self, table: TableRef, snapshot_id: int) -> SnapshotInfo:
        """Make an earlier snapshot of main the current one again, in one commit.

        Nothing is deleted: later snapshots stay listed and readable until they expire. Commits
        that land while this runs are rolled back as well. Running it again changes nothing.

        Raises:
            SnapshotNotFoundError: There is no such snapshot.
            RollbackError: It is not part of main's history.
            CommitConflictError: Other writers won more often than the budget allows.
        """
        loaded = self._load_newest(table)
        stage = partial(ref_changes.roll_back, table=table_name(loaded), snapshot_id=snapshot_id)
        return SnapshotInfo.from_pyiceberg_snapshot(self._change(loaded, stage))

    @traced("rollback_to_timestamp", table_attributes)
    def rollback_to_timestamp(self, table: TableRef, timestamp: datetime | int) -> SnapshotInfo:
        """Roll main back to the newest snapshot of its history that was committed by a timestamp.

        Args:
            table: The table.
            timestamp: The timestamp (inclusive), with a time zone or in milliseconds since 1970 UTC.

        Raises:
            ValidationError: The timestamp has no time zone.
            RollbackError: Main's history begins later, or has expired up to a later timestamp.
            CommitConflictError: Other writers won more often than the budget allows.
        """
        name = str(to_identifier(table))
        if isinstance(timestamp, datetime):
            at_ms, shown = to_timestamp_ms(timestamp, argument="timestamp", table=name), timestamp.isoformat()
        else:
            at_ms, shown = timestamp, f"{timestamp} ms"
        stage = partial(ref_changes.roll_back_in_time, table=name, timestamp_ms=at_ms, timestamp=shown)
        return SnapshotInfo.from_pyiceberg_snapshot(self._change(self._load_newest(table), stage))

    @traced("create_tag", table_attributes)
    def create_tag(
        self, table: TableRef, name: str, snapshot_id: int | None = None, *, max_ref_age: timedelta | None = None
    ) -> SnapshotInfo:
        """Name a snapshot for good; it does not expire while the tag is there.

        Args:
            table: The table.
            name: The tag; no branch or tag may have it already.
            snapshot_id: The snapshot; the newest of main if not given.
            max_ref_age: Age of the snapshot at which the tag goes with the next expiry; never if not given.

        Returns:
            The snapshot that the tag names.

        Raises:
            ValidationError: The name is taken, or the table has no snapshot yet.
            SnapshotNotFoundError: There is no such snapshot.
        """
        tag = SnapshotRef(
            snapshot_id=0,
            snapshot_ref_type=SnapshotRefType.TAG,
            min_snapshots_to_keep=None,
            max_snapshot_age_ms=None,
            max_ref_age_ms=to_milliseconds(max_ref_age, argument="max_ref_age", table=str(to_identifier(table))),
        )
        return self._create_ref(table, name, snapshot_id, tag)

    @traced("create_branch", table_attributes)
    def create_branch(
        self,
        table: TableRef,
        name: str,
        snapshot_id: int | None = None,
        *,
        max_ref_age: timedelta | None = None,
        max_snapshot_age: timedelta | None = None,
        min_snapshots_to_keep: int | None = None,
    ) -> SnapshotInfo:
        """Begin a branch at a snapshot; writes name it, and `fast_forward` publishes it.

        Args:
            table: The table.
            name: The branch; no branch or tag may have it already.
            snapshot_id: Where it begins; at the newest snapshot of main if not given.
            max_ref_age: Age of its newest snapshot at which the branch goes with the next expiry.
            max_snapshot_age: Age at which its own snapshots expire, instead of the table's.
            min_snapshots_to_keep: Newest snapshots of it that stay, instead of the table's number.

        Returns:
            The snapshot at which the branch begins.

        Raises:
            ValidationError: The name is taken, the table has no snapshot yet, or a retention is not positive.
            SnapshotNotFoundError: There is no such snapshot.
        """
        identifier = str(to_identifier(table))
        branch = SnapshotRef(
            snapshot_id=0,
            snapshot_ref_type=SnapshotRefType.BRANCH,
            min_snapshots_to_keep=_positive(min_snapshots_to_keep, "min_snapshots_to_keep", identifier),
            max_snapshot_age_ms=to_milliseconds(max_snapshot_age, argument="max_snapshot_age", table=identifier),
            max_ref_age_ms=to_milliseconds(max_ref_age, argument="max_ref_age", table=identifier),
        )
        return self._create_ref(table, name, snapshot_id, branch)

    @traced("remove_ref", table_attributes)
    def remove_ref(self, table: TableRef, name: str) -> None:
        """Remove a branch or tag; its snapshots stay until they expire.

        Raises:
            ValidationError: It is main.
            SnapshotNotFoundError: There is no such branch or tag.
        """
        loaded = self._load_newest(table)
        self._change(loaded, partial(ref_changes.remove_ref, table=table_name(loaded), name=name))

    @traced("fast_forward", table_attributes)
    def fast_forward(self, table: TableRef, branch: str, to: str) -> SnapshotInfo:
        """Move a branch to where another branch or tag stands, such as main to a staging branch.

        Only forward: the branch must hold nothing that the other lacks. It is a compare-and-set of
        both, so no commit gets lost that lands on one of them meanwhile.

        Args:
            table: The table.
            branch: The branch to move.
            to: The branch or tag to move it to.

        Returns:
            The snapshot where the branch stands now.

        Raises:
            ValidationError: The branch holds commits that the other lacks, or is a tag.
            SnapshotNotFoundError: One of the two does not exist.
        """
        loaded = self._load_newest(table)
        stage = partial(ref_changes.fast_forward, table=table_name(loaded), branch=branch, to=to)
        return SnapshotInfo.from_pyiceberg_snapshot(self._change(loaded, stage))

    @traced("publish_branch", table_attributes)
    def publish_branch(self, table: TableRef, branch: str, *, into: str = MAIN_BRANCH) -> SnapshotInfo:
        """Put the changes of a branch onto another one, in one commit, and remove the branch.

        If the other branch has not moved since this one began, it moves to it; several commits become one. If it has
        moved, the changes are repeated on top: appended files are added again, replaced files are replaced. No file is
        read or written.

        Args:
            table: The table.
            branch: The branch to publish.
            into: The branch that gets its changes.

        Returns:
            The snapshot where the other branch stands now.

        Raises:
            SnapshotNotFoundError: One of the two does not exist.
            CommitConflictError: Rows that the branch replaced have changed on the other one.
            EngineCapabilityError: The changes have to be repeated, and PyIceberg cannot do that.
            ValidationError: One of the two is a tag, or the snapshot where the branch began has expired.
        """
        loaded = self._load_newest(table)
        published = publish(loaded, branch=branch, target=into, budget=self.budget, through=self._handover)
        return SnapshotInfo.from_pyiceberg_snapshot(published)

    @traced("publish_branches", _tables_attributes)
    def publish_branches(
        self, tables: Sequence[TableRef], branch: str, *, into: str = MAIN_BRANCH
    ) -> PublicationResult:
        """Publish a branch of several tables at once, as `publish_branch` does for one, and remove it from them.

        All tables move or none, in one transaction of a SQL catalog or one request to a REST server. Other catalogs
        move one table after the other: the result says so, and after a failure the same call for the tables that
        still have the branch completes it.

        Args:
            tables: The tables; each has the branch.
            branch: The branch.
            into: The branch that gets its changes.

        Raises:
            SnapshotNotFoundError: A table has no such branch; nothing was changed.
            CommitConflictError: A table has changed rows that its branch replaced; nothing was changed.
            CommitOutcomeUnknownError: The catalog became unreachable: all tables are published, or none.
            WriteError: The catalog cannot publish tables at once, and some of them are published.
        """
        loaded = [self._load_newest(table) for table in tables]
        return publish_branch_of(loaded, branch, into, budget=self.budget, through=self._handover)

    @traced("manage_snapshots", table_attributes)
    def manage_snapshots(self, table: TableRef) -> "ManagedSnapshots":
        """All operations on one table's history, without naming the table each time.

        Raises:
            NoSuchTableError: There is no such table.
        """
        return ManagedSnapshots(self, self._load(table))

    @traced("expire_snapshots", table_attributes)
    def expire_snapshots(
        self,
        table: TableRef,
        older_than_days: float | None = None,
        min_snapshots_to_keep: int | None = None,
        *,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        now: datetime | None = None,
        delete_files: bool = True,
    ) -> int:
        """Expire old snapshots and delete the files that only they need, as the maintenance asset does.

        A snapshot expires if it is older than the limit, is not among the newest ones of the table or of any
        branch, and no branch or tag points at it. Branches and tags follow their own retention, and are removed
        past their own `max_ref_age`; main never is. If a branch or tag changes meanwhile, the plan is made again.
        Many snapshots expire in several commits; an interrupted call has expired the oldest ones. Files are deleted
        after the commit that removes their snapshots; a running query of such a snapshot fails. Of a table that only
        Spark can commit to, files are left to the maintenance asset.

        Args:
            table: The table.
            older_than_days: Age in days; the manager's `default_retention_days` if not given.
            min_snapshots_to_keep: Newest snapshots to keep; the manager's setting if not given.
            older_than: A timestamp with a time zone, instead of `older_than_days`.
            retain_last: The same as `min_snapshots_to_keep`.
            now: The timestamp from which ages are counted; the present if not given.
            delete_files: Whether to delete the files; if not, they stay until orphan file removal finds them.

        Returns:
            How many snapshots this call expired.

        Raises:
            ValidationError: Two arguments say the same thing, or one is invalid.
            MaintenanceRefusedError: The table's property gc.enabled is false.
            CommitConflictError: Other writers won more often than the budget allows.
        """
        name = str(to_identifier(table))
        _only_one(name, older_than_days=older_than_days, older_than=older_than)
        _only_one(name, min_snapshots_to_keep=min_snapshots_to_keep, retain_last=retain_last)
        now = now or datetime.now(UTC)
        now_ms = to_timestamp_ms(now, argument="now", table=name)
        if older_than is None:
            days = self.config.default_retention_days if older_than_days is None else older_than_days
            if not 0 <= days < math.inf:
                raise ValidationError(f"older_than_days for '{name}' must be 0 or more days, got {days}.", table=name)
            older_than_ms = now_ms - round(days * _MILLISECONDS_PER_DAY)
        else:
            older_than_ms = to_timestamp_ms(older_than, argument="older_than", table=name)
        keep = min_snapshots_to_keep if retain_last is None else retain_last
        keep = _positive(keep, "The number of snapshots to keep", name) or self.config.min_snapshots_to_keep
        retention = Retention(older_than_ms=older_than_ms, min_snapshots_to_keep=keep, now_ms=now_ms)
        loaded = self._load_newest(table)
        policy = ExpiryPolicy(
            max_age=timedelta(milliseconds=max(0, now_ms - older_than_ms)),
            min_snapshots_to_keep=keep,
            # PyIceberg reads none of the newer formats' manifests, so the files in use are unknown.
            delete_files=delete_files and commits_metadata(loaded),
            # What was asked for by hand is meant so.
            overrides=[Guardrail.EXPIRY_AGE],
        )
        result = expire(loaded, policy, now, self.budget, retention=retention, through=self._handover)
        annotate({attrs.SNAPSHOTS_EXPIRED: result.snapshots_expired, attrs.FILES_REMOVED: result.files_removed})
        return result.snapshots_expired

    @traced("compact_table", table_attributes, report=set_maintenance_attributes)
    def compact_table(self, table: TableRef, strategy: CompactionStrategy | None = None) -> MaintenanceResult:
        """Rewrite files that are too small or too large, in one commit that changes no row.

        Writers are not blocked. Rows that others add meanwhile stay; if others replace the files being rewritten,
        their version wins and the rewrite is planned again.

        Args:
            table: The table.
            strategy: How files are arranged; bin-pack to 128 MiB if not given.

        Raises:
            ValidationError: A sort column is not in the table.
            EngineCapabilityError: Z-order, which only Spark supports.
            ScanError: A file to rewrite cannot be read.
            CommitConflictError: Others kept replacing the files being rewritten.
        """
        return compact(self._load(table), strategy or CompactionStrategy(), self.budget)

    def _create_ref(self, table: TableRef, name: str, snapshot_id: int | None, ref: SnapshotRef) -> SnapshotInfo:
        loaded = self._load_newest(table)
        stage = partial(ref_changes.create_ref, table=table_name(loaded), name=name, snapshot_id=snapshot_id, ref=ref)
        return SnapshotInfo.from_pyiceberg_snapshot(self._change(loaded, stage))


def _positive(number: int | None, argument: str, table: str) -> int | None:
    if number is not None and number < 1:
        raise ValidationError(f"{argument} for '{table}' must be at least 1, got {number}.", table=table)
    return number


def _only_one(table: str, **arguments: object) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if len(given) > 1:
        raise ValidationError(f"{' and '.join(given)} for '{table}' say the same thing. Give one of them.", table=table)


class ManagedSnapshots:
    """Branches, tags, rollback and expiry of one table: the methods of `IcebergTableManager` without the table."""

    def __init__(self, operations: "SnapshotOperations", table: Table) -> None:
        self._operations, self._table = operations, table

    def create_tag(
        self, name: str, snapshot_id: int | None = None, *, max_ref_age: timedelta | None = None
    ) -> SnapshotInfo:
        return self._operations.create_tag(self._table, name, snapshot_id, max_ref_age=max_ref_age)

    def create_branch(
        self,
        name: str,
        snapshot_id: int | None = None,
        *,
        max_ref_age: timedelta | None = None,
        max_snapshot_age: timedelta | None = None,
        min_snapshots_to_keep: int | None = None,
    ) -> SnapshotInfo:
        return self._operations.create_branch(
            self._table,
            name,
            snapshot_id,
            max_ref_age=max_ref_age,
            max_snapshot_age=max_snapshot_age,
            min_snapshots_to_keep=min_snapshots_to_keep,
        )

    def remove_ref(self, name: str) -> None:
        self._operations.remove_ref(self._table, name)

    def fast_forward(self, branch: str, to: str) -> SnapshotInfo:
        return self._operations.fast_forward(self._table, branch, to)

    def publish_branch(self, branch: str, *, into: str = MAIN_BRANCH) -> SnapshotInfo:
        return self._operations.publish_branch(self._table, branch, into=into)

    def rollback_to_snapshot(self, snapshot_id: int) -> SnapshotInfo:
        return self._operations.rollback_to_snapshot(self._table, snapshot_id)

    def rollback_to_timestamp(self, timestamp: datetime | int) -> SnapshotInfo:
        return self._operations.rollback_to_timestamp(self._table, timestamp)

    def expire_snapshots(
        self,
        older_than_days: float | None = None,
        min_snapshots_to_keep: int | None = None,
        *,
        older_than: datetime | None = None,
        retain_last: int | None = None,
        delete_files: bool = True,
    ) -> int:
        return self._operations.expire_snapshots(
            self._table,
            older_than_days,
            min_snapshots_to_keep,
            older_than=older_than,
            retain_last=retain_last,
            delete_files=delete_files,
        )
