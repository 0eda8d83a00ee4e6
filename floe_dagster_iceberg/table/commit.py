"""One commit to one table: planned, sent, planned again when another writer was faster.

Every kind of commit goes through `commit`, data and metadata alike. PyIceberg's own retry
is not used: it repeats only the snapshot part, so a commit that also changes the schema
could never land after a conflict.
"""

import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg.errors import (
    CatalogAuthenticationError,
    CatalogConnectionError,
    CommitConflictError,
    CommitOutcomeUnknownError,
    FloeStorageError,
    ValidationError,
)
from floe_dagster_iceberg.models import IcebergTableManagerConfig
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table._pyiceberg import TableTransaction
from floe_dagster_iceberg.telemetry import Operation, describe_table, traced_step
from floe_dagster_iceberg.telemetry import attributes as names
from floe_dagster_iceberg.telemetry.metrics import count_conflict, count_retry

_SHORTEST_WAIT_SECONDS = 0.02
_MOST_DOUBLINGS = 20
_ENGINE = "pyiceberg"


@dataclass(frozen=True)
class CommitBudget:
    """How long a commit keeps trying against other writers.

    There are always `retries` retries. As long as the exponential delays that they stand for
    have not been waited, there are more: a writer that only lost a race plans again at once,
    because the table made progress meanwhile. Only waiting counts; on a busy machine the planning
    itself takes its time, and that is when most races are lost.
    """

    retries: int
    base_delay_seconds: float

    @classmethod
    def from_config(cls, config: IcebergTableManagerConfig) -> "CommitBudget":
        """The budget that a manager's configuration allows."""
        return cls(config.max_commit_retries, config.retry_base_delay_seconds)

    @property
    def total_seconds(self) -> float:
        """Sum of the exponential delays."""
        return float(self.base_delay_seconds * (2**self.retries - 1))

    def allows(self, attempts: int, waited_seconds: float) -> bool:
        """Whether there may be another attempt after this many."""
        return attempts <= self.retries or waited_seconds < self.total_seconds

    def wait_seconds(self, attempts: int) -> float:
        """A random wait; its bound doubles with each attempt up to the base delay."""
        # A power that no float can hold comes long after the bound is reached.
        bound = min(_SHORTEST_WAIT_SECONDS * 2 ** min(attempts, _MOST_DOUBLINGS), self.base_delay_seconds)
        return random.uniform(_SHORTEST_WAIT_SECONDS, bound)  # noqa: S311 - spreads writers, guards nothing


@dataclass(frozen=True)
class Committed:
    """What a commit took.

    Attributes:
        table: The table as the commit left it.
        attempts: How often it was sent.
        by_us: False when a snapshot of the same id was there that another process made, so that
            the files of this one are nobody's.
    """

    table: Table
    attempts: int
    by_us: bool = True


def new_snapshot_id() -> int:
    """A random positive 63-bit id, as Iceberg's own are."""
    return secrets.randbits(63) or 1


def _describe(table: Table, *_: object, **__: object) -> dict[str, Any]:
    return describe_table(table.name())


def tell_attempts(operation: Operation, committed: Committed) -> None:
    """Tell how often a commit was sent."""
    operation.tell({names.ATTEMPTS: committed.attempts})


@traced_step("commit", _describe, report=tell_attempts)
def commit(
    table: Table,
    stage: Callable[[TableTransaction], None],
    *,
    budget: CommitBudget,
    snapshot_id: int | None = None,
    on_lost_answer: Callable[[], None] | None = None,
) -> Committed:
    """Commit what `stage` puts into a transaction, as one new version of the table.

    Args:
        table: The table as last seen; refreshed in place.
        stage: Plans the change on the transaction's metadata. Called again, on fresh metadata,
            for each attempt; staging nothing means there is nothing to do.
        budget: How often to try against other writers.
        snapshot_id: Id of the snapshot that the commit adds. With it a commit whose answer was
            lost is recognised, so that it is never made twice.
        on_lost_answer: Called before the next attempt when one may still land; its files must stay.

    Raises:
        CommitConflictError: Others won more often than the budget allows, or changed the same rows.
        CommitOutcomeUnknownError: The catalog went away and nobody can say whether the commit landed.
    """
    name = ".".join(table.name())
    attempts, waited = 0, 0.0
    # Of every attempt: a commit that landed may be answered by a conflict, when something on the way sent it twice.
    sent: set[str] = set()
    unanswered = False
    while True:
        attempts += 1
        if attempts > 1:
            count_retry(name, engine=_ENGINE)
        transaction, planned_on = TableTransaction(table), table.metadata_location
        with _outcome_unknown(name, snapshot_id) if unanswered else nullcontext():
            failure = _attempt(transaction, stage, name)
        if failure is None:
            return Committed(table, attempts)
        sent.update(transaction.manifest_lists)
        if isinstance(failure, CommitOutcomeUnknownError | CatalogConnectionError):
            if snapshot_id is None:
                raise failure
            unanswered = True
            if on_lost_answer is not None:
                on_lost_answer()
        wait = budget.wait_seconds(attempts)
        time.sleep(wait)
        waited += wait
        landed = _look(transaction, name, snapshot_id, failure)
        if landed is not None:
            return Committed(table, attempts, by_us=landed.manifest_list in sent)
        spent = not budget.allows(attempts, waited)
        if isinstance(failure, ValidationError) and (spent or table.metadata_location == planned_on):
            with _outcome_unknown(name, snapshot_id) if unanswered else nullcontext():
                raise failure
        if spent:
            raise _exhausted(name, attempts, snapshot_id, failure) from failure


@contextmanager
def _outcome_unknown(name: str, snapshot_id: int | None) -> Iterator[None]:
    """Whatever keeps an attempt from being made: an earlier one may still land, unless the branch has moved."""
    try:
        yield
    except CommitConflictError:
        raise
    except FloeStorageError as error:
        raise CommitOutcomeUnknownError(name, snapshot_id=snapshot_id, reason=type(error).__name__) from error


def _attempt(
    transaction: TableTransaction, stage: Callable[[TableTransaction], None], name: str
) -> FloeStorageError | None:
    """Plan and send once; returns the failure when another attempt may help, raises when none will."""
    try:
        stage(transaction)
    except BaseException as error:
        transaction.discard_metadata_files()
        if isinstance(error, CommitConflictError):
            count_conflict(name, engine=_ENGINE)
        raise
    if not transaction.changes_anything:
        return None
    try:
        with translated(transaction.table.catalog.name, table=name):
            transaction.commit_once()
    # A server calls a request invalid, too, that became so by what others did meanwhile: expired what it refers to.
    except (CommitConflictError, CommitOutcomeUnknownError, CatalogConnectionError, ValidationError) as failure:
        # The manifests stay for now: they belong to the table if the commit landed after all.
        if isinstance(failure, CommitConflictError):
            count_conflict(name, engine=_ENGINE)
        return failure
    except FloeStorageError:
        transaction.discard_metadata_files()
        raise
    return None


def refresh(table: Table) -> None:
    """Bring a handle up to date.

    Raises:
        CommitConflictError: The name belongs to another table by now.
    """
    name = ".".join(table.name())
    try:
        with translated(table.catalog.name, table=name):
            table.refresh()
    except ValueError as error:
        if "UUID does not match" not in str(error):
            raise
        raise CommitConflictError(name, attempts=1, reason="it was dropped and created again") from error


def _look(
    transaction: TableTransaction, name: str, snapshot_id: int | None, failure: FloeStorageError
) -> Snapshot | None:
    """The snapshot, if it is there for all that the catalog said; what a refused attempt wrote goes."""
    refused, table = isinstance(failure, CommitConflictError | ValidationError), transaction.table
    try:
        refresh(table)
    except FloeStorageError as gone:
        away = isinstance(gone, CatalogConnectionError | CatalogAuthenticationError)
        if refused and (snapshot_id is None or not away):
            transaction.discard_metadata_files()
            raise
        # Whatever keeps us from looking, a token that expired for instance: the commit may have landed.
        reason = gone.details.get("reason", type(gone).__name__)
        raise CommitOutcomeUnknownError(name, snapshot_id=snapshot_id, reason=str(reason)) from failure
    landed = None if snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id)
    if refused and (landed is None or landed.manifest_list not in transaction.manifest_lists):
        transaction.discard_metadata_files()
    return landed


def _exhausted(name: str, attempts: int, snapshot_id: int | None, failure: FloeStorageError) -> FloeStorageError:
    if isinstance(failure, CommitConflictError):
        return CommitConflictError(name, attempts=attempts, reason=failure.reason)
    reason = failure.details.get("reason", "no answer")
    return CommitOutcomeUnknownError(name, snapshot_id=snapshot_id, reason=str(reason))
