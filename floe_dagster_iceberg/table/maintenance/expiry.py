"""Which snapshots expire, and the commit that never takes more than was planned.

A plan is made of the branches and tags that the table had when it was read. If one of them is
moved, made or removed before the commit, the plan is void: a snapshot that was free may be the
current one now. So the commit names all of them, and a difference means planning again.

On catalogs whose requirements are checked in this process (SQL, Glue, Hive) that holds without a
gap. A REST server can check where known branches and tags must stand, but not that no other may
have appeared: a tag made on an expiring snapshot within the
milliseconds between the plan and the commit goes with it. `lost_refs.py` brings it back. No file is deleted here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableUpdate,
)

from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, history_assertions, history_of, ref_assertions
from floe_dagster_iceberg.errors import MaintenanceRefusedError
from floe_dagster_iceberg.models import Guardrail

MAX_SNAPSHOTS_PER_COMMIT = 1000
_MAX_REF_AGE_PROPERTY = "history.expire.max-ref-age-ms"


@dataclass(frozen=True)
class Retention:
    """What is kept, unless a branch or tag says otherwise for itself.

    Attributes:
        older_than_ms: Only snapshots committed before this time expire.
        min_snapshots_to_keep: Newest snapshots of the table and of each branch that stay whatever their age.
        now_ms: The time from which the ages of branches, of tags and of their snapshots are counted.
        superseded_before_ms: Snapshots that were the newest of main or of a branch at this time or later
            stay: readers and writers that began then may still need them.
    """

    older_than_ms: int
    min_snapshots_to_keep: int
    now_ms: int
    superseded_before_ms: int | None = None


@dataclass(frozen=True)
class ExpiryPlan:
    """What goes.

    Attributes:
        snapshot_ids: Snapshots, oldest first.
        refs: Branches and tags past their own age.
        is_complete: Whether nothing is left to expire afterwards.
        planned_on: Location of the metadata that the plan was made of, when it was made for a commit.
    """

    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    is_complete: bool
    planned_on: str | None = None

    @property
    def has_work(self) -> bool:
        """Whether anything goes."""
        return bool(self.snapshot_ids or self.refs)

    def expired_from(self, metadata: TableMetadata) -> int:
        """How many of the snapshots are gone from a table's metadata."""
        there = {snapshot.snapshot_id for snapshot in metadata.snapshots}
        return sum(snapshot_id not in there for snapshot_id in self.snapshot_ids)


def plan_expiry(metadata: TableMetadata, retention: Retention, *, max_snapshots: int | None = None) -> ExpiryPlan:
    """Find out what goes, oldest first; at most `max_snapshots` snapshots if given.

    A snapshot goes when it is old, outside the newest ones of the table and of every branch, and
    no branch or tag points at it. A branch with a retention of its own is judged by that.
    """
    refs = {name: ref for name, ref in metadata.refs.items() if not _is_past_its_age(metadata, name, ref, retention)}
    kept = {snapshot.snapshot_id for snapshot in newest_first(metadata)[: retention.min_snapshots_to_keep]}
    kept.update(ref.snapshot_id for ref in refs.values())
    kept.update(_perhaps_in_use(metadata, retention))
    in_branches: set[int] = set()
    for ref in refs.values():
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            history = list(history_of(metadata, metadata.snapshot_by_id(ref.snapshot_id)))
            in_branches.update(snapshot.snapshot_id for snapshot in history)
            kept.update(_kept_of_branch(history, ref, retention))
    kept.update(
        snapshot.snapshot_id
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id not in in_branches and snapshot.timestamp_ms >= retention.older_than_ms
    )
    expired = [one.snapshot_id for one in reversed(newest_first(metadata)) if one.snapshot_id not in kept]
    batch = tuple(expired[:max_snapshots])
    return ExpiryPlan(batch, tuple(sorted(metadata.refs.keys() - refs.keys())), is_complete=len(batch) == len(expired))


def stage_expiry(
    transaction: TableTransaction,
    table: str,
    retention: Retention,
    *,
    max_snapshots: int = MAX_SNAPSHOTS_PER_COMMIT,
    allow_gc_disabled: bool = False,
) -> ExpiryPlan:
    """Stage the expiry of up to `max_snapshots` snapshots; nothing when there are none.

    Raises:
        MaintenanceRefusedError: The table's property gc.enabled is false.
    """
    metadata = transaction.table_metadata
    if not allow_gc_disabled and metadata.properties.get("gc.enabled", "true").lower() == "false":
        raise MaintenanceRefusedError(
            table,
            guardrail=Guardrail.GC_DISABLED.value,
            reason="its property gc.enabled is false, so its snapshots may belong to another table too; "
            "set it to true if they do not",
        )
    plan = plan_expiry(metadata, retention, max_snapshots=max_snapshots)
    updates: list[TableUpdate] = [
        *(RemoveSnapshotRefUpdate(ref_name=name) for name in plan.refs),
        *_remove_partition_statistics(metadata, plan),
        *([RemoveSnapshotsUpdate(snapshot_ids=list(plan.snapshot_ids))] if plan.snapshot_ids else []),
    ]
    if updates:
        transaction.stage(
            updates,
            [
                *ref_assertions(metadata),
                *history_assertions(transaction, snapshot_ids=plan.snapshot_ids, all_refs=True),
            ],
        )
    return replace(plan, planned_on=transaction.table.metadata_location)


def newest_first(metadata: TableMetadata) -> list[Snapshot]:
    """All snapshots in the reverse order of their commits.

    Sequence numbers are that order; clocks of several machines are not. Format version 1 has
    only the clocks, and the order in the metadata for commits of one millisecond.
    """
    in_order = sorted(
        enumerate(metadata.snapshots), key=lambda item: (item[1].sequence_number or 0, item[1].timestamp_ms, item[0])
    )
    return [snapshot for _, snapshot in reversed(in_order)]


def _kept_of_branch(history: list[Snapshot], ref: SnapshotRef, retention: Retention) -> list[int]:
    """The newest part of a branch's history, newest first, down to the last snapshot that has a reason to stay.

    Only clocks that disagree put an old snapshot above a young one. It stays, because without it
    the young one would fall out of the branch.
    """
    keep = ref.min_snapshots_to_keep or retention.min_snapshots_to_keep
    own_age = ref.max_snapshot_age_ms
    oldest_ms = retention.older_than_ms if own_age is None else retention.now_ms - own_age
    young = [position for position, snapshot in enumerate(history) if snapshot.timestamp_ms >= oldest_ms]
    return [snapshot.snapshot_id for snapshot in history[: max(keep, 1 + max(young, default=-1))]]


def _perhaps_in_use(metadata: TableMetadata, retention: Retention) -> Iterator[int]:
    """Snapshots that were superseded too recently. Their own age does not show that."""
    if retention.superseded_before_ms is None:
        return
    for snapshot in metadata.snapshots:
        if snapshot.parent_snapshot_id is not None and snapshot.timestamp_ms >= retention.superseded_before_ms:
            yield snapshot.parent_snapshot_id
    for entry, successor in pairwise(metadata.snapshot_log):
        # After a rollback the successor is an old snapshot; only the log knows when it became the newest again.
        if successor.timestamp_ms >= retention.superseded_before_ms:
            yield entry.snapshot_id


def _is_past_its_age(metadata: TableMetadata, name: str, ref: SnapshotRef, retention: Retention) -> bool:
    if name == MAIN_BRANCH:
        return False
    max_age_ms = ref.max_ref_age_ms or int(metadata.properties.get(_MAX_REF_AGE_PROPERTY, 0))
    head = metadata.snapshot_by_id(ref.snapshot_id)
    return bool(max_age_ms) and head is not None and retention.now_ms - head.timestamp_ms > max_age_ms


def _remove_partition_statistics(
    metadata: TableMetadata, plan: ExpiryPlan
) -> Iterator[RemovePartitionStatisticsUpdate]:
    # PyIceberg forgets them when it removes a snapshot; statistics of columns it does remember.
    gone = set(plan.snapshot_ids)
    for statistics in metadata.partition_statistics:
        if statistics.snapshot_id in gone:
            yield RemovePartitionStatisticsUpdate(snapshot_id=statistics.snapshot_id)
