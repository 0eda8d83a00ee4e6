"""Partitions replaced on a staging branch, and published by moving the target branch.

Spark replaces a partition in one commit only if no file has rows inside and outside of it. Where one
does, rows are deleted and appended on a staging branch, so that readers of the target branch see none
of that or all.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, point_ref
from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.commit import CommitBudget, CommitterProvider, commit, commits_metadata
from floe_dagster_iceberg.table.commit.refs import create_ref, new_branch, remove_ref
from floe_dagster_iceberg.table.filter.row_filter import FileMatcher, selects_whole_partitions
from floe_dagster_iceberg.table.names import table_name

PREFIX: Final = "floe-staging-"


class BranchMovedError(Exception):
    """The target branch moved after the rows were staged."""


def has_partially_matching_file(table: Table, head: Snapshot, where: BooleanExpression) -> bool:
    """Whether a file may hold both rows that match a filter and rows that do not, according to its metadata."""
    if selects_whole_partitions(table.metadata, where):
        return False
    matches = FileMatcher(table.metadata, where)
    return any(not matches.all_rows(file) for file in _files_that_may_match(table, head, where))


def rows_changed(table: Table, base: Snapshot, head: Snapshot, where: BooleanExpression) -> bool:
    """Whether files that may hold rows matching a filter were added or removed between two snapshots."""
    before, after = (_files_that_may_match(table, snapshot, where) for snapshot in (base, head))
    return {file.file_path for file in before} != {file.file_path for file in after}


def _files_that_may_match(table: Table, snapshot: Snapshot, where: BooleanExpression) -> Iterator[DataFile]:
    matches = FileMatcher(table.metadata, where)
    for entry in FileChanges.read(table.metadata, table.io, snapshot, may_hold=where).live_entries():
        if not matches.no_row(entry.data_file):
            yield entry.data_file


@contextmanager
def staging_branch(
    table: Table, name: str, base: Snapshot, budget: CommitBudget, through: CommitterProvider
) -> Iterator[str]:
    """Create a branch at a snapshot. It is removed if the body fails."""
    branch = f"{PREFIX}{uuid.uuid4().hex}"

    def stage(transaction: TableTransaction) -> None:
        create_ref(transaction, name, branch, base.snapshot_id, new_branch(base.snapshot_id))

    commit(table, stage, budget=budget, through=through)
    try:
        yield branch
    except BaseException:
        _remove(table, name, branch, budget, through)
        raise


def publish(
    table: Table, *, staged: str, target: str, base: Snapshot, budget: CommitBudget, through: CommitterProvider
) -> None:
    """Move the target branch to the head of the staging branch and remove that.

    In one commit, or in two if Spark makes them: then the target moves first, and readers see no difference.

    Raises:
        BranchMovedError: The target moved away from `base`; nothing was changed.
        CommitOutcomeUnknownError: The catalog went away in the middle.
    """
    at_once = commits_metadata(table)
    move = partial(_stage_move, staged=staged, target=target, base=base, removes_staged=at_once)
    commit(table, move, budget=budget, through=through)
    if not at_once:
        _remove(table, table_name(table), staged, budget, through)


def _stage_move(
    transaction: TableTransaction, *, staged: str, target: str, base: Snapshot, removes_staged: bool
) -> None:
    refs = transaction.table_metadata.refs
    if target not in refs or refs[target].snapshot_id != base.snapshot_id:
        raise BranchMovedError
    removal = [RemoveSnapshotRefUpdate(ref_name=staged)] if removes_staged else []
    transaction.stage(
        [point_ref(target, refs[target].model_copy(update={"snapshot_id": refs[staged].snapshot_id})), *removal],
        [
            AssertRefSnapshotId(ref=target, snapshot_id=base.snapshot_id),
            AssertRefSnapshotId(ref=staged, snapshot_id=refs[staged].snapshot_id),
        ],
    )


def _remove(table: Table, name: str, branch: str, budget: CommitBudget, through: CommitterProvider) -> None:
    try:
        with translate_errors(table.catalog.name, table=name):
            table.refresh()
        commit(table, lambda transaction: remove_ref(transaction, name, branch), budget=budget, through=through)
    except FloeStorageError:
        # Published after all, or the catalog is unreachable: the first failure is the one to report. A branch that
        # stays keeps its snapshots until it is removed.
        return
