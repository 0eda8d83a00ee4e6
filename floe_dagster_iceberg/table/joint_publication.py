"""A branch of several tables published at once: readers see all of them moved, or none.

SQL catalogs do it in one transaction of their database, REST servers by `transactions/commit`. With other catalogs the
tables move one after the other; the branches that are left are the journal, and another call completes it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg import errors
from floe_dagster_iceberg._pyiceberg.transaction import JointCommits, TableTransaction, commits_together, history_of
from floe_dagster_iceberg.models.base import FrozenModel, Items, SnapshotId
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.commit import (
    CommitBudget,
    CommitterProvider,
    commits_metadata,
    new_snapshot_id,
    refresh,
)
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.publication import publish, stage_publication

_REFUSALS: Final = (errors.CommitConflictError, errors.ValidationError)
_NO_RESPONSE: Final = (errors.CommitOutcomeUnknownError, errors.CatalogConnectionError)


class PublishedTable(FrozenModel):
    """A table whose branch was published."""

    table: str = Field(description="The table.")
    snapshot_id: SnapshotId = Field(description="The snapshot where the target branch stands now.")
    replayed: bool = Field(description="Whether the changes were repeated in a new snapshot, instead of a move.")


class PublicationResult(FrozenModel):
    """What the publication of a branch did."""

    branch: str = Field(description="The branch.")
    atomic: bool = Field(description="Whether readers saw all tables move at once; otherwise one after the other.")
    tables: Items[PublishedTable] = Field(description="The tables.")


@dataclass(frozen=True)
class BranchPublication:
    """The publication of a branch of one table, the same in every attempt.

    Attributes:
        table: The table as last seen; refreshed in place.
        branch: The branch.
        target: The branch that gets its changes.
        head_snapshot_id: Where the branch must stand.
        snapshot_id: Id of the snapshot of a replay.
        snapshot_properties: Properties of the snapshot of a replay.
        replaces: The rows that the branch replaced, if known; see `stage_publication`.
        precondition: Checks the newest version of the table and the target for each attempt.
    """

    table: Table
    branch: str
    target: str
    head_snapshot_id: int
    snapshot_id: int = field(default_factory=new_snapshot_id)
    snapshot_properties: Mapping[str, str] = field(default_factory=dict)
    replaces: BooleanExpression | None = None
    precondition: Callable[[TableMetadata, str], None] | None = None

    @classmethod
    def of(cls, table: Table, branch: str, target: str) -> "BranchPublication":
        """The publication of a branch as it stands now.

        Raises:
            SnapshotNotFoundError: There is no such branch.
        """
        if (ref := table.metadata.refs.get(branch)) is None:
            raise errors.SnapshotNotFoundError(table_name(table), branch, refs=table.metadata.refs)
        return cls(table, branch, target, ref.snapshot_id)

    def stage(self, transaction: TableTransaction) -> Snapshot:
        """Stage it; see `stage_publication`."""
        if self.precondition is not None:
            self.precondition(transaction.table_metadata, self.target)
        return stage_publication(
            transaction,
            branch=self.branch,
            target=self.target,
            snapshot_id=self.snapshot_id,
            snapshot_properties=self.snapshot_properties,
            head_snapshot_id=self.head_snapshot_id,
            replaces=self.replaces,
        )

    @property
    def has_landed(self) -> bool:
        """Whether the table has the changes, as last seen."""
        metadata = self.table.metadata
        if self.branch in metadata.refs:
            return False
        history = history_of(metadata, metadata.snapshot_by_name(self.target))
        return any(each.snapshot_id in (self.snapshot_id, self.head_snapshot_id) for each in history)

    @property
    def is_untouched(self) -> bool:
        """Whether the branch stands where it stood, as last seen."""
        ref = self.table.metadata.refs.get(self.branch)
        return ref is not None and ref.snapshot_id == self.head_snapshot_id

    def publish(self, budget: CommitBudget, through: CommitterProvider | None) -> Snapshot:
        """Publish it by a commit of its own."""
        return publish(
            self.table,
            branch=self.branch,
            target=self.target,
            budget=budget,
            head_snapshot_id=self.head_snapshot_id,
            snapshot_id=self.snapshot_id,
            snapshot_properties=self.snapshot_properties,
            replaces=self.replaces,
            through=through,
            precondition=self.precondition,
        )


@dataclass(frozen=True)
class Published:
    """What became of several publications.

    Attributes:
        snapshots: Where the targets stand now, in the order of the publications.
        at_once: Whether readers saw all of them move at once.
    """

    snapshots: list[Snapshot]
    at_once: bool


def publish_branch_of(
    tables: Sequence[Table],
    branch: str,
    target: str = MAIN_BRANCH,
    *,
    budget: CommitBudget,
    through: CommitterProvider | None = None,
) -> PublicationResult:
    """Publish a branch of several tables, which each of them has, as `publish_together` does.

    Raises:
        SnapshotNotFoundError: A table has no such branch; nothing was changed.
    """
    publications = [BranchPublication.of(table, branch, target) for table in tables]
    done = publish_together(publications, budget=budget, through=through)
    published = [
        PublishedTable(
            table=table_name(each.table),
            snapshot_id=snapshot.snapshot_id,
            replayed=snapshot.snapshot_id == each.snapshot_id,
        )
        for each, snapshot in zip(publications, done.snapshots, strict=True)
    ]
    return PublicationResult(branch=branch, atomic=done.at_once, tables=published)


def publishes_at_once(tables: Sequence[Table]) -> bool:
    """Whether branches of these tables can be published in one commit; otherwise it is one after the other."""
    return len(tables) < 2 or _joint_catalog(tables) is not None  # noqa: PLR2004 - one table is one commit


def _joint_catalog(tables: Sequence[Table]) -> JointCommits | None:
    first = tables[0].catalog
    one_catalog = all(table.catalog is first and commits_metadata(table) for table in tables)
    return commits_together(first) if one_catalog else None


def publish_together(
    publications: Sequence[BranchPublication], *, budget: CommitBudget, through: CommitterProvider | None = None
) -> Published:
    """Publish branches of several tables, and remove them: all at once where `publishes_at_once` says so.

    Args:
        publications: The branches, of one table each.
        budget: How often to try against other writers.
        through: Commits to tables that PyIceberg cannot commit to.

    Raises:
        CommitConflictError: A target has changed rows that the branch replaced, or others won too often; nothing was
            changed.
        CommitOutcomeUnknownError: The catalog became unreachable: all tables may have been published, or none.
        WriteError: The catalog has not published all tables at once, and some of them are published.
    """
    if not publications:
        return Published([], at_once=True)
    if len(publications) == 1:
        return Published([publications[0].publish(budget, through)], at_once=True)
    joint = _joint_catalog([each.table for each in publications])
    if joint is None:
        return Published(_publish_one_by_one(publications, budget, through), at_once=False)
    work = _JointCommit(publications, joint, budget)
    snapshots = work.run()
    return Published(snapshots, at_once=not work.was_partial)


def _publish_one_by_one(
    publications: Sequence[BranchPublication], budget: CommitBudget, through: CommitterProvider | None
) -> list[Snapshot]:
    for each in publications:
        # A conflict of the last table must not be found after the first has moved.
        transaction = TableTransaction(each.table)
        try:
            with translate_errors(each.table.catalog.name, table=table_name(each.table)):
                each.stage(transaction)
        finally:
            transaction.discard_metadata_files()
    done: list[Snapshot] = []
    for each in publications:
        try:
            done.append(each.publish(budget, through))
        except errors.FloeStorageError as error:
            if not done:
                raise
            raise _partial(publications, len(done), error, "This catalog cannot publish tables at once.") from error
    return done


def _partial(
    landed_first: Sequence[BranchPublication], landed: int, error: errors.FloeStorageError, cause: str
) -> errors.WriteError:
    """The error of a publication of which some tables have landed."""
    names = [f"'{table_name(each.table)}'" for each in landed_first]
    return errors.WriteError(
        f"Branch '{landed_first[landed].branch}' is published in {', '.join(names[:landed])}, and not in "
        f"{', '.join(names[landed:])}: {error} {cause} Publish the branch again to complete it.",
        table=table_name(landed_first[landed].table),
    )


class _JointCommit:
    """One commit of several tables: planned, sent, planned again when another writer was faster.

    A server may break its promise to commit all tables or none: Iceberg's reference implementation writes one after
    the other, and leaves out, without an error, a table that another writer has just changed. So each table is looked
    at afterwards, and files are deleted only of those that have not got the changes.

    Attributes:
        was_partial: Whether some tables were seen with the changes, and others without.
    """

    def __init__(self, publications: Sequence[BranchPublication], catalog: JointCommits, budget: CommitBudget) -> None:
        self._publications, self._catalog, self._budget = publications, catalog, budget
        self._name = ", ".join(table_name(each.table) for each in publications)
        self.was_partial = False

    def run(self) -> list[Snapshot]:
        try:
            return self._run()
        except errors.FloeStorageError as error:
            in_order = sorted(self._publications, key=lambda each: not each.has_landed)
            landed = sum(each.has_landed for each in in_order)
            if not landed or isinstance(error, errors.CommitOutcomeUnknownError):
                raise
            raise _partial(in_order, landed, error, "The server has not committed all tables at once.") from error

    def _run(self) -> list[Snapshot]:
        attempts, waited, response_lost = 0, 0.0, False
        while True:
            attempts += 1
            planned_on = self._versions()
            with self._after_lost_response() if response_lost else nullcontext():
                transactions = [TableTransaction(each.table) for each in self._publications]
                published = self._stage(transactions)
                failure = self._send(transactions) or self._find_left_out(transactions)
            if failure is None:
                return published
            response_lost = response_lost or isinstance(failure, _NO_RESPONSE)
            wait = self._budget.wait_seconds(attempts)
            time.sleep(wait)
            waited += wait
            self._look(transactions, failure)
            spent = not self._budget.allows(attempts, waited)
            if isinstance(failure, errors.ValidationError) and (spent or planned_on == self._versions()):
                with self._after_lost_response() if response_lost else nullcontext():
                    raise failure
            if spent and not all(each.has_landed for each in self._publications):
                raise self._exhausted(failure, attempts) from failure

    def _versions(self) -> list[str]:
        return [each.table.metadata_location for each in self._publications]

    @contextmanager
    def _after_lost_response(self) -> Iterator[None]:
        """Report any failure but a conflict as unknown: an earlier attempt may have landed."""
        try:
            yield
        except errors.CommitConflictError:
            raise
        except errors.FloeStorageError as error:
            raise self._unknown(type(error).__name__) from error

    def _stage(self, transactions: Sequence[TableTransaction]) -> list[Snapshot]:
        """Stage every table; of one that has the changes already, after a lost response, nothing."""
        published: list[Snapshot] = []
        try:
            for each, transaction in zip(self._publications, transactions, strict=True):
                with translate_errors(each.table.catalog.name, table=table_name(each.table)):
                    published.append(each.stage(transaction))
        except BaseException:
            for transaction in transactions:
                transaction.discard_metadata_files()
            raise
        return published

    def _send(self, transactions: Sequence[TableTransaction]) -> errors.FloeStorageError | None:
        """Send all at once; returns the failure when another attempt may help, raises when none will."""
        changes = [transaction.to_change() for transaction in transactions if transaction.changes_anything]
        if not changes:
            return None
        try:
            with translate_errors(self._publications[0].table.catalog.name, table=self._name):
                self._catalog.commit_tables(changes)
        except (*_REFUSALS, *_NO_RESPONSE) as failure:
            return failure
        except errors.FloeStorageError:
            # Files of tables that cannot be looked at stay.
            with suppress(errors.FloeStorageError):
                self._look_at_tables()
                self._discard(transactions)
            raise
        return None

    def _find_left_out(self, transactions: Sequence[TableTransaction]) -> errors.FloeStorageError | None:
        """The failure of a commit that succeeded, and that some of its tables have not got."""
        if not any(transaction.changes_anything for transaction in transactions):
            return None
        try:
            self._look_at_tables()
        except errors.FloeStorageError as gone:
            raise self._unknown(str(gone.details.get("reason", type(gone).__name__))) from gone
        names = ", ".join(table_name(each.table) for each in self._publications if each.is_untouched)
        return errors.CommitConflictError(names, attempts=1, reason="the server left it out") if names else None

    def _look(self, transactions: Sequence[TableTransaction], failure: errors.FloeStorageError) -> None:
        """Load the newest versions; the manifests of an attempt that was refused, and is not there, are deleted."""
        try:
            self._look_at_tables()
        except errors.FloeStorageError as gone:
            raise self._unknown(str(gone.details.get("reason", type(gone).__name__))) from failure
        if isinstance(failure, _REFUSALS):
            self._discard(transactions)

    def _look_at_tables(self) -> None:
        for each in self._publications:
            refresh(each.table)
        self.was_partial |= len({each.has_landed for each in self._publications}) > 1

    def _discard(self, transactions: Sequence[TableTransaction]) -> None:
        """Delete the manifests of the tables that the attempt is not in."""
        for each, transaction in zip(self._publications, transactions, strict=True):
            known = {snapshot.manifest_list for snapshot in each.table.metadata.snapshots}
            if known.isdisjoint(transaction.manifest_lists):
                transaction.discard_metadata_files()

    def _exhausted(self, failure: errors.FloeStorageError, attempts: int) -> errors.FloeStorageError:
        if isinstance(failure, errors.CommitConflictError):
            return errors.CommitConflictError(self._name, attempts=attempts, reason=failure.reason)
        return self._unknown(str(failure.details.get("reason", "no response")))

    def _unknown(self, reason: str) -> errors.CommitOutcomeUnknownError:
        return errors.CommitOutcomeUnknownError(self._name, snapshot_id=None, reason=reason)
