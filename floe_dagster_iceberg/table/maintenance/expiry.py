"""Plans which snapshots expire, and stages their removal; deletes no file.

A plan depends on the branches and tags of the table. If one of them is moved, created or removed
before the commit, an expiring snapshot may be needed again. So the commit asserts all of them, and
a difference means planning again.

Catalogs whose requirements are checked in this process (SQL, Glue, Hive) leave no gap. A REST
server can assert known branches and tags, but not that no new one exists: a tag created on an
expiring snapshot in the milliseconds between plan and commit is lost. `bring_back_lost_refs` in
`expire_files.py` restores it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from pyiceberg.table import update
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, history_assertions, history_of, ref_assertions
from floe_dagster_iceberg.environments import environment_of
from floe_dagster_iceberg.errors import MaintenanceRefusedError
from floe_dagster_iceberg.models import Guardrail
from floe_dagster_iceberg.plugins.base import deletes_files
from floe_dagster_iceberg.table.changes.cursors import newest_cursors

MAX_SNAPSHOTS_PER_COMMIT = 1000
_MAX_REF_AGE_PROPERTY = "history.expire.max-ref-age-ms"


@dataclass(frozen=True)
class Retention:
    """Which snapshots are kept, unless a branch or tag has its own retention.

    Attributes:
        older_than_ms: Only snapshots committed before this time expire.
        min_snapshots_to_keep: Newest snapshots of the table and of each branch that are always kept.
        now_ms: The current time, for the retention of branches and tags.
        superseded_before_ms: Snapshots that were the newest of main or of a branch at this time or later
            are kept: readers and writers that started then may still need them.
        read_up_to: Snapshots up to which incremental readers have read the table. They and all later ones are kept.
        unread_since_ms: Unless the reader has left changes unread since before this time. What an environment needs
            to be published is kept unless its branch was last written before this time.
        idle_environments: Environments whose branches are removed.
        idle_since_ms: Unless a branch was written at this time or later, after all.
    """

    older_than_ms: int
    min_snapshots_to_keep: int
    now_ms: int
    superseded_before_ms: int | None = None
    read_up_to: tuple[int, ...] = ()
    unread_since_ms: int = 0
    idle_environments: frozenset[str] = frozenset()
    idle_since_ms: int = 0


@dataclass(frozen=True)
class ExpiryPlan:
    """Snapshots, branches and tags to remove.

    Attributes:
        snapshot_ids: Snapshots, oldest first.
        refs: Branches and tags past their maximum age.
        is_complete: Whether nothing is left to expire afterwards.
        planned_on: Location of the metadata it was planned on, if it was planned for a commit.
    """

    snapshot_ids: tuple[int, ...]
    refs: tuple[str, ...]
    is_complete: bool
    planned_on: str | None = None

    @property
    def has_work(self) -> bool:
        return bool(self.snapshot_ids or self.refs)

    def expired_from(self, metadata: TableMetadata) -> int:
        """How many of the snapshots are no longer in the metadata."""
        present = {snapshot.snapshot_id for snapshot in metadata.snapshots}
        return sum(snapshot_id not in present for snapshot_id in self.snapshot_ids)


def plan_expiry(metadata: TableMetadata, retention: Retention, *, max_snapshots: int | None = None) -> ExpiryPlan:
    """Plan the expiry of up to `max_snapshots` snapshots, oldest first; by default of all.

    A snapshot expires when it is old, not among the newest of the table or of a branch, and no
    branch or tag points at it. A branch's own retention takes precedence.
    """
    refs = {name: ref for name, ref in metadata.refs.items() if not _is_past_its_age(metadata, name, ref, retention)}
    kept = {snapshot.snapshot_id for snapshot in newest_first(metadata)[: retention.min_snapshots_to_keep]}
    kept.update(ref.snapshot_id for ref in refs.values())
    kept.update(_perhaps_in_use(metadata, retention))
    kept.update(_needed_by_readers(metadata, retention))
    kept.update(_needed_by_environments(metadata, refs, retention))
    # Without them, it would be unknown how far this table has read others.
    kept.update(snapshot.snapshot_id for _, snapshot in newest_cursors(metadata).values())
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
    """Stage the expiry of up to `max_snapshots` snapshots; nothing if there are none.

    Raises:
        MaintenanceRefusedError: The table's property gc.enabled is false.
    """
    metadata = transaction.table_metadata
    if not allow_gc_disabled and not deletes_files(metadata.properties):
        raise MaintenanceRefusedError(
            table,
            guardrail=Guardrail.GC_DISABLED.value,
            reason="its property gc.enabled is false, so another table may use its snapshots too; "
            "set it to true if none does",
        )
    plan = plan_expiry(metadata, retention, max_snapshots=max_snapshots)
    updates: list[update.TableUpdate] = [update.RemoveSnapshotRefUpdate(ref_name=name) for name in plan.refs]
    # PyIceberg removes column statistics together with their snapshot, but not partition statistics.
    updates += [
        update.RemovePartitionStatisticsUpdate(snapshot_id=statistics.snapshot_id)
        for statistics in metadata.partition_statistics
        if statistics.snapshot_id in plan.snapshot_ids
    ]
    if plan.snapshot_ids:
        updates.append(update.RemoveSnapshotsUpdate(snapshot_ids=list(plan.snapshot_ids)))
    if updates:
        history = history_assertions(transaction, snapshot_ids=plan.snapshot_ids, all_refs=True)
        transaction.stage(updates, [*ref_assertions(metadata), *history])
    return replace(plan, planned_on=transaction.table.metadata_location)


def newest_first(metadata: TableMetadata) -> list[Snapshot]:
    """Sort snapshots by commit, newest first.

    Sequence numbers give that order, the clocks of several machines do not. Format version 1 has only
    timestamps, and the order in the metadata for commits within a millisecond.
    """
    in_order = sorted(
        enumerate(metadata.snapshots), key=lambda item: (item[1].sequence_number or 0, item[1].timestamp_ms, item[0])
    )
    return [snapshot for _, snapshot in reversed(in_order)]


def _kept_of_branch(history: list[Snapshot], ref: SnapshotRef, retention: Retention) -> list[int]:
    """The newest part of a branch's history, down to the last snapshot that is to be kept.

    If clocks disagree, an old snapshot may be newer in the history than a young one. It is kept,
    because without it the young one would no longer be part of the branch.
    """
    keep = ref.min_snapshots_to_keep or retention.min_snapshots_to_keep
    own_age = ref.max_snapshot_age_ms
    oldest_ms = retention.older_than_ms if own_age is None else retention.now_ms - own_age
    young = [position for position, snapshot in enumerate(history) if snapshot.timestamp_ms >= oldest_ms]
    return [snapshot.snapshot_id for snapshot in history[: max(keep, 1 + max(young, default=-1))]]


def _perhaps_in_use(metadata: TableMetadata, retention: Retention) -> Iterator[int]:
    """Snapshots that were superseded recently, whatever their own age."""
    if retention.superseded_before_ms is None:
        return
    for snapshot in metadata.snapshots:
        if snapshot.parent_snapshot_id is not None and snapshot.timestamp_ms >= retention.superseded_before_ms:
            yield snapshot.parent_snapshot_id
    for entry, successor in pairwise(metadata.snapshot_log):
        # After a rollback the successor is an old snapshot; only the log has the time it became current again.
        if successor.timestamp_ms >= retention.superseded_before_ms:
            yield entry.snapshot_id


def _needed_by_readers(metadata: TableMetadata, retention: Retention) -> Iterator[int]:
    """Snapshots between the positions of incremental readers and main."""
    current = _Ancestors(metadata)
    for snapshot_id in retention.read_up_to:
        # A reader that stands at a rolled back snapshot needs its ancestors up to the first that main has.
        behind, unread = current.parted_from(metadata.snapshot_by_id(snapshot_id))
        if not unread or unread[-1].timestamp_ms >= retention.unread_since_ms:
            yield from (snapshot.snapshot_id for snapshot in (*behind, *unread))


def _needed_by_environments(
    metadata: TableMetadata, refs: Mapping[str, SnapshotRef], retention: Retention
) -> Iterator[int]:
    """Snapshots that a publication of an environment reads: those of both sides since its branch began."""
    current = _Ancestors(metadata)
    for name, ref in refs.items():
        head = metadata.snapshot_by_id(ref.snapshot_id)
        if environment_of(name) is not None and head is not None and head.timestamp_ms >= retention.unread_since_ms:
            behind, ahead = current.parted_from(head)
            yield from (snapshot.snapshot_id for snapshot in (*behind, *ahead))


class _Ancestors:
    """The unexpired history of main."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._metadata, self._main = metadata, list(history_of(metadata, metadata.current_snapshot()))
        self._positions = {snapshot.snapshot_id: number for number, snapshot in enumerate(self._main)}

    def parted_from(self, head: Snapshot | None) -> tuple[list[Snapshot], list[Snapshot]]:
        """A history down to its newest snapshot that main has, and those of main after that; none if it has none."""
        history = list(history_of(self._metadata, head))
        at = next((number for number, each in enumerate(history) if each.snapshot_id in self._positions), None)
        return ([], []) if at is None else (history[: at + 1], self._main[: self._positions[history[at].snapshot_id]])


def _is_past_its_age(metadata: TableMetadata, name: str, ref: SnapshotRef, retention: Retention) -> bool:
    if name == MAIN_BRANCH:
        return False
    max_age_ms = ref.max_ref_age_ms or int(metadata.properties.get(_MAX_REF_AGE_PROPERTY, 0))
    head = metadata.snapshot_by_id(ref.snapshot_id)
    if head is None:
        return False
    if environment_of(name) in retention.idle_environments and head.timestamp_ms < retention.idle_since_ms:
        return True
    return bool(max_age_ms) and retention.now_ms - head.timestamp_ms > max_age_ms
