"""One operation on one table, and what planning reads of the table."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from floe_dagster_iceberg.models import (
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePlan,
    MaintenancePolicy,
    MaintenanceResult,
    PlanReason,
    TableIdentifier,
)
from floe_dagster_iceberg.models.maintenance import OperationPolicy
from floe_dagster_iceberg.models.quantities import format_duration
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.maintenance.compaction_plan import FileGroup, plan_groups, to_group_limits
from floe_dagster_iceberg.table.maintenance.last_run import last_run
from floe_dagster_iceberg.table.maintenance.live_files import LiveFiles, read_live_files
from floe_dagster_iceberg.table.names import to_identifier

if TYPE_CHECKING:
    from floe_dagster_iceberg.table.maintenance.unreferenced_files import ReadManifests


@dataclass(frozen=True)
class Task:
    """One operation on one table.

    Attributes:
        table: The table, as it is now.
        operation: The operation.
        policy: How it is to be done.
        now: The time from which ages are counted.
        has_spark: Whether a Spark session is available.
    """

    table: Table
    operation: MaintenanceOperation
    policy: MaintenancePolicy
    now: datetime
    has_spark: bool = False

    @property
    def identifier(self) -> TableIdentifier:
        """Name of the table."""
        return to_identifier(self.table)

    @cached_property
    def live(self) -> LiveFiles:
        """The files that readers of main need, read once for the plan and for the state before it."""
        return read_live_files(self.table)

    @cached_property
    def file_groups(self) -> list[FileGroup]:
        """The data files worth rewriting, found once for the plan, for its execution and for the state before it."""
        policy, table = self.policy.compaction, self.table
        return plan_groups(self.live.changes, table.metadata, policy.to_strategy(), to_group_limits(table, policy))

    @cached_property
    def manifests(self) -> "ReadManifests":
        """Manifests of expiring snapshots, read for the plan and not again for what follows it."""
        from floe_dagster_iceberg.table.maintenance.unreferenced_files import ReadManifests  # noqa: PLC0415 - only expiry needs it

        return ReadManifests(self.table.io)

    @property
    def own_policy(self) -> OperationPolicy:
        """The part of the policy that is about this operation."""
        return self.policy.section_of(self.operation)

    def plan(
        self,
        reason: PlanReason,
        summary: str,
        *,
        engine: MaintenanceEngine = MaintenanceEngine.PYICEBERG,
        **fields: Any,
    ) -> MaintenancePlan:
        """A plan for this task, with what all plans say filled in."""
        return MaintenancePlan(
            table=self.identifier,
            operation=self.operation,
            engine=engine,
            reason=reason,
            summary=summary,
            snapshot_id=self.table.metadata.current_snapshot_id,
            **fields,
        )

    def nothing(self, summary: str, **fields: Any) -> MaintenancePlan:
        """A plan that leaves the table as it is, because it is fine."""
        return self.plan(PlanReason.BELOW_THRESHOLD, summary, **fields)

    def result(self, engine: MaintenanceEngine, *, done: bool, **work: Any) -> MaintenanceResult:
        """What an engine did for this task; skipped unless it is `done`."""
        return MaintenanceResult.of_work(
            self.identifier, self.operation, started_at=self.now, done=done, engine=engine, **work
        )

    def blocked(self, why: str, **fields: Any) -> MaintenancePlan:
        """A plan that leaves the table as it is, because a guardrail or a missing engine blocks it."""
        return self.plan(PlanReason.BLOCKED, "", blocked_by=why, **fields)


def too_early(task: Task) -> MaintenancePlan | None:
    """The plan of an operation that is switched off or was done a short while ago; None when it may go on."""
    own, compaction = task.own_policy, task.policy.compaction
    if not own.enabled:
        return task.blocked("The policy disables it. Set enabled to true.")
    if task.operation is MaintenanceOperation.POSITION_DELETES and not compaction.rewrite_position_deletes:
        return task.blocked("The policy disables it. Set rewrite_position_deletes to true.")
    if not own.min_interval:
        return None
    last = _last_run(task)
    if last is None or task.now - last >= own.min_interval:
        return None
    return task.plan(
        PlanReason.MIN_INTERVAL,
        f"Last run {last:%Y-%m-%d %H:%M} UTC; min_interval is {format_duration(own.min_interval)}.",
    )


def _last_run(task: Task) -> datetime | None:
    if task.operation is not MaintenanceOperation.ORPHAN_FILES:
        return last_run(task.table.metadata, task.operation)
    from floe_dagster_iceberg.table.maintenance.orphan_files import load_quarantines  # noqa: PLC0415 - only orphans need it

    with translate_errors(task.table.catalog.name, table=".".join(task.table.name())):
        return max((quarantine.created_at for quarantine in load_quarantines(task.table)), default=None)
