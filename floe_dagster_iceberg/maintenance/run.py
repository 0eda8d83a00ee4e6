"""Plans tasks and executes the plans, on the engine that fits."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.maintenance import planning, retention
from floe_dagster_iceberg.maintenance.side_by_side import in_callers_thread
from floe_dagster_iceberg.maintenance.task import Planned, Task, too_early
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenanceResult, snapshot_properties
from floe_dagster_iceberg.table.maintenance.compaction import compact
from floe_dagster_iceberg.table.maintenance.compaction_plan import RewritePlan
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.selection import TableLocations
from floe_dagster_iceberg.telemetry.metrics import count_reclaimed

if TYPE_CHECKING:
    # It loads PySpark.
    from floe_dagster_iceberg.maintenance.spark_runner import SparkRun
    from floe_dagster_iceberg.spark.procedures import SparkProvider

# File groups per commit of a rewrite with partial progress.
_GROUPS_PER_COMMIT = 10


class TaskRunner:
    """Plans tasks and executes the plans. Arguments as of `TableMaintenance`."""

    def __init__(
        self,
        manager: IcebergTableManager,
        spark: "SparkProvider | None",
        progress: Callable[[str], None] | None,
        snapshot_properties: Mapping[str, str],
    ) -> None:
        self._manager, self._spark, self._progress = manager, spark, progress
        self._snapshot_properties = snapshot_properties
        self._locations = TableLocations(manager)

    def plan(self, task: Task) -> Planned:
        """Plan a task; changes nothing."""
        return too_early(task) or self._plan(task)

    def _plan(self, task: Task) -> Planned:
        planned: Planned
        match task.operation:
            case MaintenanceOperation.TABLE_HEALTH:
                planned = task.nothing("Measuring a table changes nothing.")
            case MaintenanceOperation.RETENTION:
                planned = retention.plan_retention(
                    task,
                    lambda where, column: in_callers_thread(lambda: self._spark_run(task).count_rows(where, column)),
                )
            case MaintenanceOperation.COMPACTION:
                planned = planning.plan_compaction(task)
            case MaintenanceOperation.POSITION_DELETES:
                planned = planning.plan_position_deletes(task)
            case MaintenanceOperation.SNAPSHOT_EXPIRY:
                planned = planning.plan_snapshot_expiry(task)
            case MaintenanceOperation.MANIFESTS:
                planned = planning.plan_manifest_rewrite(task)
            case MaintenanceOperation.ORPHAN_FILES:
                older_than = task.now - task.policy.orphans.older_than
                planned = planning.plan_orphans(
                    task,
                    self._locations.overlapping_tables,
                    lambda: in_callers_thread(lambda: self._spark_run(task).find_orphans(older_than=older_than)),
                )
            case _:
                assert_never(task.operation)
        return planned

    def run(self, task: Task, planned: Planned) -> MaintenanceResult:
        """Execute an actionable plan.

        Raises:
            CommitConflictError: Other writers won more often than the budget allows; nothing was changed.
        """
        if task.operation is MaintenanceOperation.ORPHAN_FILES:
            return self._remove_orphans(task, planned)
        if task.operation is MaintenanceOperation.RETENTION:
            return self._delete_rows(task, planned)
        if planned.plan.engine is MaintenanceEngine.SPARK:
            # Spark uses all of its cores for one table, and a session has settings that tables would share.
            return in_callers_thread(lambda: self._spark_run(task).run(planned.plan))
        match task.operation:
            case MaintenanceOperation.COMPACTION:
                return self._compact(task, planned)
            case MaintenanceOperation.SNAPSHOT_EXPIRY:
                return self._expire(task)
            case MaintenanceOperation.MANIFESTS:
                return self._rewrite_manifests(task, planned)
            case MaintenanceOperation.POSITION_DELETES | MaintenanceOperation.TABLE_HEALTH:
                raise AssertionError(f"{task.operation} is never planned for PyIceberg")
            case _:
                assert_never(task.operation)

    def _delete_rows(self, task: Task, planned: Planned) -> MaintenanceResult:
        if (expired := planned.expired) is None:
            raise AssertionError("a plan to delete rows holds them")
        properties = {snapshot_properties.MAINTENANCE_OPERATION: task.operation.value, **self._snapshot_properties}
        if planned.plan.engine is MaintenanceEngine.SPARK:
            snapshot = in_callers_thread(lambda: self._spark_run(task).delete_rows(expired, properties))
        else:
            snapshot = retention.delete_expired_rows(task, expired, self._manager.budget, properties)
        counts = retention.deletion_counts(snapshot)
        return task.result(planned.plan.engine, done=snapshot is not None, **counts)

    def _compact(self, task: Task, planned: Planned) -> MaintenanceResult:
        table = task.table
        return compact(
            table,
            task.strategy,
            self._manager.budget,
            plan=RewritePlan(table.metadata, table.current_snapshot(), task.live.changes, planned.groups),
            limits=replace(task.limits, max_bytes=task.policy.budget.max_rewrite_bytes),
            groups_per_commit=_GROUPS_PER_COMMIT if task.policy.compaction.partial_progress else None,
            progress=self._progress,
            snapshot_properties=self._snapshot_properties,
        )

    def _expire(self, task: Task) -> MaintenanceResult:
        from floe_dagster_iceberg.table.maintenance.expire_files import expire  # noqa: PLC0415 - only expiry needs it

        policy = task.policy.expiry
        # Snapshots are chosen again for each commit: a branch or tag may need them by then.
        return expire(
            task.table,
            policy,
            task.now,
            self._manager.budget,
            retention=task.retention,
            progress=self._progress,
            read=task.manifests,
        )

    def _rewrite_manifests(self, task: Task, planned: Planned) -> MaintenanceResult:
        from floe_dagster_iceberg.table.maintenance.manifests import rewrite_manifests  # noqa: PLC0415 - only this needs it

        return rewrite_manifests(
            task.table,
            task.policy.manifests,
            self._manager.budget,
            plan=planned.manifests,
            snapshot_properties=self._snapshot_properties,
        )

    def _remove_orphans(self, task: Task, planned: Planned) -> MaintenanceResult:
        from floe_dagster_iceberg.table.maintenance.orphan_files import purge_quarantine, quarantine_orphans  # noqa: PLC0415 - only this needs it

        if planned.orphans is None:
            raise AssertionError("a plan to remove orphans holds them")
        found = planned.orphans
        gone = [file for quarantine in found.due for file in purge_quarantine(task.table, quarantine)]
        count_reclaimed(str(task.identifier), task.operation, sum(file.size_bytes for file in gone))
        gone += quarantine_orphans(task.table, found.orphans, now=task.now, progress=self._progress)
        # Done even if nothing was removed: each file was checked again, and those in use stay.
        return task.result(
            planned.plan.engine, done=True, files_removed=len(gone), bytes_removed=sum(file.size_bytes for file in gone)
        )

    def _spark_run(self, task: Task) -> "SparkRun":
        from floe_dagster_iceberg.maintenance.spark_runner import SparkRun  # noqa: PLC0415 - it loads pyspark

        if self._spark is None:
            raise EngineCapabilityError("There is no Spark session. Configure an IcebergSparkResource.", engine="spark")
        return SparkRun(task, self._spark, self._manager.budget, self._progress, self._snapshot_properties)
