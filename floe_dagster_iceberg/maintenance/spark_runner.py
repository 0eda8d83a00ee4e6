"""Execution of plans by Spark's procedures."""

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar, assert_never

from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from floe_dagster_iceberg import models
from floe_dagster_iceberg._pyiceberg.manifest_reader import read_manifests
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction
from floe_dagster_iceberg.environments import environment_of
from floe_dagster_iceberg.errors import CommitConflictError, CompactionError
from floe_dagster_iceberg.maintenance.task import Task
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenancePlan, MaintenanceResult
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.spark.committer import SparkCommitter
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.procedures import ProcedureResult, SparkProcedures, SparkProvider
from floe_dagster_iceberg.spark.scan import empty_frame, open_frame
from floe_dagster_iceberg.spark.write import delete_rows
from floe_dagster_iceberg.table.commit.commit import CommitBudget, commit
from floe_dagster_iceberg.table.commit.refs import remove_ref
from floe_dagster_iceberg.table.maintenance.expire_files import delete_old_metadata
from floe_dagster_iceberg.table.maintenance.expired_rows import ExpiredRows, refuse_legal_hold
from floe_dagster_iceberg.table.maintenance.expiry import ExpiryPlan, Retention, plan_expiry
from floe_dagster_iceberg.table.maintenance.last_run import bytes_added_since, last_run_property
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite

T = TypeVar("T")


class SparkRun:
    """One task on Spark; its table is refreshed in place. Spark Connect keeps no snapshot properties."""

    def __init__(
        self,
        task: Task,
        provider: SparkProvider,
        budget: CommitBudget,
        progress: Callable[[str], None] | None,
        snapshot_properties: Mapping[str, str],
    ) -> None:
        self._task, self._table, self._budget, self._progress = task, task.table, budget, progress
        self._identifier, self._provider = task.identifier, provider
        self._session = provider()
        self._procedures = SparkProcedures(self._session, task.table.catalog.name, snapshot_properties)

    def run(self, plan: MaintenancePlan) -> MaintenanceResult:
        """Execute a plan.

        Raises:
            CommitConflictError: Other writers won more often than the budget allows; nothing was changed.
        """
        self._log(f"Spark starts {self._task.operation} of {self._identifier}: {plan.summary}")
        match self._task.operation:
            case MaintenanceOperation.COMPACTION:
                return self._compact()
            case MaintenanceOperation.POSITION_DELETES:
                return self._rewrite_deletes()
            case MaintenanceOperation.MANIFESTS:
                return self._rewrite_manifests()
            case MaintenanceOperation.SNAPSHOT_EXPIRY:
                return self._expire(plan)
            case MaintenanceOperation.RETENTION | MaintenanceOperation.ORPHAN_FILES | MaintenanceOperation.TABLE_HEALTH:
                raise AssertionError(f"{self._task.operation} is no procedure of Spark")
            case _:
                assert_never(self._task.operation)

    def find_orphans(self, *, older_than: datetime) -> list[str]:
        """Locations of the orphans that Spark finds."""
        return self._procedures.find_orphan_files(self._identifier, older_than=older_than)

    def count_rows(self, where: BooleanExpression, column: str) -> int:
        """Number of rows that match a filter on a column."""
        head = self._table.metadata.current_snapshot_id
        frame = open_frame(self._session, self._table, snapshot_id=head, row_filter=where, columns=[column])
        return run_action(self._session, frame.count)

    def delete_rows(self, expired: ExpiredRows, snapshot_properties: Mapping[str, str]) -> models.SnapshotInfo | None:
        """Delete rows that are past their retention.

        Raises:
            MaintenanceRefusedError: The table has got a legal hold since the plan.
            CommitConflictError: Other writers won more often than the budget allows; nothing was changed.
        """
        self._refresh()
        refuse_legal_hold(table_name(self._table), self._table.metadata)
        write = TableWrite(
            self._identifier,
            models.WriteMode.OVERWRITE,
            scope=RowScope(row_filter=expired.limit.expression),
            idempotency_key=uuid.uuid4().hex,
            snapshot_properties=snapshot_properties,
        )
        no_rows = empty_frame(self._session, self._table.schema())
        return delete_rows(self._table, no_rows, write, self._budget).snapshot

    def _compact(self) -> MaintenanceResult:
        policy, table = self._task.policy.compaction, self._table
        row_filter, before = self._task.limits.row_filter, table.metadata
        output = self._retry(
            lambda: self._procedures.rewrite_data_files(
                self._identifier, policy, schema=table.schema(), row_filter=row_filter
            )
        )
        if failed := output.count("failed_data_files_count"):
            # Also when other groups were committed: a table that can be compacted only in part needs attention.
            raise CompactionError(
                f"Spark could not rewrite {failed} files of '{self._identifier}'. Its log has the cause; what it "
                "committed stays.",
                table=self._identifier,
            )
        return self._result(
            output,
            files_removed=output.count("rewritten_data_files_count"),
            bytes_removed=output.count("rewritten_bytes_count"),
            files_added=output.count("added_data_files_count"),
            bytes_added=bytes_added_since(before, table.metadata, MaintenanceOperation.COMPACTION),
        )

    def _rewrite_deletes(self) -> MaintenanceResult:
        policy = self._task.policy.compaction
        output = self._retry(lambda: self._procedures.rewrite_position_delete_files(self._identifier, policy))
        return self._result(
            output,
            files_removed=output.count("rewritten_delete_files_count"),
            bytes_removed=output.count("rewritten_bytes_count"),
            files_added=output.count("added_delete_files_count"),
            bytes_added=output.count("added_bytes_count"),
        )

    def _rewrite_manifests(self) -> MaintenanceResult:
        before = _manifest_bytes(self._table)
        output = self._retry(lambda: self._procedures.rewrite_manifests(self._identifier))
        after = _manifest_bytes(self._table)
        return self._result(
            output,
            files_removed=output.count("rewritten_manifests_count"),
            bytes_removed=sum(size for path, size in before.items() if path not in after),
            files_added=output.count("added_manifests_count"),
            bytes_added=sum(size for path, size in after.items() if path not in before),
        )

    def _expire(self, plan: MaintenancePlan) -> MaintenanceResult:
        policy, table = self._task.policy.expiry, self._table
        retention = self._task.retention
        self._drop_idle_environments(retention)
        expired, deleted, statement = 0, 0, None
        # The metadata gets smaller with each batch, so the loop ends.
        while True:
            try:
                batch, output = self._retry(lambda: self._expire_batch(retention))
            except CommitConflictError:
                if not expired:
                    raise
                # The expired snapshots stay expired; the next run continues.
                break
            gone = batch.expired_from(table.metadata)
            if output is None or not (gone or batch.refs):
                break
            expired, deleted, statement = expired + gone, deleted + output.total("deleted_"), output.statement
            self._log(f"{expired} snapshots expired, {deleted} files deleted")
            if batch.is_complete:
                break
        if policy.min_interval and expired:
            last_run = last_run_property(MaintenanceOperation.SNAPSHOT_EXPIRY, self._task.now)
            self._procedures.set_properties(self._identifier, last_run)
        old = delete_old_metadata(table, policy, self._task.now)
        as_planned = deleted + old.files == plan.input_files
        return self._task.result(
            MaintenanceEngine.SPARK,
            done=bool(expired or old.files or plan.refs),
            files_removed=deleted + old.files,
            # The procedure reports no bytes. The plan's are right if it deleted as many files.
            bytes_removed=plan.input_bytes if as_planned else old.total_bytes,
            snapshots_expired=expired,
            statement=statement,
        )

    def _result(self, output: ProcedureResult, *, files_removed: int, **work: Any) -> MaintenanceResult:
        return self._task.result(
            MaintenanceEngine.SPARK,
            done=bool(files_removed),
            statement=output.statement,
            files_removed=files_removed,
            **work,
        )

    def _drop_idle_environments(self, retention: Retention) -> None:
        """Remove their branches; the procedure knows only the maximum age of a branch."""

        def stage(transaction: TableTransaction) -> None:
            metadata = transaction.table_metadata
            for name in plan_expiry(metadata, retention).refs:
                if environment_of(name) in retention.idle_environments:
                    remove_ref(transaction, table_name(self._table), name)

        if retention.idle_environments:
            with translate_errors(self._table.catalog.name, table=table_name(self._table)):
                commit(self._table, stage, budget=self._budget, through=lambda: SparkCommitter(self._provider))

    def _expire_batch(self, retention: Retention) -> tuple[ExpiryPlan, ProcedureResult | None]:
        """Plan on the table's current metadata, and expire those snapshots."""
        most = self._task.policy.expiry.max_snapshots_per_commit
        batch = plan_expiry(self._table.metadata, retention, max_snapshots=most)
        if not batch.has_work:
            return batch, None
        return batch, self._procedures.expire_snapshots(self._identifier, batch.snapshot_ids)

    def _retry(self, call: Callable[[], T]) -> T:
        """Call again, with the refreshed table, when another writer committed first."""
        retries = self._budget.retries
        while True:
            try:
                result = call()
            except CommitConflictError:
                if not retries:
                    raise
                retries -= 1
                self._refresh()
            else:
                self._refresh()
                return result

    def _log(self, line: str) -> None:
        if self._progress is not None:
            self._progress(line)

    def _refresh(self) -> None:
        with translate_errors(self._table.catalog.name, table=table_name(self._table)):
            self._table.refresh()


def _manifest_bytes(table: Table) -> dict[str, int]:
    snapshot = table.current_snapshot()
    with translate_errors(table.catalog.name, table=table_name(table)):
        manifests = read_manifests(snapshot, table.io)
    return {manifest.manifest_path: manifest.manifest_length for manifest in manifests}
