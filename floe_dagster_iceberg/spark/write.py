"""One write of a DataFrame into an existing table: schema first, then rows, then the check that they are committed."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from pyiceberg.expressions import AlwaysFalse
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import DataFrame

from floe_dagster_iceberg import errors
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.models import SnapshotInfo, WriteMode
from floe_dagster_iceberg.models.writing import MergeRules
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.spark import staging_branch as staging, statements
from floe_dagster_iceberg.spark.committer import SparkCommitter
from floe_dagster_iceberg.spark.errors import SPARK_ERRORS, FailureKind, kind_of, name_of, redacted, to_error
from floe_dagster_iceberg.spark.filters import to_condition
from floe_dagster_iceberg.spark.frame_rows import FrameRows, stored_columns
from floe_dagster_iceberg.spark.types import check_types, to_arrow_schema
from floe_dagster_iceberg.table.commit.commit import NEWEST_FORMAT_OF_PYICEBERG, CommitBudget, commit
from floe_dagster_iceberg.table.commit.refs import fork_branch, head_of, remove_ref
from floe_dagster_iceberg.table.filter.row_filter import compares_uuids
from floe_dagster_iceberg.table.schema.convert import check_format_version
from floe_dagster_iceberg.table.schema.reconcile import ColumnChange, apply_changes, reconcile
from floe_dagster_iceberg.table.write.exactly_once import find_committed_write
from floe_dagster_iceberg.table.write.merge import MergeCounts
from floe_dagster_iceberg.table.write.write import (
    TableWrite,
    TableWriteResult,
    docs_to_write,
    refuse_shared_changes,
    stage_properties,
)
from floe_dagster_iceberg.telemetry.metrics import count_conflict, count_retry

# After these nothing was sent to the catalog, so there is no snapshot to look for.
_BEFORE_THE_COMMIT = (
    FailureKind.ROW_OUTSIDE,
    FailureKind.NULL_IN_REQUIRED,
    FailureKind.INEXACT_NUMBER,
    FailureKind.PARTIAL_MATCH,
)

# What Iceberg notes of a MERGE in the summary of its snapshot.
_NOTED: Final = "spark.merge-into.num-target-rows-"


def write_rows(table: Table, frame: DataFrame, write: TableWrite, budget: CommitBudget) -> TableWriteResult:
    """Write a DataFrame's rows into a table; retries conflicts.

    Raises:
        FloeStorageError: As `exactly_once.write_once` says.
    """
    return _WriteRun(table, frame, write, budget).run()


def delete_rows(table: Table, no_rows: DataFrame, write: TableWrite, budget: CommitBudget) -> TableWriteResult:
    """Delete the rows of a write's scope; retries conflicts.

    Args:
        table: The table.
        no_rows: An empty DataFrame with the table's columns.
        write: Which rows go, and the properties of the snapshot.
        budget: How often to try against other writers.

    Raises:
        FloeStorageError: As `exactly_once.write_once` says.
    """
    return _DeleteRun(table, no_rows, write, budget).run()


class _WriteRun:
    def __init__(self, table: Table, frame: DataFrame, write: TableWrite, budget: CommitBudget) -> None:
        self._table, self._frame, self._write, self._budget = table, frame, write, budget
        self._committer = SparkCommitter(lambda: frame.sparkSession)
        self._name = str(write.table)
        self._attempts = 0
        self._changes: list[ColumnChange] = []
        self._through_branch = False
        # Only known after a failure: counting them beforehand would compute the DataFrame twice.
        self._nulls: Mapping[str, int] = {}

    def run(self) -> TableWriteResult:
        check_types(self._table.schema(), self._name)
        new_branch = self._write.branch not in {MAIN_BRANCH, *self._table.metadata.refs}
        try:
            while True:
                self._attempts += 1
                if (written := self._attempt()) is not None:
                    return written
        except errors.CommitOutcomeUnknownError:
            raise
        except BaseException:
            if new_branch:
                self._remove_branch()
            raise

    def _attempt(self) -> TableWriteResult | None:
        """The result; None if another attempt may succeed."""
        planned = TableTransaction(self._table)
        self._stage_changes(planned)
        rows = FrameRows(self._frame, planned.table_metadata.schema(), self._write)
        try:
            if planned.changes_anything or self._write.mode is WriteMode.UPSERT:
                # Rows that are refused must not change anything, not even the schema.
                rows.check()
            self._change_table()
            if rows.fits(self._table.schema()):
                return self._send(rows)
            # Another writer changed the columns, so the rows have to be conformed again.
            self._wait_for_another_attempt(FailureKind.COMMIT_LOST)
            return None
        finally:
            rows.close()

    def _stage_changes(self, transaction: TableTransaction) -> list[ColumnChange]:
        before, write = transaction.table_metadata, self._write
        schema = before.schema()
        columns = stored_columns(to_arrow_schema(self._frame.schema, schema), write, schema)
        changes = reconcile(
            self._name,
            schema,
            columns,
            null_count=self._nulls.get,
            mode=write.evolution,
            docs=docs_to_write(write, before),
        )
        refuse_shared_changes(write, before, changes)
        if changes:
            apply_changes(self._name, transaction, changes)
            metadata = transaction.table_metadata
            check_format_version(self._name, metadata.schema(), metadata.format_version)
        stage_properties(transaction, write.properties)
        return changes

    def _change_table(self) -> None:
        """Commit what the rows need: columns, properties, the branch; no commit if nothing is missing."""
        changes: list[ColumnChange] = []

        def stage(transaction: TableTransaction) -> None:
            changes[:] = self._stage_changes(transaction)
            branch = self._write.branch
            fork_branch(transaction, branch, head_of(transaction.table_metadata, branch, self._name))

        with translate_errors(self._table.catalog.name, table=self._name):
            if self._needs_first_branch:
                self._committer.create_first_branch(self._table, self._write.branch)
            commit(self._table, stage, budget=self._budget, through=self._through)
        self._changes += changes

    def _through(self) -> SparkCommitter:
        return self._committer

    @property
    def _needs_first_branch(self) -> bool:
        """Whether a branch is to be created in an empty table that PyIceberg cannot add a first snapshot to."""
        metadata, branch = self._table.metadata, self._write.branch
        is_new = branch != MAIN_BRANCH and branch not in metadata.refs
        return (
            is_new
            and metadata.format_version > NEWEST_FORMAT_OF_PYICEBERG
            and head_of(metadata, branch, self._name) is None
        )

    def _send(self, rows: FrameRows) -> TableWriteResult | None:
        try:
            self._run_statements(rows)
        except staging.BranchMovedError:
            self._wait_for_another_attempt(FailureKind.COMMIT_LOST)
            return None
        except SPARK_ERRORS as error:
            kind = kind_of(error)
            snapshot = None if kind in _BEFORE_THE_COMMIT else self._look_for_snapshot(kind, error)
            if snapshot is None:
                self._recover(kind, error, rows)
                return None
        else:
            snapshot = self._find()
        if snapshot is None:
            raise self._outcome_unknown("Spark reported success")
        return self._result(snapshot, rows)

    def _run_statements(self, rows: FrameRows) -> None:
        write = self._write
        head = head_of(self._table.metadata, write.branch, self._name)
        target = statements.WriteTarget(
            self._table.catalog.name, write.table, write.summary_properties, write.branch, in_order=bool(write.sort_by)
        )
        if write.precondition is not None:
            write.precondition(self._table.metadata, write.branch)
        if write.mode is not WriteMode.OVERWRITE or isinstance(rows.where, AlwaysFalse):
            if write.precondition is None or head is None:
                self._add(rows, target, head)
                return
            # Spark's own commit would also succeed if the branch has moved since the precondition was checked.
            with self._staged(target, head) as staged:
                self._add(rows, staged, head)
        elif head is not None and (
            self._through_branch
            or compares_uuids(self._table.schema(), rows.where)
            or staging.has_partially_matching_file(self._table, head, rows.where)
        ):
            self._replace_on_branch(rows, target, head)
        else:
            condition = to_condition(rows.where, self._table.schema(), for_overwrite=True)
            statements.replace(
                rows.arranged(self._table), target, condition, since=head, last_write_wins=write.last_write_wins
            )

    def _add(self, rows: FrameRows, target: statements.WriteTarget, head: Snapshot | None) -> None:
        rules, condition = self._write.merge, rows.partition_check.condition
        if self._write.mode is not WriteMode.UPSERT:
            statements.append(rows.arranged(self._table), target)
            return
        present = None
        if rules.on_missing == "delete" and head is not None:
            present = self._frame.sparkSession.table(target.name).where(condition)
        statements.merge(rows.checked(present), target, rules, condition)

    @contextmanager
    def _staged(self, target: statements.WriteTarget, base: Snapshot) -> Iterator[statements.WriteTarget]:
        """A branch to write to, which is published if the target still stands at `base` then."""
        with staging.staging_branch(self._table, self._name, base, self._budget, self._through) as branch:
            yield replace(target, branch=branch)
            self._refresh()
            staging.publish(
                self._table,
                staged=branch,
                target=target.branch,
                base=base,
                budget=self._budget,
                through=self._through,
            )

    def _replace_on_branch(self, rows: FrameRows, target: statements.WriteTarget, base: Snapshot) -> None:
        try:
            with self._staged(target, base) as staged:
                # Only the last snapshot is the write.
                before = replace(staged, snapshot_properties=self._write.snapshot_properties)
                statements.delete(self._frame.sparkSession, before, rows.partition_check.condition)
                statements.append(rows.arranged(self._table), staged)
        except staging.BranchMovedError:
            # Rows that were committed after this write began are not replaced; nor does Iceberg's own overwrite.
            head = head_of(self._table.metadata, self._write.branch, self._name)
            if head is None or staging.rows_changed(self._table, base, head, rows.where):
                raise self._conflict(FailureKind.ROWS_CHANGED) from None
            raise

    def _recover(self, kind: FailureKind, error: BaseException, rows: FrameRows) -> None:
        """Prepare for another attempt, or raise."""
        if kind is FailureKind.NULL_IN_REQUIRED and not self._nulls:
            self._nulls = rows.count_nulls()
        elif kind is FailureKind.PARTIAL_MATCH and not self._through_branch:
            self._through_branch = True
        elif kind is FailureKind.COMMIT_LOST:
            self._wait_for_another_attempt(kind, error)
        else:
            raise self._to_error(kind, error, rows) from redacted(error)

    def _to_error(self, kind: FailureKind, error: BaseException, rows: FrameRows) -> errors.FloeStorageError:
        match kind:
            case FailureKind.ROW_OUTSIDE:
                return rows.partition_check.error(rows.count_outside())
            case FailureKind.ROWS_CHANGED:
                count_conflict(self._name, engine="spark")
                return self._conflict(kind)
            case FailureKind.OUTCOME_UNKNOWN:
                return self._outcome_unknown(name_of(error))
            case FailureKind.TABLE_GONE:
                return errors.NoSuchTableError(self._write.table)
            case _:
                return to_error(error, catalog=self._table.catalog.name, table=self._name)

    def _conflict(self, kind: FailureKind) -> errors.CommitConflictError:
        return errors.CommitConflictError(self._name, attempts=self._attempts, reason=kind.value)

    def _outcome_unknown(self, reason: str) -> errors.CommitOutcomeUnknownError:
        return errors.CommitOutcomeUnknownError(self._name, snapshot_id=None, reason=reason)

    def _wait_for_another_attempt(self, kind: FailureKind, error: BaseException | None = None) -> None:
        count_conflict(self._name, engine="spark")
        if self._attempts > self._budget.retries:
            raise self._conflict(kind) from redacted(error)
        count_retry(self._name, engine="spark")
        time.sleep(self._budget.wait_seconds(self._attempts))

    def _look_for_snapshot(self, kind: FailureKind, error: BaseException) -> Snapshot | None:
        """The snapshot, if the commit succeeded although Spark failed.

        An unknown outcome is checked for as long as a commit may take. Writing again is not safe:
        snapshots of Spark have random ids, so the catalog could not refuse a second one.
        """
        is_unknown, looks = kind is FailureKind.OUTCOME_UNKNOWN, 0
        until = time.monotonic() + (self._budget.total_seconds if is_unknown else 0)
        while True:
            looks += 1
            try:
                snapshot = self._find()
            except errors.CatalogConnectionError as gone:
                if not is_unknown:
                    raise
                raise self._outcome_unknown(gone.reason) from redacted(error)
            if snapshot is not None or time.monotonic() >= until:
                return snapshot
            time.sleep(self._budget.wait_seconds(looks))

    def _refresh(self) -> None:
        with translate_errors(self._table.catalog.name, table=self._name):
            self._table.refresh()

    def _find(self) -> Snapshot | None:
        self._refresh()
        return find_committed_write(self._table.metadata, self._write.branch, self._write.idempotency_key)

    def _result(self, committed: Snapshot, rows: FrameRows) -> TableWriteResult:
        snapshot = SnapshotInfo.from_pyiceberg_snapshot(committed)
        outside = rows.outside(rows_written=snapshot.added_records)
        return TableWriteResult(
            self._table,
            snapshot,
            # An upsert's files also hold rows that were in the table before.
            rows=None if self._write.mode is WriteMode.UPSERT else snapshot.added_records,
            attempts=self._attempts,
            schema_changes=tuple(map(str, self._changes)),
            rows_outside=outside.rows,
            rows_dropped=rows.partition_check.dropped(outside),
            merged=_merged(snapshot, rows, self._write.merge) if self._write.mode is WriteMode.UPSERT else None,
        )

    def _remove_branch(self) -> None:
        """Remove the branch that was created for rows that were not written."""
        try:
            if self._find() is None:
                commit(
                    self._table,
                    lambda staged: remove_ref(staged, self._name, self._write.branch),
                    budget=self._budget,
                    through=self._through,
                )
        except errors.FloeStorageError:
            # The first failure is the one to report; the branch holds what main holds.
            return


def _merged(snapshot: SnapshotInfo, rows: FrameRows, rules: MergeRules) -> MergeCounts | None:
    """What MERGE did, as Iceberg has noted it in the snapshot; older versions of it do not."""
    given = rows.key_counts.rows
    if rules.only_inserts:
        # Spark executes it as an append, for which nothing is noted.
        inserted = snapshot.added_records
        return MergeCounts.of(given=given, inserted=inserted, updated=0, deleted=0, missing=0)
    noted = {what: snapshot.summary.get(f"{_NOTED}{what}") for what in ("inserted", "updated", "deleted")}
    if None in noted.values():
        return None
    counts = {what: int(number or 0) for what, number in noted.items()}
    return MergeCounts.of(given=given, missing=rows.missing_rows, **counts)


class _DeleteRun(_WriteRun):
    """Removes rows and adds none."""

    def _run_statements(self, rows: FrameRows) -> None:
        write, schema = self._write, self._table.schema()
        target = statements.WriteTarget(self._table.catalog.name, write.table, write.summary_properties, write.branch)
        head = head_of(self._table.metadata, write.branch, self._name)
        if (
            self._through_branch
            or head is None
            or compares_uuids(schema, rows.where)
            or staging.has_partially_matching_file(self._table, head, rows.where)
        ):
            statements.delete(self._frame.sparkSession, target, rows.partition_check.condition)
        else:
            # A DELETE of whole files loses the snapshot's properties, and with them the key that finds the commit.
            condition = to_condition(rows.where, schema, for_overwrite=True)
            statements.replace(self._frame, target, condition, since=head, last_write_wins=True)
