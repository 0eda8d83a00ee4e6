"""One commit to one table: planned, sent, planned again when another writer was faster.

Every commit goes through `commit`: data and metadata, new tables and existing ones. PyIceberg's own retry is not
used: it repeats only the snapshot part, so a commit that also changes the schema could never land after a conflict.
"""

import hashlib
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Protocol, TypeAlias

from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from floe_dagster_iceberg import errors
from floe_dagster_iceberg._pyiceberg.transaction import CreateTransaction, TableTransaction
from floe_dagster_iceberg.models import IcebergTableManagerConfig, TableIdentifier
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.properties import FOR_METADATA, check_properties
from floe_dagster_iceberg.telemetry import attributes as attrs, describe_table, step
from floe_dagster_iceberg.telemetry.metrics import count_conflict, count_retry

NEWEST_FORMAT_OF_PYICEBERG: Final = 2
"""The newest format version of tables that PyIceberg can commit to."""
_SHORTEST_WAIT_SECONDS = 0.02
_MOST_DOUBLINGS = 20
_ENGINE = "pyiceberg"
# A server also calls a request invalid that others made so: by expiring a snapshot that it refers to.
_REFUSALS = (errors.CommitConflictError, errors.TableAlreadyExistsError, errors.ValidationError)
_NO_RESPONSE = (errors.CommitOutcomeUnknownError, errors.CatalogConnectionError)


@dataclass(frozen=True)
class CommitBudget:
    """How long a commit keeps trying against other writers.

    There are at least `retries` retries, and more until their exponential delays have been waited: a writer that
    only lost a race plans again at once, because the table made progress. Only waiting counts, not planning, which
    takes long on a busy machine, when most races are lost.
    """

    retries: int
    base_delay_seconds: float

    @classmethod
    def from_config(cls, config: IcebergTableManagerConfig) -> "CommitBudget":
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
        # The bound is reached long before the power overflows a float.
        bound = min(_SHORTEST_WAIT_SECONDS * 2 ** min(attempts, _MOST_DOUBLINGS), self.base_delay_seconds)
        return random.uniform(_SHORTEST_WAIT_SECONDS, bound)  # noqa: S311 - spreads writers, checks nothing


@dataclass(frozen=True)
class NewTable:
    """A table that a commit creates; `open` stages it for each attempt."""

    catalog: Catalog
    identifier: TableIdentifier
    open_transaction: Callable[[], CreateTransaction]

    def name(self) -> tuple[str, ...]:
        return self.identifier.as_tuple

    def open(self) -> CreateTransaction:
        """Stage the table.

        Raises:
            TableAlreadyExistsError: It exists, and the catalog checks that now; others do when it is committed.
        """
        with translate_errors(self.catalog.name, table=self.identifier):
            return self.open_transaction()


class MetadataCommitter(Protocol):
    """Commits changes of metadata to tables that PyIceberg cannot commit to; this is Spark."""

    def change_table(self, table: Table, after: TableMetadata) -> None:
        """Turn a table into another version, and refresh the handle.

        Raises:
            CommitConflictError: The table is no longer the one that the change was planned on.
        """


CommitterProvider: TypeAlias = Callable[[], MetadataCommitter]
"""Returns it; called when it is first needed, because it loads PySpark and starts Spark."""


@dataclass(frozen=True)
class Committed:
    """The result of a commit.

    Attributes:
        table: The table after the commit.
        attempts: How often it was sent.
        committed_by_this_process: False if another process made a snapshot of the same id, or created the table:
            the files of this process then belong to no table.
    """

    table: Table
    attempts: int
    committed_by_this_process: bool = True


def new_snapshot_id() -> int:
    """A random positive 63-bit id, like Iceberg's own."""
    return secrets.randbits(63) or 1


def load_table_or_none(catalog: Catalog, identifier: TableIdentifier) -> Table | None:
    """The table, or None if it does not exist."""
    try:
        with translate_errors(catalog.name, table=identifier):
            return catalog.load_table(identifier.as_tuple)
    except errors.NoSuchTableError:
        return None


def view_exists(catalog: Catalog, identifier: TableIdentifier) -> bool:
    """Whether a view has this name; False if the catalog cannot tell, or does not permit the question."""
    try:
        with translate_errors(catalog.name, table=identifier):
            return bool(catalog.view_exists(identifier.as_tuple))
    except errors.FloeStorageError:
        return False


def commits_metadata(table: Table) -> bool:
    """Whether PyIceberg can commit changes of a table's metadata.

    Clients of SQL, Glue and Hive catalogs write the metadata file, and PyIceberg does not write those of format
    version 3. A REST server writes the file itself.
    """
    is_old = table.metadata.format_version <= NEWEST_FORMAT_OF_PYICEBERG
    return is_old or not isinstance(table.catalog, MetastoreCatalog)


def refuse_newer_format(table: object, format_version: int) -> None:
    """Refuse to write rows to a table, or to create it, in a format version that PyIceberg does not write.

    Raises:
        EngineCapabilityError: It is a newer version.
    """
    if format_version <= NEWEST_FORMAT_OF_PYICEBERG:
        return
    raise errors.EngineCapabilityError(
        f"Table '{table}' has, or is to have, format version {format_version}, which PyIceberg does not write. Spark "
        "does: return a Spark DataFrame, or configure an IcebergSparkResource, on the IO manager as 'pyspark'.",
        engine="arrow",
        table=table,
        reason=f"PyIceberg does not write format version {format_version}",
    )


def commit(
    target: Table | NewTable,
    stage: Callable[[Any], None],
    *,
    budget: CommitBudget,
    snapshot_id: int | None = None,
    on_lost_response: Callable[[], None] | None = None,
    through: CommitterProvider | None = None,
) -> Committed:
    """Commit what `stage` puts into a transaction, as one new version of the table.

    Sending it again after a lost response is safe: the catalog refuses a second snapshot of the same id, and a
    second table of the same name.

    Args:
        target: The table as last seen, refreshed in place; or one to be created.
        stage: Stages the change on the transaction's metadata, for each attempt anew; nothing staged is no commit.
        budget: How often to try against other writers.
        snapshot_id: Id of the snapshot that the commit adds, by which a commit whose response was lost is recognised.
        on_lost_response: Called before the next attempt if one may still land; its files must stay.
        through: Commits changes of metadata to a table that PyIceberg cannot commit to.

    Returns:
        The table; also if another process created it first.

    Raises:
        EngineCapabilityError: PyIceberg cannot commit to the table, and there is no `through`.
        CommitConflictError: Others won more often than the budget allows, or changed the same rows.
        CommitOutcomeUnknownError: The catalog became unreachable: the commit may have landed.
    """
    attributes = describe_table(target.name())
    name = attributes[attrs.TABLE]
    if isinstance(target, Table) and through is None and not commits_metadata(target):
        refuse_newer_format(name, target.metadata.format_version)
    with step("commit", attributes) as operation:
        committed = _commit(
            target, name, stage, budget, snapshot_id=snapshot_id, on_lost_response=on_lost_response, through=through
        )
        operation.set_attributes({attrs.ATTEMPTS: committed.attempts})
        return committed


def _commit(
    target: Table | NewTable,
    name: str,
    stage: Callable[[Any], None],
    budget: CommitBudget,
    *,
    snapshot_id: int | None,
    on_lost_response: Callable[[], None] | None,
    through: CommitterProvider | None,
) -> Committed:
    attempts, waited = 0, 0.0
    # Of every attempt: a proxy that sends a commit twice turns the response to one that landed into a conflict.
    sent: set[str] = set()
    response_lost = False
    while True:
        attempts += 1
        planned_on = target.metadata_location if isinstance(target, Table) else None
        with _after_lost_response(target, snapshot_id) if response_lost else nullcontext():
            transaction = TableTransaction(target) if isinstance(target, Table) else _open(target)
            if isinstance(transaction, Table):
                return Committed(transaction, attempts, _manifest_list(transaction, snapshot_id) in sent)
            result = _attempt(transaction, stage, name, through)
        if isinstance(result, Table):
            return Committed(result, attempts)
        sent.update(transaction.manifest_lists)
        if isinstance(result, _NO_RESPONSE):
            if snapshot_id is None:
                raise result
            response_lost = True
            if on_lost_response is not None:
                on_lost_response()
        wait = budget.wait_seconds(attempts)
        time.sleep(wait)
        waited += wait
        table, landed = _look(target, transaction, snapshot_id, result)
        if table is not None and (landed is not None or isinstance(target, NewTable)):
            return Committed(table, attempts, landed is not None and landed.manifest_list in sent)
        spent = not budget.allows(attempts, waited)
        unchanged = planned_on == (None if table is None else table.metadata_location)
        if isinstance(result, errors.ValidationError | errors.TableAlreadyExistsError) and (spent or unchanged):
            with _after_lost_response(target, snapshot_id) if response_lost else nullcontext():
                raise result
        if spent:
            # After a conflict over a table that is gone again, an earlier attempt may still create it.
            refused = isinstance(target, Table) or not response_lost
            raise _exhausted(name, attempts, snapshot_id, result, refused=refused) from result
        count_retry(name, engine=_ENGINE)


def _open(target: NewTable) -> CreateTransaction | Table:
    """Stage a new table; returns the table instead that another process, or a lost attempt of ours, has created."""
    try:
        return target.open()
    except errors.TableAlreadyExistsError:
        if (table := load_table_or_none(target.catalog, target.identifier)) is None:
            raise
        return table


def _manifest_list(table: Table, snapshot_id: int | None) -> str | None:
    snapshot = None if snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id)
    return None if snapshot is None else snapshot.manifest_list


@contextmanager
def _after_lost_response(target: Table | NewTable, snapshot_id: int | None) -> Iterator[None]:
    """Report any failure but a conflict as unknown: an earlier attempt may still land, unless the branch moved."""
    name = table_name(target)
    try:
        with translate_errors(target.catalog.name, table=name):
            yield
    except errors.CommitConflictError:
        raise
    except errors.FloeStorageError as error:
        raise errors.CommitOutcomeUnknownError(name, snapshot_id=snapshot_id, reason=type(error).__name__) from error


def _attempt(
    transaction: TableTransaction | CreateTransaction,
    stage: Callable[[Any], None],
    name: str,
    through: CommitterProvider | None,
) -> Table | errors.FloeStorageError:
    """Plan and send once; returns the failure when another attempt may help, raises when none will."""
    try:
        stage(transaction)
        if transaction.changes_anything and isinstance(transaction.table.catalog, MetastoreCatalog):
            check_properties(transaction.table_metadata.properties, name, only=FOR_METADATA)
    except BaseException as error:
        transaction.discard_metadata_files()
        if isinstance(error, errors.CommitConflictError):
            count_conflict(name, engine=_ENGINE)
        raise
    table = transaction.table
    if not transaction.changes_anything:
        return table
    try:
        with translate_errors(table.catalog.name, table=name):
            if isinstance(transaction, CreateTransaction):
                return transaction.commit_once()
            if through is not None and not commits_metadata(table):
                through().change_table(table, transaction.table_metadata)
            else:
                transaction.commit_once()
            return table
    except (*_REFUSALS, *_NO_RESPONSE) as failure:
        # The manifests stay for now: they belong to the table if the commit landed.
        if isinstance(failure, errors.CommitConflictError):
            count_conflict(name, engine=_ENGINE)
        return failure
    except errors.FloeStorageError:
        transaction.discard_metadata_files()
        raise


def refresh(table: Table) -> None:
    """Refresh a handle.

    Raises:
        CommitConflictError: The name belongs to another table now.
    """
    name = table_name(table)
    try:
        with translate_errors(table.catalog.name, table=name):
            table.refresh()
    except ValueError as error:
        if "UUID does not match" not in str(error):
            raise
        raise errors.CommitConflictError(name, attempts=1, reason="it was dropped and created again") from error


def _look(
    target: Table | NewTable,
    transaction: TableTransaction | CreateTransaction,
    snapshot_id: int | None,
    failure: errors.FloeStorageError,
) -> tuple[Table | None, Snapshot | None]:
    """The table and the snapshot, if they exist despite the failure; the manifests of a refused attempt are deleted."""
    refused = isinstance(failure, _REFUSALS)
    table: Table | None
    try:
        if isinstance(target, Table):
            refresh(target)
            table = target
        else:
            table = load_table_or_none(target.catalog, target.identifier)
    except errors.FloeStorageError as gone:
        away = isinstance(gone, errors.CatalogConnectionError | errors.CatalogAuthenticationError)
        if refused and isinstance(target, Table) and (snapshot_id is None or not away):
            transaction.discard_metadata_files()
            raise
        # For example an expired token: the commit may have landed.
        reason = gone.details.get("reason", type(gone).__name__)
        raise errors.CommitOutcomeUnknownError(
            table_name(target), snapshot_id=snapshot_id, reason=str(reason)
        ) from failure
    landed = None if table is None or snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id)
    if refused and (landed is None or landed.manifest_list not in transaction.manifest_lists):
        transaction.discard_metadata_files()
    return table, landed


def _exhausted(
    name: str, attempts: int, snapshot_id: int | None, failure: errors.FloeStorageError, *, refused: bool
) -> errors.FloeStorageError:
    if refused and isinstance(failure, errors.CommitConflictError):
        return errors.CommitConflictError(name, attempts=attempts, reason=failure.reason)
    reason = failure.details.get("reason", "no response")
    return errors.CommitOutcomeUnknownError(name, snapshot_id=snapshot_id, reason=str(reason))


def snapshot_id_for(key: str | None, metadata: TableMetadata | None) -> int:
    """A snapshot id derived from a key, so that two processes doing the same work choose the same one.

    The catalog refuses a second snapshot of the same id. An id that the table has already, rolled back, is skipped.
    Without a key the id is random.
    """
    if key is None:
        return new_snapshot_id()
    for number in count():
        digest = hashlib.sha256(f"{key}#{number}".encode()).digest()
        snapshot_id = int.from_bytes(digest[:8]) >> 1 or 1
        if metadata is None or metadata.snapshot_by_id(snapshot_id) is None:
            return snapshot_id
    raise AssertionError("count() has no end")
