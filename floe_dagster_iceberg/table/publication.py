"""The changes of a branch put onto another one, in one commit: a move if that one stood still, else a replay.

A replay adds the branch's data files again, on top of what others committed, and removes the files that the branch
removed. Files are neither read nor written, so the rows that were checked on the branch are the rows that arrive.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.manifest_reader import read_all_entries, read_manifests
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import (
    TableTransaction,
    history_of,
    point_ref,
    summary_property,
)
from floe_dagster_iceberg.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    EngineCapabilityError,
    SnapshotNotFoundError,
    ValidationError,
)
from floe_dagster_iceberg.models import snapshot_properties as properties
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.changes.cursors import cursor_key
from floe_dagster_iceberg.table.changes.plan import SnapshotChanges
from floe_dagster_iceberg.table.commit.commit import (
    NEWEST_FORMAT_OF_PYICEBERG,
    CommitBudget,
    CommitterProvider,
    commit,
    new_snapshot_id,
)
from floe_dagster_iceberg.table.commit.refs import new_branch
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.write.delete import files_to_leave


def publish(
    table: Table,
    *,
    branch: str,
    target: str = MAIN_BRANCH,
    budget: CommitBudget,
    head_snapshot_id: int | None = None,
    snapshot_id: int | None = None,
    snapshot_properties: Mapping[str, str] | None = None,
    replaces: BooleanExpression | None = None,
    removes_branch: bool = True,
    through: CommitterProvider | None = None,
    precondition: Callable[[TableMetadata, str], None] | None = None,
) -> Snapshot:
    """Publish a branch of one table; the commit is planned again when another writer was faster.

    Args:
        table: The table as last seen; refreshed in place.
        branch: The branch.
        target: The branch that gets its changes.
        budget: How often to try against other writers.
        head_snapshot_id: Where the branch must stand, such as at the snapshot that was checked; where it stands now if
            not given.
        snapshot_id: Id of the snapshot of a replay; random if not given.
        snapshot_properties: Properties of the snapshot of a replay.
        replaces: The rows that the branch replaced, if known; see `stage_publication`.
        removes_branch: Whether the branch is removed.
        through: Commits to a table that PyIceberg cannot commit to.
        precondition: Checks the newest version of the table and the target for each attempt.

    Returns:
        The snapshot where the target stands now.

    Raises:
        SnapshotNotFoundError: There is no such branch.
        CommitConflictError: The target has changed rows that the branch replaced, or the branch has moved.
        EngineCapabilityError: The changes have to be replayed, and PyIceberg cannot do that.
        ValidationError: The branch is a tag, or the snapshot where it began has expired.
    """
    snapshot_id, ref = snapshot_id or new_snapshot_id(), table.metadata.refs.get(branch)
    head_id = ref.snapshot_id if head_snapshot_id is None and ref is not None else head_snapshot_id
    staged: list[Snapshot] = []

    def stage(transaction: TableTransaction) -> None:
        if precondition is not None:
            precondition(transaction.table_metadata, target)
        staged[:] = [
            stage_publication(
                transaction,
                branch=branch,
                target=target,
                snapshot_id=snapshot_id,
                snapshot_properties=snapshot_properties or {},
                removes_branch=removes_branch,
                head_snapshot_id=head_id,
                replaces=replaces,
            )
        ]

    with translate_errors(table.catalog.name, table=table_name(table)):
        committed = commit(table, stage, budget=budget, snapshot_id=snapshot_id, through=through)
    # After a lost response, what landed is not what was staged last.
    published = committed.table.metadata.snapshot_by_id(snapshot_id) or staged[0]
    if committed.table.metadata.snapshot_by_id(published.snapshot_id) is None:
        raise CommitOutcomeUnknownError(
            table_name(table), snapshot_id=published.snapshot_id, reason="it is not in the response"
        )
    return published


def stage_publication(
    transaction: TableTransaction,
    *,
    branch: str,
    target: str = MAIN_BRANCH,
    snapshot_id: int,
    snapshot_properties: Mapping[str, str],
    removes_branch: bool = True,
    head_snapshot_id: int | None = None,
    replaces: BooleanExpression | None = None,
) -> Snapshot:
    """Stage that the changes of a branch since it began become the newest ones of another branch.

    If the target stands where the branch began, and the branch has one commit, the target moves to it. Otherwise the
    branch's changes become one new snapshot. Changes that only an engine can repeat, which are delete files, are
    published by a move as well, with all their snapshots; if the target has moved they are a conflict.

    Safe to stage again: nothing is staged if the target has the changes already.

    Args:
        transaction: The newest version of the table.
        branch: The branch to publish.
        target: The branch that gets its changes.
        snapshot_id: Id of the new snapshot, if one is needed.
        snapshot_properties: Properties of the new snapshot, if one is needed.
        removes_branch: Whether the branch is removed in the same commit.
        head_snapshot_id: Where the branch has to stand.
        replaces: The rows that the branch replaced: they must not have changed on the target. If not given, that is
            judged by the Iceberg partitions of the files that it removed, and by the assets and partition keys of the
            snapshots on both sides.

    Returns:
        The snapshot where the target will stand.

    Raises:
        SnapshotNotFoundError: There is no such branch.
        CommitConflictError: The target has changed rows that the branch replaced, or the branch has moved.
        EngineCapabilityError: The changes have to be replayed, and PyIceberg cannot do that.
        ValidationError: The branch is a tag, or the snapshot where it began has expired.
    """
    metadata, name = transaction.table_metadata, table_name(transaction.table)
    target_ref, ref = metadata.refs.get(target), metadata.refs.get(branch)
    target_head = None if target_ref is None else metadata.snapshot_by_id(target_ref.snapshot_id)
    landed = (snapshot_id, head_snapshot_id if ref is None else None)
    for snapshot in history_of(metadata, target_head):
        if snapshot.snapshot_id in landed:
            # An attempt whose response was lost, or another process that does the same work.
            _stage_removal(transaction, branch, removes=removes_branch)
            return snapshot
    if ref is None:
        raise SnapshotNotFoundError(name, branch, refs=metadata.refs)
    _check_branches(transaction, branch, target, head_snapshot_id)
    work = _Publication.of(transaction.table, metadata, branch, target_head, ref.snapshot_id)
    if not work.commits:
        published = work.head
    elif work.is_unmoved and (len(work.commits) == 1 or not work.can_be_replayed):
        published = work.head
        moved = (target_ref or new_branch(published.snapshot_id)).model_copy(
            update={"snapshot_id": published.snapshot_id}
        )
        assertion = AssertRefSnapshotId(ref=target, snapshot_id=None if target_ref is None else target_ref.snapshot_id)
        transaction.stage([point_ref(target, moved)], [assertion])
    else:
        work.check_replay(transaction, target, replaces)
        published = work.stage_replay(transaction, target, snapshot_id, snapshot_properties)
    _stage_removal(transaction, branch, removes=removes_branch)
    return published


def _check_branches(transaction: TableTransaction, branch: str, target: str, head_snapshot_id: int | None) -> None:
    name, refs = table_name(transaction.table), transaction.table_metadata.refs
    if branch == target:
        raise ValidationError(f"Branch '{branch}' of '{name}' cannot be published onto itself.", table=name)
    for each in (branch, target):
        if each in refs and refs[each].snapshot_ref_type is not SnapshotRefType.BRANCH:
            raise ValidationError(f"'{each}' is a tag of '{name}', and tags do not move. Name a branch.", table=name)
    if target not in refs and target != MAIN_BRANCH:
        raise SnapshotNotFoundError(name, target, refs=refs)
    if head_snapshot_id is not None and refs[branch].snapshot_id != head_snapshot_id:
        raise CommitConflictError(
            name, attempts=1, reason=f"branch '{branch}' has moved since its rows were to be published"
        )


def _stage_removal(transaction: TableTransaction, branch: str, *, removes: bool) -> None:
    """Stage the removal of the branch; if it stays, it must at least not move before the commit."""
    ref = transaction.table_metadata.refs.get(branch)
    if ref is None:
        return
    transaction.stage(
        [RemoveSnapshotRefUpdate(ref_name=branch)] if removes else [],
        [AssertRefSnapshotId(ref=branch, snapshot_id=ref.snapshot_id)],
    )


@dataclass(frozen=True)
class _NetChanges:
    """What is left of the changes of several snapshots; a file that came and went does not count.

    Attributes:
        added: Data files by path, with the snapshot that added each.
        removed: Data files by path.
        has_deletes: Whether there are delete files among them.
    """

    added: dict[str, tuple[DataFile, Snapshot]] = field(default_factory=dict)
    removed: dict[str, DataFile] = field(default_factory=dict)
    has_deletes: bool = False

    @classmethod
    def of(cls, table: Table, oldest_first: Sequence[Snapshot]) -> "_NetChanges":
        added, removed, has_deletes = dict[str, tuple[DataFile, Snapshot]](), dict[str, DataFile](), False
        for snapshot in oldest_first:
            changes = SnapshotChanges(table, snapshot)
            has_deletes |= any(file.content.value for file, _ in changes.files)
            # Removals first: a rewrite may put a file back under its own path.
            for file, is_added in sorted(changes.files, key=lambda each: each[1]):
                path = file.file_path
                if is_added:
                    added[path] = (file, snapshot)
                elif added.pop(path, None) is None:
                    removed[path] = file
        return cls(added, removed, has_deletes)


@dataclass(frozen=True)
class _Publication:
    """A branch, where it began, and where its target stands.

    Attributes:
        table: The table.
        name: The branch.
        head: The newest snapshot of the branch.
        fork: The newest snapshot that both share; None if they share none.
        target_head: The newest snapshot of the target; None if it has none.
        commits: Snapshots of the branch alone, oldest first.
        theirs: Snapshots of the target since the fork, oldest first.
    """

    table: Table
    name: str
    head: Snapshot
    fork: Snapshot | None
    target_head: Snapshot | None
    commits: Sequence[Snapshot]
    theirs: Sequence[Snapshot]

    @classmethod
    def of(
        cls, table: Table, metadata: TableMetadata, name: str, target_head: Snapshot | None, head_id: int
    ) -> "_Publication":
        head = metadata.snapshot_by_id(head_id)
        if head is None:
            raise SnapshotNotFoundError(table_name(table), head_id)
        theirs = list(history_of(metadata, target_head))
        ours = list(history_of(metadata, head))
        shared = {snapshot.snapshot_id for snapshot in theirs}
        fork = next((snapshot for snapshot in ours if snapshot.snapshot_id in shared), None)
        if fork is None and not all(_is_whole(table, each) for each in (ours, theirs)):
            raise ValidationError(
                f"Branch '{name}' of '{table_name(table)}' cannot be published: the snapshot where it began has "
                "expired, so its changes are unknown. Write them again on a new branch.",
                table=table_name(table),
            )
        return cls(table, name, head, fork, target_head, _since(ours, fork), _since(theirs, fork))

    @property
    def is_unmoved(self) -> bool:
        return not self.theirs

    @cached_property
    def can_be_replayed(self) -> bool:
        """Whether PyIceberg can repeat the changes: it adds no delete files, and writes no newer format."""
        is_old = self.table.metadata.format_version <= NEWEST_FORMAT_OF_PYICEBERG
        return is_old and not self.changes.has_deletes

    @cached_property
    def changes(self) -> _NetChanges:
        return _NetChanges.of(self.table, self.commits)

    def check_replay(self, transaction: TableTransaction, target: str, replaces: BooleanExpression | None) -> None:
        """Refuse changes that would not mean the same on top of what others committed."""
        name = table_name(self.table)
        if not self.can_be_replayed:
            raise EngineCapabilityError(
                f"Branch '{self.name}' of '{name}' cannot be published: '{target}' has moved since it began, and the "
                "branch has changes that PyIceberg cannot repeat on top (delete files, or format version 3). Write "
                "the rows again on a new branch.",
                engine="pyiceberg",
                table=name,
            )
        if replaces is not None and not self.is_unmoved:
            asset_key = summary_property(self.head, properties.ASSET_KEY)
            # Raises if they changed; with snapshot isolation, rows that others appended stay.
            files_to_leave(
                transaction, target, seen=self.fork, head=self.target_head, row_filter=replaces, asset_key=asset_key
            )
        elif replaces is None and self._overlaps(_NetChanges.of(self.table, self._row_changes)):
            raise self._conflict(target)

    @cached_property
    def _row_changes(self) -> list[Snapshot]:
        """Snapshots of the target that changed rows; rewrites of files change none."""
        return [each for each in self.theirs if each.summary is None or each.summary.operation is not Operation.REPLACE]

    def _overlaps(self, theirs: _NetChanges) -> bool:
        replaced = {(file.spec_id, file.partition) for file in self.changes.removed.values()}
        specs = {spec_id for spec_id, _ in replaced}
        for file, _ in theirs.added.values():
            # Partitions of different specs cannot be compared.
            if replaced and ((file.spec_id, file.partition) in replaced or file.spec_id not in specs):
                return True
        return any(_same_work(ours, other) for ours in self.commits for other in self._row_changes)

    def stage_replay(
        self,
        transaction: TableTransaction,
        target: str,
        snapshot_id: int,
        snapshot_properties: Mapping[str, str],
    ) -> Snapshot:
        """Stage the changes as one snapshot of the target."""
        metadata, ours = transaction.table_metadata, self.changes
        if any(file.spec_id != metadata.default_spec_id for file, _ in ours.added.values()):
            raise CommitConflictError(
                table_name(self.table),
                attempts=1,
                reason=f"the partitioning changed after branch '{self.name}' was written; write it again",
            )
        may_hold = AlwaysTrue() if ours.removed else AlwaysFalse()
        changes = FileChanges.read(metadata, self.table.io, self.target_head, may_hold=may_hold)
        changes.added = [file for file, _ in ours.added.values()]
        changes.remove(ours.removed.values())
        if len(changes.removed) != len(ours.removed):
            raise self._conflict(target)
        producer = SnapshotProducer(
            transaction,
            changes,
            operation=changes.operation,
            snapshot_id=snapshot_id,
            snapshot_properties={
                **_shared_properties(self.commits),
                **snapshot_properties,
                # As a cherry-pick of Iceberg's Java has it, whose expiry keeps the files of such a source.
                properties.SOURCE_SNAPSHOT_ID: str(self.head.snapshot_id),
            },
            branch=target,
        )
        if ours.removed:
            producer.validate_removed_files_since(None if self.fork is None else self.fork.snapshot_id)
        producer.commit()
        staged = transaction.table_metadata.snapshot_by_id(snapshot_id)
        if staged is None:
            raise AssertionError(f"snapshot {snapshot_id} was staged")
        return staged

    def _conflict(self, target: str) -> CommitConflictError:
        return CommitConflictError(
            table_name(self.table),
            attempts=1,
            reason=f"rows that branch '{self.name}' replaced have changed on '{target}' since it began; write them "
            "again on a new branch",
        )


def _is_whole(table: Table, newest_first: Sequence[Snapshot]) -> bool:
    """Whether no snapshot of a history has expired: those that are left added all files of the newest one."""
    if not newest_first:
        return True
    # PyIceberg removes the parent's id when the parent expires, other clients do not.
    if newest_first[-1].parent_snapshot_id is not None:
        return False
    entries = (
        entry for each in read_all_entries(read_manifests(newest_first[0], table.io), table.io) for entry in each
    )
    live = {entry.data_file.file_path for entry in entries}
    return live == _NetChanges.of(table, newest_first[::-1]).added.keys()


def _since(newest_first: Sequence[Snapshot], fork: Snapshot | None) -> list[Snapshot]:
    """Snapshots after the fork, oldest first."""
    after: list[Snapshot] = []
    for snapshot in newest_first:
        if fork is not None and snapshot.snapshot_id == fork.snapshot_id:
            break
        after.append(snapshot)
    return after[::-1]


def _shared_properties(commits: Sequence[Snapshot]) -> dict[str, str]:
    """What the snapshot of a replay says of the writes in it, by which the next publication finds the same work."""
    shared = dict[str, str]()
    for name in (properties.ASSET_KEY, properties.ENVIRONMENT, properties.WRITE_MODE):
        found = {summary_property(each, name) for each in commits}
        if len(found) == 1 and (value := found.pop()) is not None:
            shared[name] = value
    keys = [summary_property(each, properties.PARTITION_KEY) for each in commits]
    given = [key for key in dict.fromkeys(keys) if key is not None]
    if len(given) == len(set(keys)):
        shared[properties.PARTITION_KEY] = ",".join(given)
    for each in commits:
        # Oldest first: the last one says how far other tables were read.
        shared |= _cursors_of(each)
    return shared


def _cursors_of(snapshot: Snapshot) -> dict[str, str]:
    prefix, summary = cursor_key(""), snapshot.summary
    found = {} if summary is None else summary.additional_properties
    return {name: value for name, value in found.items() if name.startswith(prefix)}


def _same_work(ours: Snapshot, theirs: Snapshot) -> bool:
    """Whether one asset wrote the same rows on both sides: they would be there twice."""
    if _cursors_of(ours).keys() & _cursors_of(theirs).keys():
        # Both have read the changes of a table, from where the branch began.
        return True
    asset_keys = {summary_property(each, properties.ASSET_KEY) for each in (ours, theirs)}
    keys = [summary_property(each, properties.PARTITION_KEY) for each in (ours, theirs)]
    if len(asset_keys) > 1 or None in asset_keys:
        return False
    if None in keys:
        # What an append adds is meant to be there beside other rows.
        return summary_property(ours, properties.WRITE_MODE) is not None
    one, other = (set(str(key).split(",")) for key in keys)
    # Long lists are abbreviated, so what they hold is unknown.
    return not one.isdisjoint(other) or any("..." in str(key) for key in keys)
