"""Tables are measured, and their maintenance is planned and done. Independent of Dagster."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from floe_dagster_iceberg.errors import CommitConflictError, FloeStorageError
from floe_dagster_iceberg.models import (
    HealthTier,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePlan,
    MaintenancePolicy,
    MaintenanceResult,
    MaintenanceStatus,
    TableHealth,
    TableIdentifier,
)
from floe_dagster_iceberg.telemetry import (
    Operation,
    attributes as attrs,
    describe_table,
    running_operation,
    set_maintenance_attributes,
    traced,
)
from floe_dagster_iceberg.telemetry.metrics import set_health

if TYPE_CHECKING:
    # The manager and what works on tables bring PyIceberg and Arrow along, seconds that loading must not cost.
    from pyiceberg.table import Table

    from floe_dagster_iceberg.maintenance.run import TaskRunner
    from floe_dagster_iceberg.maintenance.task import Task
    from floe_dagster_iceberg.spark.procedures import SparkProvider
    from floe_dagster_iceberg.table.manager import IcebergTableManager

# What an operation changes, and no deeper, is measured before and after it.
_TIERS: Final = {
    MaintenanceOperation.TABLE_HEALTH: HealthTier.FILES,
    MaintenanceOperation.COMPACTION: HealthTier.FILES,
    MaintenanceOperation.POSITION_DELETES: HealthTier.FILES,
    MaintenanceOperation.SNAPSHOT_EXPIRY: HealthTier.MANIFESTS,
    MaintenanceOperation.MANIFESTS: HealthTier.MANIFESTS,
    MaintenanceOperation.ORPHAN_FILES: HealthTier.SUMMARY,
}


def _describe(operation: MaintenanceOperation, table: object, *_: Any, **__: Any) -> dict[str, Any]:
    return {**_describe_table(table), attrs.MAINTENANCE_OPERATION: operation.value}


def _describe_table(table: object, *_: Any, **__: Any) -> dict[str, Any]:
    return describe_table(table)


def _set_plan_attributes(operation: Operation, plan: MaintenancePlan) -> None:
    operation.set_attributes({attrs.ENGINE: plan.engine.value, attrs.PLAN_REASON: plan.reason.value})


def _set_health_attributes(operation: Operation, health: TableHealth) -> None:
    operation.set_attributes({attrs.SNAPSHOT_ID: health.snapshot_id, attrs.DATA_FILES: health.data_files})


def _set_restored_attributes(operation: Operation, files: int) -> None:
    operation.set_attributes({attrs.FILES_RESTORED: files})


def _fail_span(error: FloeStorageError) -> None:
    """Mark the span as failed, although the operation returns what went wrong."""
    if (operation := running_operation()) is not None:
        operation.fail(error)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class TableMaintenance:
    """Keeps the tables of one catalog healthy.

    Every operation can be planned without changing anything. Writers are never blocked: when one
    is faster, the work is planned again or left for the next run.

    Args:
        manager: The tables' manager; its retry budget counts here, too.
        spark: Returns a Spark session; called when one is first needed. Without it, what only
            Spark can do is planned as blocked.
        clock: Returns the time from which ages are counted.
        progress: Called with a line of text about what a long operation has done so far.
        snapshot_properties: Kept in every snapshot that is made, such as the run that made it.
    """

    def __init__(
        self,
        manager: "IcebergTableManager",
        *,
        spark: "SparkProvider | None" = None,
        clock: Callable[[], datetime] = _utc_now,
        progress: Callable[[str], None] | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
    ) -> None:
        self._manager, self._spark, self._clock, self._progress = manager, spark, clock, progress
        self._snapshot_properties = dict(snapshot_properties or {})
        self._telemetry = manager.telemetry

    @traced("measure_health", _describe_table, report=_set_health_attributes)
    def health(
        self, table: str | TableIdentifier, policy: MaintenancePolicy, *, tier: HealthTier = HealthTier.FILES
    ) -> TableHealth:
        """Measure a table; no JVM is started and no data file opened.

        Args:
            table: The table.
            policy: What counts as a small file, and as a partition that needs work.
            tier: How deep to look; each tier reads more than the one before.

        Raises:
            NoSuchTableError: There is no such table.
            ScanError: A file of its metadata is missing or cannot be read.
        """
        return self._measure(self._manager.load_table(table), policy, tier)

    @traced("plan_maintenance", _describe, report=_set_plan_attributes)
    def plan(
        self, operation: MaintenanceOperation, table: str | TableIdentifier, policy: MaintenancePolicy
    ) -> MaintenancePlan:
        """Find out what an operation would do and why, or why not. Changes nothing.

        Raises:
            NoSuchTableError: There is no such table.
            ScanError: A file of its metadata is missing or cannot be read.
            ValidationError: The policy does not fit the table.
        """
        return self._runner.plan(self._task(operation, table, policy)).plan

    @traced("maintain_table", _describe, report=set_maintenance_attributes)
    def execute(
        self, operation: MaintenanceOperation, table: str | TableIdentifier, policy: MaintenancePolicy
    ) -> MaintenanceResult:
        """Plan an operation and do it, unless there is nothing to do or a guardrail refuses it.

        Never raises an error of this package: an error is a failed result, and a race that other
        writers won is a skipped one.

        Args:
            operation: The operation.
            table: The table.
            policy: How to do it; with `dry_run` it is only planned.
        """
        report = _Report(operation, table, policy, started_at=self._clock())
        try:
            task = self._task(operation, table, policy)
            report.table = task.identifier
            planned = self._runner.plan(task)
            report.plan = planned.plan
            report.before = self._measure(task.table, policy, _TIERS[operation], planned_for=task)
            if policy.dry_run:
                return report.finish(MaintenanceStatus.PLANNED)
            if not planned.plan.is_actionable:
                return report.finish(MaintenanceStatus.SKIPPED)
            result = self._runner.run(task, planned)
            report.after = self._measure(self._manager.load_table(task.identifier), policy, _TIERS[operation])
        except CommitConflictError as lost:
            return report.left_for_next_run(lost.reason)
        except FloeStorageError as error:
            _fail_span(error)
            return report.finish(MaintenanceStatus.FAILED, error=str(error))
        if result.status is MaintenanceStatus.SKIPPED:
            return report.left_for_next_run("another process did it first", result)
        return report.complete(result)

    @traced("restore_orphans", _describe_table, report=_set_restored_attributes)
    def restore_orphans(
        self, table: str | TableIdentifier, quarantine_id: str | None = None, *, dry_run: bool = False
    ) -> int:
        """Move quarantined files back to where they were, unchanged.

        Args:
            table: The table.
            quarantine_id: One quarantine; all of the table's if not given.
            dry_run: Whether to count them only.

        Returns:
            How many files came back, or would.

        Raises:
            NoSuchTableError: There is no such table.
            ValidationError: The table has no such quarantine.
        """
        from floe_dagster_iceberg.table.maintenance.orphan_files import restore_quarantines  # noqa: PLC0415 - it loads PyIceberg

        return restore_quarantines(self._manager.load_table(table), quarantine_id, dry_run=dry_run)

    @cached_property
    def _runner(self) -> "TaskRunner":
        from floe_dagster_iceberg.maintenance.run import TaskRunner  # noqa: PLC0415 - it loads PyIceberg

        return TaskRunner(self._manager, self._spark, self._progress, self._snapshot_properties)

    def _task(self, operation: MaintenanceOperation, table: str | TableIdentifier, policy: MaintenancePolicy) -> "Task":
        from floe_dagster_iceberg.maintenance.task import Task  # noqa: PLC0415 - it loads PyIceberg

        loaded = self._manager.load_table(table)
        return Task(loaded, operation, policy, self._clock(), has_spark=self._spark is not None)

    def _measure(
        self, table: "Table", policy: MaintenancePolicy, tier: HealthTier, *, planned_for: "Task | None" = None
    ) -> TableHealth:
        from floe_dagster_iceberg.table.maintenance.health import measure_health  # noqa: PLC0415 - it loads PyIceberg

        # What planning has read and found is not read again.
        task = planned_for if tier is HealthTier.FILES else None
        health = measure_health(
            table,
            tier=tier,
            compaction=policy.compaction,
            now=self._clock(),
            live=None if task is None else task.live,
            groups=None if task is None else task.file_groups,
        )
        set_health(health)
        return health


class _Report:
    """What is known so far about one execution."""

    def __init__(
        self,
        operation: MaintenanceOperation,
        table: str | TableIdentifier,
        policy: MaintenancePolicy,
        *,
        started_at: datetime,
    ) -> None:
        self._operation, self._policy, self._started_at = operation, policy, started_at
        self._clock = time.perf_counter()
        self.table = table if isinstance(table, TableIdentifier) else _name(table)
        self.plan: MaintenancePlan | None = None
        self.before: TableHealth | None = None
        self.after: TableHealth | None = None

    def left_for_next_run(self, reason: str, result: MaintenanceResult | None = None) -> MaintenanceResult:
        """The table is as it was, because others were faster."""
        if self.plan is not None:
            self.plan = self.plan.model_copy(update={"summary": f"Left for the next run: {reason}"})
        return self.finish(MaintenanceStatus.SKIPPED) if result is None else self.complete(result)

    def finish(self, status: MaintenanceStatus, *, error: str | None = None) -> MaintenanceResult:
        """The result of an execution in which no engine did anything."""
        engine = MaintenanceEngine.PYICEBERG if self.plan is None else self.plan.engine
        return self.complete(
            MaintenanceResult(
                table=self.table,
                operation=self._operation,
                engine=engine,
                status=status,
                started_at=self._started_at,
                error=error,
            )
        )

    def complete(self, result: MaintenanceResult) -> MaintenanceResult:
        """An engine's result, with the plan it followed and the table before and after."""
        latest = self.after or self.before
        return result.model_copy(
            update={
                "started_at": self._started_at,
                "duration": timedelta(seconds=time.perf_counter() - self._clock),
                "plan": self.plan,
                "before": self.before,
                "after": self.after,
                "snapshot_id_before": None if self.before is None else self.before.snapshot_id,
                "snapshot_id_after": None if latest is None else latest.snapshot_id,
                "overrides": self._policy.section_of(self._operation).overrides,
            }
        )


def _name(table: str) -> TableIdentifier:
    # The failure that follows says what is wrong with an invalid name; the result still has what was asked for.
    namespace, _, name = table.rpartition(".")
    return TableIdentifier.model_construct(namespace=namespace, name=name)
