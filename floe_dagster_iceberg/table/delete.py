"""Rows matching a filter, deleted in one commit."""

from collections.abc import Mapping
from functools import partial

from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table._pyiceberg import SnapshotProducer, TableTransaction
from floe_dagster_iceberg.table.branches import fork_branch, head_of
from floe_dagster_iceberg.table.commit import CommitBudget, commit, new_snapshot_id
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.row_removal import remove_matching_rows
from floe_dagster_iceberg.table.uncommitted import UncommittedFiles


def delete_rows(
    table: Table,
    where: BooleanExpression,
    budget: CommitBudget,
    *,
    snapshot_properties: Mapping[str, str],
    branch: str = MAIN_BRANCH,
) -> Snapshot | None:
    """Delete all rows matching a filter; None when no row matches and nothing was committed."""
    name, snapshot_id = table_name(table), new_snapshot_id()
    with UncommittedFiles(name, table.io) as files, translated(table.catalog.name, table=name):

        def stage(transaction: TableTransaction) -> None:
            files.next_attempt()
            metadata = transaction.table_metadata
            head = head_of(metadata, branch, name)
            open_writer = partial(files.open_attempt_writer, metadata)
            changes = remove_matching_rows(metadata, table.io, head, where, open_writer)
            if changes.removed:
                fork_branch(transaction, branch, head)
                SnapshotProducer(
                    transaction,
                    changes,
                    operation=changes.operation,
                    snapshot_id=snapshot_id,
                    snapshot_properties=dict(snapshot_properties),
                    branch=branch,
                ).commit()
                files.send()

        committed = commit(table, stage, budget=budget, snapshot_id=snapshot_id, on_lost_response=files.response_lost)
    return committed.table.metadata.snapshot_by_id(snapshot_id)
