"""One commit that makes a new table together with its first rows, sent again when its answer was lost."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from floe_dagster_iceberg.errors import (
    CatalogConnectionError,
    CommitConflictError,
    CommitOutcomeUnknownError,
    FloeStorageError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table._pyiceberg import CreateTransaction, SnapshotProducer
from floe_dagster_iceberg.table.branches import fork_branch
from floe_dagster_iceberg.table.commit import CommitBudget, Committed, tell_attempts
from floe_dagster_iceberg.table.file_changes import FileChanges
from floe_dagster_iceberg.telemetry import describe_table, traced_step


@dataclass(frozen=True)
class FirstSnapshot:
    """The snapshot that a table begins with.

    Attributes:
        snapshot_id: Its id; with it a commit whose answer was lost is recognised.
        files: Data files that are written already.
        properties: Kept in its summary.
        branch: The branch that begins with it.
    """

    snapshot_id: int
    files: Sequence[DataFile]
    properties: Mapping[str, str]
    branch: str

    def stage(self, transaction: CreateTransaction) -> None:
        """Stage the snapshot; a failure leaves no manifest behind."""
        changes = FileChanges(added=list(self.files))
        try:
            fork_branch(transaction, self.branch, None)
            SnapshotProducer(
                transaction,
                changes,
                operation=changes.operation,
                snapshot_id=self.snapshot_id,
                snapshot_properties=dict(self.properties),
                branch=self.branch,
            ).commit()
        except BaseException:
            transaction.discard_metadata_files()
            raise


def load_if_there(catalog: Catalog, identifier: TableIdentifier) -> Table | None:
    """The table, or None when the catalog has none of that name."""
    try:
        with translated(catalog.name, table=identifier):
            return catalog.load_table(identifier.as_tuple)
    except NoSuchTableError:
        return None


def _describe(_: Catalog, identifier: TableIdentifier, *__: object, **___: object) -> dict[str, Any]:
    return describe_table(identifier)


@traced_step("commit", _describe, report=tell_attempts)
def commit_new_table(
    catalog: Catalog,
    identifier: TableIdentifier,
    open_transaction: Callable[[], CreateTransaction],
    snapshot: FirstSnapshot,
    *,
    budget: CommitBudget,
    on_send: Callable[[], None],
    on_lost_answer: Callable[[], None],
) -> Committed:
    """Create a table with its first snapshot, or find the one that another process created first.

    Sending it again after a lost answer is safe: the catalog refuses to create a table that is there.

    Args:
        catalog: Where the table goes.
        identifier: Its name.
        open_transaction: Stages the table itself, anew for each attempt.
        snapshot: What it begins with.
        budget: How long to go on while answers are lost.
        on_send: Called when all is staged: from then on the files may belong to the table.
        on_lost_answer: Called when an attempt may still land; its files must stay.

    Returns:
        The table; `by_us` is False when another process created it.

    Raises:
        CommitOutcomeUnknownError: The catalog went away, and nobody can say whether the table is there.
    """
    started, attempts, unanswered, sent = time.monotonic(), 0, False, set[str]()
    while True:
        attempts += 1
        transaction = open_transaction()
        snapshot.stage(transaction)
        on_send()
        sent.update(transaction.manifest_lists)
        try:
            with translated(catalog.name, table=identifier):
                return Committed(transaction.commit_once(), attempts)
        except (TableAlreadyExistsError, CommitConflictError) as taken:
            existing = _look(catalog, identifier, snapshot, taken)
            if existing is None or _landed(existing, snapshot) not in transaction.manifest_lists:
                transaction.discard_metadata_files()
            if existing is None:
                raise
        except (CommitOutcomeUnknownError, CatalogConnectionError) as unknown:
            unanswered = True
            on_lost_answer()
            time.sleep(budget.wait_seconds(attempts))
            existing = _look(catalog, identifier, snapshot, unknown)
            if existing is None and not budget.allows(attempts, time.monotonic() - started):
                raise _lost(identifier, snapshot, unknown) from unknown
        except FloeStorageError as error:
            transaction.discard_metadata_files()
            if not unanswered:
                raise
            # Whatever keeps this attempt from being made: an earlier one may still land.
            raise _lost(identifier, snapshot, error) from error
        if existing is not None:
            return Committed(existing, attempts, by_us=_landed(existing, snapshot) in sent)


def _landed(table: Table, snapshot: FirstSnapshot) -> str | None:
    """Manifest list of the snapshot in the table; None when it is not there."""
    found = table.metadata.snapshot_by_id(snapshot.snapshot_id)
    return None if found is None else found.manifest_list


def _look(
    catalog: Catalog, identifier: TableIdentifier, snapshot: FirstSnapshot, failure: FloeStorageError
) -> Table | None:
    """The table that is there after an attempt failed; whatever keeps us from looking, it may be ours."""
    try:
        return load_if_there(catalog, identifier)
    except FloeStorageError:
        raise _lost(identifier, snapshot, failure) from failure


def _lost(identifier: TableIdentifier, snapshot: FirstSnapshot, failure: FloeStorageError) -> CommitOutcomeUnknownError:
    reason = failure.details.get("reason", type(failure).__name__)
    return CommitOutcomeUnknownError(identifier, snapshot_id=snapshot.snapshot_id, reason=str(reason))
