"""Measures tables, and plans and executes maintenance operations. Independent of Dagster."""

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from floe_dagster_iceberg import models, telemetry
from floe_dagster_iceberg.environments import environment_of
from floe_dagster_iceberg.errors import CommitConflictError, FloeStorageError, UnsupportedMetadataError
from floe_dagster_iceberg.maintenance.side_by_side import progress_in_callers_thread
from floe_dagster_iceberg.models import HealthTier, MaintenanceOperation, MaintenancePolicy, MaintenanceStatus
from floe_dagster_iceberg.models.identifiers import split_parts
from floe_dagster_iceberg.secrets import describe_failure
from floe_dagster_iceberg.table.selection import EnvironmentActivity, IdleEnvironments, TableReaders
from floe_dagster_iceberg.telemetry import Operation, attributes as attrs, traced
from floe_dagster_iceberg.telemetry.metrics import set_health

if TYPE_CHECKING:
    # They load PyIceberg and Arrow, which takes seconds; loading definitions must not.
    from pyiceberg.table import Table

    from floe_dagster_iceberg.maintenance.run import TaskRunner
    from floe_dagster_iceberg.maintenance.task import Task
    from floe_dagster_iceberg.spark.procedures import SparkProvider
    from floe_dagster_iceberg.table.manager import IcebergTableManager

TableName: TypeAlias = str | models.TableIdentifier
# How deep a table is measured before and after an operation: no deeper than what it changes.
_TIERS: Final = {
    MaintenanceOperation.TABLE_HEALTH: HealthTier.FILES,
    MaintenanceOperation.RETENTION: HealthTier.FILES,
    MaintenanceOperation.COMPACTION: HealthTier.FILES,
    MaintenanceOperation.POSITION_DELETES: HealthTier.FILES,
    MaintenanceOperation.SNAPSHOT_EXPIRY: HealthTier.MANIFESTS,
    MaintenanceOperation.MANIFESTS: HealthTier.MANIFESTS,
    MaintenanceOperation.ORPHAN_FILES: HealthTier.SUMMARY,
}


def _tier_of(operation: MaintenanceOperation, policy: MaintenancePolicy) -> HealthTier:
    if operation is MaintenanceOperation.RETENTION and policy.retention.max_age is None:
        # Most tables have none, and no manifest is read to say so.
        return HealthTier.SUMMARY
    return _TIERS[operation]


def _describe(operation: MaintenanceOperation, table: object, *_: Any, **__: Any) -> dict[str, Any]:
    return {**telemetry.describe_table(table), attrs.MAINTENANCE_OPERATION: operation.value}


def _describe_table(table: object, *_: Any, **__: Any) -> dict[str, Any]:
    return telemetry.describe_table(table)


def _set_plan_attributes(operation: Operation, plan: models.MaintenancePlan) -> None:
    operation.set_attributes({attrs.ENGINE: plan.engine.value, attrs.PLAN_REASON: plan.reason.value})


def _set_health_attributes(operation: Operation, health: models.TableHealth) -> None:
    operation.set_attributes({attrs.SNAPSHOT_ID: health.snapshot_id, attrs.DATA_FILES: health.data_files})


def _set_restored_attributes(operation: Operation, files: int) -> None:
    operation.set_attributes({attrs.FILES_RESTORED: files})


class TableMaintenance:
    """Keeps the tables of one catalog healthy.

    Every operation can be planned without changing anything. Writers are never blocked: if one
    commits first, the work is planned again or left for the next run.

    Args:
        manager: The table manager; its retry settings apply here too.
        spark: Returns a Spark session; called when one is first needed. Without it, plans that
            need Spark are blocked.
        clock: Returns the time from which ages are counted.
        progress: Called with a line of text about the progress of a long operation.
        snapshot_properties: Properties of every snapshot that is committed, such as the run id.
    """

    def __init__(
        self,
        manager: "IcebergTableManager",
        *,
        spark: "SparkProvider | None" = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        progress: Callable[[str], None] | None = None,
        snapshot_properties: Mapping[str, str] | None = None,
    ) -> None:
        self._manager, self._spark, self._clock = manager, spark, clock
        self._progress = None if progress is None else progress_in_callers_thread(progress)
        self._lock, self._readers = threading.Lock(), TableReaders(manager)
        self._environments = EnvironmentActivity(manager)
        self._snapshot_properties = dict(snapshot_properties or {})
        self._telemetry = manager.telemetry

    @traced("measure_health", _describe_table, report=_set_health_attributes)
    def health(
        self, table: TableName, policy: MaintenancePolicy, *, tier: HealthTier = HealthTier.FILES
    ) -> models.TableHealth:
        """Measure a table, by the policy's definition of a small file. Starts no JVM and opens no data file.

        Of a table whose metadata PyIceberg cannot parse, only the summary of the newest snapshot is known.

        Raises:
            NoSuchTableError: There is no such table.
            ScanError: A metadata file is missing or corrupt.
        """
        try:
            loaded = self._manager.load_table(table)
        except UnsupportedMetadataError as error:
            from floe_dagster_iceberg.table.maintenance.raw_metadata import RawMetadata  # noqa: PLC0415 - it loads PyIceberg
            from floe_dagster_iceberg.table.names import to_identifier  # noqa: PLC0415 - it loads PyIceberg

            return RawMetadata(error).health(to_identifier(table), now=self._clock())
        return self._measure(loaded, policy, tier)

    @traced("plan_maintenance", _describe, report=_set_plan_attributes)
    def plan(
        self, operation: MaintenanceOperation, table: TableName, policy: MaintenancePolicy
    ) -> models.MaintenancePlan:
        """Plan what an operation would do and why, or why not. Changes nothing.

        Raises:
            NoSuchTableError: There is no such table.
            ScanError: A metadata file is missing or corrupt.
            ValidationError: The policy does not fit the table.
        """
        return self._tasks().plan(self._task(operation, table, policy)).plan

    @traced("maintain_table", _describe, report=telemetry.set_maintenance_attributes)
    def execute(
        self, operation: MaintenanceOperation, table: TableName, policy: MaintenancePolicy
    ) -> models.MaintenanceResult:
        """Plan an operation and execute it, unless there is nothing to do, a guardrail refuses, or it is a dry run.

        Never raises: an error of any kind becomes a failed result, and a race that another writer
        won a skipped one.
        """
        report = _Report(operation, table, policy, started_at=self._clock())
        try:
            task = self._task(operation, table, policy)
            report.table = task.identifier
            planned = self._tasks().plan(task)
            report.plan = planned.plan
            report.before = self._measure(task.table, policy, _tier_of(operation, policy), planned_for=task)
            if not planned.plan.is_actionable:
                return report.finish(MaintenanceStatus.SKIPPED)
            if policy.dry_run:
                return report.finish(MaintenanceStatus.PLANNED)
            result = self._tasks().run(task, planned)
            changed = self._manager.load_table(task.identifier)
            report.after = self._measure(changed, policy, _tier_of(operation, policy))
        except CommitConflictError as lost:
            return report.left_for_next_run(lost.reason)
        # Of any kind: whatever is wrong with one table, the tables after it get their turn.
        except Exception as error:  # noqa: BLE001
            # The span failed, although the method returns.
            if (running := telemetry.running_operation()) is not None:
                running.fail(error)
            message = str(error) if isinstance(error, FloeStorageError) else describe_failure(error)
            return report.finish(MaintenanceStatus.FAILED, error=message)
        if result.status is MaintenanceStatus.SKIPPED:
            return report.left_for_next_run("another process did it first", result)
        return report.complete(result)

    @traced("restore_orphans", _describe_table, report=_set_restored_attributes)
    def restore_orphans(self, table: TableName, quarantine_id: str | None = None, *, dry_run: bool = False) -> int:
        """Move the files of one quarantine, or of all, back to where they were; with `dry_run` only count them.

        Returns:
            Number of files.

        Raises:
            NoSuchTableError: There is no such table.
            ValidationError: The table has no such quarantine.
        """
        from floe_dagster_iceberg.table.maintenance.orphan_files import restore_quarantines  # noqa: PLC0415 - it loads PyIceberg

        return restore_quarantines(self._manager.load_table(table), quarantine_id, dry_run=dry_run)

    def _tasks(self) -> "TaskRunner":
        # One for all tables, which may be maintained in several threads: it lists the catalog once.
        with self._lock:
            return self._runner

    @cached_property
    def _runner(self) -> "TaskRunner":
        from floe_dagster_iceberg.maintenance.run import TaskRunner  # noqa: PLC0415 - it loads PyIceberg

        return TaskRunner(self._manager, self._spark, self._progress, self._snapshot_properties)

    def _task(self, operation: MaintenanceOperation, table: TableName, policy: MaintenancePolicy) -> "Task":
        from floe_dagster_iceberg.maintenance.task import Task  # noqa: PLC0415 - it loads PyIceberg

        loaded = self._manager.load_table(table)
        is_expiry = operation is MaintenanceOperation.SNAPSHOT_EXPIRY
        readers = self._readers.readers_of(loaded) if is_expiry else ()
        now, max_age = self._clock(), policy.expiry.max_environment_age
        idle = IdleEnvironments()
        if is_expiry and max_age is not None and any(map(environment_of, loaded.metadata.refs)):
            idle = self._environments.idle_since(int((now - max_age).timestamp() * 1000))
        return Task(
            loaded,
            operation,
            policy,
            now,
            has_spark=self._spark is not None,
            readers=readers,
            idle_environments=idle,
        )

    def _measure(
        self, table: "Table", policy: MaintenancePolicy, tier: HealthTier, *, planned_for: "Task | None" = None
    ) -> models.TableHealth:
        from floe_dagster_iceberg.table.maintenance.health import measure_health  # noqa: PLC0415 - it loads PyIceberg

        # What planning has read is not read again.
        task = planned_for if tier is HealthTier.FILES else None
        health = measure_health(
            table,
            tier=tier,
            compaction=policy.compaction,
            retention=policy.retention,
            now=self._clock(),
            live=None if task is None else task.live,
            groups=None if task is None else task.file_groups,
        )
        set_health(health)
        return health


def _to_identifier(name: str) -> models.TableIdentifier:
    try:
        return models.TableIdentifier.from_tuple(split_parts(name))
    except ValueError:
        # It becomes a failed result, which still has the name.
        namespace, _, last = name.rpartition(".")
        return models.TableIdentifier.model_construct(namespace=namespace, name=last)


class _Report:
    """What is known so far about one execution."""

    def __init__(
        self, operation: MaintenanceOperation, table: TableName, policy: MaintenancePolicy, *, started_at: datetime
    ) -> None:
        self._operation, self._policy, self._started_at = operation, policy, started_at
        self._clock = time.perf_counter()
        self.table = table if isinstance(table, models.TableIdentifier) else _to_identifier(table)
        self.plan: models.MaintenancePlan | None = None
        self.before: models.TableHealth | None = None
        self.after: models.TableHealth | None = None

    def left_for_next_run(
        self, reason: str, result: models.MaintenanceResult | None = None
    ) -> models.MaintenanceResult:
        """The result of an execution that changed nothing because another writer committed first."""
        if self.plan is not None:
            self.plan = self.plan.model_copy(update={"summary": f"Left for the next run: {reason}"})
        return self.finish(MaintenanceStatus.SKIPPED) if result is None else self.complete(result)

    def finish(self, status: MaintenanceStatus, *, error: str | None = None) -> models.MaintenanceResult:
        """The result of an execution without work by an engine."""
        return self.complete(
            models.MaintenanceResult(
                table=self.table,
                operation=self._operation,
                engine=models.MaintenanceEngine.PYICEBERG if self.plan is None else self.plan.engine,
                status=status,
                started_at=self._started_at,
                error=error,
            )
        )

    def complete(self, result: models.MaintenanceResult) -> models.MaintenanceResult:
        """An engine's result, with its plan and the health before and after."""
        latest = self.after or self.before
        return result.model_copy(
            update={
                "started_at": self._started_at,
                "duration": timedelta(seconds=time.perf_counter() - self._clock),
                "plan": self.plan,
                "before": self.before,
                "after": self.after,
                "snapshot_id_before": self.before and self.before.snapshot_id,
                "snapshot_id_after": latest and latest.snapshot_id,
                "overrides": self._policy.section_of(self._operation).overrides,
            }
        )
