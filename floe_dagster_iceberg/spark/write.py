"""One write of a frame into a table that is there: schema first, then rows, then proof that they are in."""

import time
from collections.abc import Mapping
from dataclasses import replace

from pyiceberg.expressions import AlwaysFalse
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import DataFrame

from floe_dagster_iceberg import errors
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.models import SnapshotInfo, WriteMode
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.spark import statements
from floe_dagster_iceberg.spark.errors import SPARK_ERRORS, Failure, kind_of, name_of, shown, to_error
from floe_dagster_iceberg.spark.frame_rows import FrameRows
from floe_dagster_iceberg.spark.staging_branch import (
    BranchMovedError,
    has_partially_matching_file,
    publish,
    rows_changed,
    staging_branch,
)
from floe_dagster_iceberg.spark.types import to_arrow_schema
from floe_dagster_iceberg.table.commit.commit import CommitBudget, commit
from floe_dagster_iceberg.table.commit.refs import fork_branch, head_of, remove_ref
from floe_dagster_iceberg.table.schema.reconcile import ColumnChange, apply_changes, reconcile
from floe_dagster_iceberg.table.write.exactly_once import find_committed_write
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult, stage_properties
from floe_dagster_iceberg.telemetry.metrics import count_conflict, count_retry

# After these nothing was sent to the catalog, so there is nothing to look for.
_BEFORE_THE_COMMIT = (Failure.ROW_OUTSIDE, Failure.NULL_IN_REQUIRED, Failure.FILE_STRADDLES)


class FrameWrite:
    """A frame on its way into a table."""

    def __init__(self, table: Table, frame: DataFrame, write: TableWrite, budget: CommitBudget) -> None:
        self._table, self._frame, self._write, self._budget = table, frame, write, budget
        self._name = str(write.table)
        self._attempts = 0
        self._changes: list[ColumnChange] = []
        self._through_branch = False
        # Found out by failing: counting them beforehand would mean computing the frame twice.
        self._nulls: Mapping[str, int] = {}

    def run(self) -> TableWriteResult:
        """Write, again where that may help.

        Raises:
            FloeStorageError: As `write_frame_once` says.
        """
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
        """What was written; None when another attempt may get there."""
        planned = TableTransaction(self._table)
        self._stage_changes(planned)
        rows = FrameRows(self._frame, planned.table_metadata.schema(), self._write)
        try:
            if planned.changes_anything or self._write.mode is WriteMode.UPSERT:
                # Rows that are refused shall change nothing, not even the schema.
                self._check(rows)
            self._change_table()
            if rows.fits(self._table.schema()):
                return self._send(rows)
            # Another writer was here; with its columns the rows may look different.
            self._wait_for_another_attempt(Failure.COMMIT_LOST)
            return None
        finally:
            rows.close()

    def _check(self, rows: FrameRows) -> None:
        try:
            rows.check()
        except SPARK_ERRORS as error:
            raise to_error(error, catalog=self._table.catalog.name, table=self._name) from shown(error)

    def _stage_changes(self, transaction: TableTransaction) -> list[ColumnChange]:
        """Plan what makes the table ready for the rows."""
        schema, write = transaction.table_metadata.schema(), self._write
        columns = to_arrow_schema(self._frame.schema, schema)
        changes = reconcile(self._name, schema, columns, null_counts=self._nulls, mode=write.evolution)
        if changes:
            apply_changes(self._name, transaction, changes)
        stage_properties(transaction, write.properties)
        return changes

    def _change_table(self) -> None:
        """Make the table ready for the rows, in one commit or, when it is, in none."""
        changes: list[ColumnChange] = []

        def stage(transaction: TableTransaction) -> None:
            changes[:] = self._stage_changes(transaction)
            branch = self._write.branch
            fork_branch(transaction, branch, head_of(transaction.table_metadata, branch, self._name))

        with translate_errors(self._table.catalog.name, table=self._name):
            commit(self._table, stage, budget=self._budget)
        self._changes += changes

    def _send(self, rows: FrameRows) -> TableWriteResult | None:
        try:
            self._move(rows)
        except BranchMovedError:
            self._wait_for_another_attempt(Failure.COMMIT_LOST)
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
            raise errors.CommitOutcomeUnknownError(self._name, snapshot_id=None, reason="Spark reported success")
        return self._report(snapshot, rows)

    def _move(self, rows: FrameRows) -> None:
        write = self._write
        head = head_of(self._table.metadata, write.branch, self._name)
        target = statements.FrameTarget(
            self._table.catalog.name,
            write.table,
            write.summary_properties,
            write.branch,
        )
        in_order = bool(write.sort_by)
        if write.mode is WriteMode.UPSERT:
            statements.merge(rows.checked(), target, write.keys, rows.partition_check.condition)
        elif write.mode is WriteMode.APPEND or isinstance(rows.where, AlwaysFalse):
            statements.append(rows.passing(self._table), target, in_order=in_order)
        elif head is not None and (self._through_branch or has_partially_matching_file(self._table, head, rows.where)):
            self._replace_on_branch(rows, target, head)
        else:
            statements.replace(
                rows.passing(self._table), target, rows.partition_check.condition, since=head, in_order=in_order
            )

    def _replace_on_branch(self, rows: FrameRows, target: statements.FrameTarget, base: Snapshot) -> None:
        with staging_branch(self._table, self._name, base, self._budget) as branch:
            # Only the last snapshot is the write.
            before = replace(target, branch=branch, snapshot_properties=self._write.snapshot_properties)
            statements.delete(self._frame.sparkSession, before, rows.partition_check.condition)
            statements.append(
                rows.passing(self._table), replace(target, branch=branch), in_order=bool(self._write.sort_by)
            )
            with translate_errors(self._table.catalog.name, table=self._name):
                self._table.refresh()
            try:
                publish(self._table, staged=branch, target=target.branch, base=base, budget=self._budget)
            except BranchMovedError:
                self._refuse_changed_rows(rows, base)
                raise

    def _refuse_changed_rows(self, rows: FrameRows, base: Snapshot) -> None:
        """Let nobody's rows be replaced that came after this write began; Iceberg's own overwrite does the same."""
        head = head_of(self._table.metadata, self._write.branch, self._name)
        if head is None or rows_changed(self._table, base, head, rows.where):
            reason = Failure.ROWS_CHANGED.value
            raise errors.CommitConflictError(self._name, attempts=self._attempts, reason=reason)

    def _recover(self, kind: Failure, error: BaseException, rows: FrameRows) -> None:
        """Prepare for another attempt, or raise."""
        match kind:
            case Failure.ROW_OUTSIDE:
                raise rows.partition_check.error(rows.count_outside()) from shown(error)
            case Failure.NULL_IN_REQUIRED if not self._nulls:
                self._nulls = rows.count_nulls()
            case Failure.FILE_STRADDLES if not self._through_branch:
                self._through_branch = True
            case Failure.COMMIT_LOST:
                self._wait_for_another_attempt(kind, error)
            case Failure.ROWS_CHANGED:
                count_conflict(self._name, engine="spark")
                raise errors.CommitConflictError(self._name, attempts=self._attempts, reason=kind.value) from shown(
                    error
                )
            case Failure.OUTCOME_UNKNOWN:
                raise errors.CommitOutcomeUnknownError(self._name, snapshot_id=None, reason=name_of(error)) from shown(
                    error
                )
            case Failure.TABLE_GONE:
                raise errors.NoSuchTableError(self._write.table) from shown(error)
            case _:
                raise to_error(error, catalog=self._table.catalog.name, table=self._name) from shown(error)

    def _wait_for_another_attempt(self, kind: Failure, error: BaseException | None = None) -> None:
        count_conflict(self._name, engine="spark")
        if self._attempts > self._budget.retries:
            raise errors.CommitConflictError(self._name, attempts=self._attempts, reason=kind.value) from shown(error)
        count_retry(self._name, engine="spark")
        time.sleep(self._budget.wait_seconds(self._attempts))

    def _look_for_snapshot(self, kind: Failure, error: BaseException) -> Snapshot | None:
        """The snapshot, if the commit landed for all that Spark says.

        When nobody knows, it is looked for as long as a commit may take. Writing again would be
        no answer: a snapshot of Spark's has a random id, so the catalog could not refuse a second one.
        """
        until = time.monotonic() + (self._budget.total_seconds if kind is Failure.OUTCOME_UNKNOWN else 0)
        looks = 0
        while True:
            looks += 1
            try:
                snapshot = self._find()
            except errors.CatalogConnectionError as gone:
                if kind is not Failure.OUTCOME_UNKNOWN:
                    raise
                raise errors.CommitOutcomeUnknownError(self._name, snapshot_id=None, reason=gone.reason) from shown(
                    error
                )
            if snapshot is not None or time.monotonic() >= until:
                return snapshot
            time.sleep(self._budget.wait_seconds(looks))

    def _find(self) -> Snapshot | None:
        with translate_errors(self._table.catalog.name, table=self._name):
            self._table.refresh()
        return find_committed_write(self._table.metadata, self._write.branch, self._write.idempotency_key)

    def _report(self, snapshot: Snapshot, rows: FrameRows) -> TableWriteResult:
        made = SnapshotInfo.from_pyiceberg_snapshot(snapshot)
        added = made.added_records
        outside = rows.outside(rows_written=added)
        return TableWriteResult(
            self._table,
            made,
            # An upsert's files hold rows that were there before, too.
            rows=None if self._write.mode is WriteMode.UPSERT else added,
            attempts=self._attempts,
            schema_changes=tuple(str(change) for change in self._changes),
            rows_outside=outside.rows,
            rows_dropped=rows.partition_check.dropped(outside),
        )

    def _remove_branch(self) -> None:
        """Remove a branch that was begun for rows that never came."""
        try:
            if self._find() is None:
                branch = self._write.branch
                commit(
                    self._table, lambda transaction: remove_ref(transaction, self._name, branch), budget=self._budget
                )
        except errors.FloeStorageError:
            # What failed before is what matters; the branch shows what main shows.
            return
