"""One operation on one table, and what planning reads of the table."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from floe_dagster_iceberg import models
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenancePlan, PlanReason
from floe_dagster_iceberg.models.quantities import format_duration
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.changes.cursors import TableReader
from floe_dagster_iceberg.table.maintenance import compaction_plan
from floe_dagster_iceberg.table.maintenance.last_run import last_run
from floe_dagster_iceberg.table.names import table_name, to_identifier
from floe_dagster_iceberg.table.selection import IdleEnvironments

if TYPE_CHECKING:
    # A run is about one operation, and loads what that one needs.
    from floe_dagster_iceberg.table.maintenance.expired_rows import ExpiredRows
    from floe_dagster_iceberg.table.maintenance.expiry import Retention
    from floe_dagster_iceberg.table.maintenance.manifests import ManifestGroups
    from floe_dagster_iceberg.table.maintenance.orphan_files import OrphanSearch
    from floe_dagster_iceberg.table.maintenance.unreferenced_files import ReadManifests


@dataclass(frozen=True)
class Planned:
    """A plan with the files it was made for, which are exactly those that its execution takes.

    Attributes:
        plan: The plan.
        groups: Data files that compaction rewrites.
        manifests: Manifests that are rewritten.
        orphans: Orphans, and the quarantines whose time is over.
        expired: Rows that are past their retention.
    """

    plan: MaintenancePlan
    groups: Sequence[compaction_plan.FileGroup] = ()
    manifests: "ManifestGroups | None" = None
    orphans: "OrphanSearch | None" = None
    expired: "ExpiredRows | None" = None


@dataclass(frozen=True)
class Task:
    """One operation on one table; ages are counted from `now`.

    An expiry knows the table's incremental readers, and the environments that the policy drops.
    """

    table: Table
    operation: MaintenanceOperation
    policy: models.MaintenancePolicy
    now: datetime
    has_spark: bool = False
    readers: Sequence[TableReader] = ()
    idle_environments: IdleEnvironments = field(default_factory=IdleEnvironments)

    @cached_property
    def identifier(self) -> models.TableIdentifier:
        return to_identifier(self.table)

    @cached_property
    def live(self) -> compaction_plan.LiveFiles:
        """The live files of main, read once for the plan and the health before."""
        return compaction_plan.read_live_files(self.table)

    @cached_property
    def strategy(self) -> models.CompactionStrategy:
        return self.policy.compaction.to_strategy()

    @cached_property
    def limits(self) -> compaction_plan.GroupLimits:
        """Which files compaction considers; the budget is not part of it."""
        return compaction_plan.to_group_limits(self.table, self.policy.compaction)

    @cached_property
    def file_groups(self) -> list[compaction_plan.FileGroup]:
        """The data files worth rewriting, found once for the plan, its execution and the health before."""
        return compaction_plan.plan_groups(self.live.changes, self.table.metadata, self.strategy, self.limits)

    @cached_property
    def retention(self) -> "Retention":
        """Which snapshots, branches and tags an expiry keeps."""
        from floe_dagster_iceberg.table.maintenance.expire_files import to_retention  # noqa: PLC0415 - only expiry needs it

        return to_retention(
            self.policy.expiry,
            self.now,
            table=str(self.identifier),
            readers=self.readers,
            idle_environments=self.idle_environments.names,
        )

    @cached_property
    def manifests(self) -> "ReadManifests":
        """Manifests of expiring snapshots, read once for the plan and its execution."""
        from floe_dagster_iceberg.table.maintenance.unreferenced_files import ReadManifests  # noqa: PLC0415 - only expiry needs it

        return ReadManifests(self.table.io)

    def plan(
        self,
        reason: PlanReason,
        summary: str = "",
        *,
        engine: MaintenanceEngine = MaintenanceEngine.PYICEBERG,
        **fields: Any,
    ) -> MaintenancePlan:
        return MaintenancePlan(
            table=self.identifier,
            operation=self.operation,
            engine=engine,
            reason=reason,
            summary=summary,
            snapshot_id=self.table.metadata.current_snapshot_id,
            **fields,
        )

    def nothing(self, summary: str, **fields: Any) -> Planned:
        """A plan that changes nothing, because the table is fine."""
        return Planned(self.plan(PlanReason.BELOW_THRESHOLD, summary, **fields))

    def blocked(self, why: str, **fields: Any) -> Planned:
        """A plan that changes nothing, because of a guardrail or a missing engine."""
        return Planned(self.plan(PlanReason.BLOCKED, blocked_by=why, **fields))

    def result(self, engine: MaintenanceEngine, *, done: bool, **work: Any) -> models.MaintenanceResult:
        return models.MaintenanceResult.of_work(
            self.identifier, self.operation, started_at=self.now, done=done, engine=engine, **work
        )


def too_early(task: Task) -> Planned | None:
    """The plan of an operation that is disabled or ran a short while ago; None if it may run."""
    own, compaction = task.policy.section_of(task.operation), task.policy.compaction
    if not own.enabled:
        return task.blocked("The policy disables it. Set enabled to true.")
    if task.operation is MaintenanceOperation.POSITION_DELETES and not compaction.rewrite_position_deletes:
        return task.blocked("The policy disables it. Set rewrite_position_deletes to true.")
    if not own.min_interval:
        return None
    last = _last_run(task)
    if last is None or task.now - last >= own.min_interval:
        return None
    summary = f"Last run {last:%Y-%m-%d %H:%M} UTC; min_interval is {format_duration(own.min_interval)}."
    return Planned(task.plan(PlanReason.MIN_INTERVAL, summary))


def _last_run(task: Task) -> datetime | None:
    if task.operation is not MaintenanceOperation.ORPHAN_FILES:
        return last_run(task.table.metadata, task.operation)
    from floe_dagster_iceberg.table.maintenance.orphan_files import load_quarantines  # noqa: PLC0415 - only orphans need it

    with translate_errors(task.table.catalog.name, table=table_name(task.table)):
        return max((quarantine.created_at for quarantine in load_quarantines(task.table)), default=None)
