"""Plans made and carried out, on the engine that fits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.maintenance.planning import (
    plan_compaction,
    plan_manifest_rewrite,
    plan_orphans,
    plan_position_deletes,
    plan_snapshot_expiry,
)
from floe_dagster_iceberg.maintenance.table_selection import TableLocations
from floe_dagster_iceberg.maintenance.task import Task, too_early
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenancePlan, MaintenanceResult
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.maintenance.compaction import compact
from floe_dagster_iceberg.table.maintenance.compaction_plan import FileGroup, RewritePlan, to_group_limits
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.telemetry.metrics import count_reclaimed

if TYPE_CHECKING:
    # A run is about one operation, and loads what that one needs; pyspark only if there is a session.
    from floe_dagster_iceberg.maintenance.spark_runner import SparkRun
    from floe_dagster_iceberg.spark.procedures import SparkProvider
    from floe_dagster_iceberg.table.maintenance.manifests import ManifestGroups
    from floe_dagster_iceberg.table.maintenance.orphan_files import OrphanSearch

# Groups of files that one commit of a rewrite with partial progress takes.
_GROUPS_PER_COMMIT = 10


@dataclass(frozen=True)
class Planned:
    """A plan, and what it was made of: its execution takes exactly that.

    Attributes:
        plan: The plan.
        groups: Data files that compaction rewrites.
        manifests: Manifests that are rewritten.
        orphans: Orphans, and the quarantines whose time is over.
    """

    plan: MaintenancePlan
    groups: Sequence[FileGroup] = ()
    manifests: "ManifestGroups | None" = None
    orphans: "OrphanSearch | None" = None


class TaskRunner:
    """Plans tasks and carries them out.

    Args:
        manager: The tables' manager.
        spark: Returns a session when one is needed; None when there is none.
        progress: Called with a line of text about what has been done.
        snapshot_properties: Kept in every snapshot that is made.
    """

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
        """Plan; nothing is changed."""
        early = too_early(task)
        return self._plan(task) if early is None else Planned(early)

    def _plan(self, task: Task) -> Planned:
        match task.operation:
            case MaintenanceOperation.TABLE_HEALTH:
                return Planned(task.nothing("Measuring a table changes nothing."))
            case MaintenanceOperation.COMPACTION:
                plan, groups = plan_compaction(task)
                return Planned(plan, groups=groups)
            case MaintenanceOperation.POSITION_DELETES:
                return Planned(plan_position_deletes(task))
            case MaintenanceOperation.SNAPSHOT_EXPIRY:
                return Planned(plan_snapshot_expiry(task))
            case MaintenanceOperation.MANIFESTS:
                plan, manifests = plan_manifest_rewrite(task)
                return Planned(plan, manifests=manifests)
            case MaintenanceOperation.ORPHAN_FILES:
                others = self._locations.overlapping_tables
                plan, orphans = plan_orphans(task, others, lambda: self._find_orphans_with_spark(task))
                return Planned(plan, orphans=orphans)
            case _:
                assert_never(task.operation)

    def run(self, task: Task, planned: Planned) -> MaintenanceResult:
        """Carry out a plan that is actionable.

        Raises:
            CommitConflictError: Other writers won more often than the budget allows; nothing was changed.
        """
        if task.operation is MaintenanceOperation.ORPHAN_FILES:
            return self._remove_orphans(task, planned)
        if planned.plan.engine is MaintenanceEngine.SPARK:
            return self._spark_run(task).run(planned.plan)
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

    @property
    def _budget(self) -> CommitBudget:
        return CommitBudget.from_config(self._manager.config)

    def _compact(self, task: Task, planned: Planned) -> MaintenanceResult:
        policy, table = task.policy.compaction, task.table
        return compact(
            table,
            policy.to_strategy(),
            self._budget,
            plan=RewritePlan(table.metadata, table.current_snapshot(), task.live.changes, planned.groups),
            limits=replace(to_group_limits(table, policy), max_bytes=task.policy.budget.max_rewrite_bytes),
            groups_per_commit=_GROUPS_PER_COMMIT if policy.partial_progress else None,
            progress=self._progress,
            snapshot_properties=self._snapshot_properties,
        )

    def _expire(self, task: Task) -> MaintenanceResult:
        from floe_dagster_iceberg.table.maintenance.expire_files import expire  # noqa: PLC0415 - see above

        # Snapshots are chosen again for each commit: a branch or tag may need them by then.
        return expire(
            task.table, task.policy.expiry, task.now, self._budget, progress=self._progress, read=task.manifests
        )

    def _rewrite_manifests(self, task: Task, planned: Planned) -> MaintenanceResult:
        from floe_dagster_iceberg.table.maintenance.manifests import rewrite_manifests  # noqa: PLC0415 - see above

        return rewrite_manifests(
            task.table,
            task.policy.manifests,
            self._budget,
            plan=planned.manifests,
            snapshot_properties=self._snapshot_properties,
        )

    def _remove_orphans(self, task: Task, planned: Planned) -> MaintenanceResult:
        from floe_dagster_iceberg.table.maintenance.orphan_files import purge_quarantine, quarantine_orphans  # noqa: PLC0415 - see above

        if planned.orphans is None:
            raise AssertionError("a plan to remove orphans holds them")
        found = planned.orphans
        gone = [file for quarantine in found.due for file in purge_quarantine(task.table, quarantine)]
        count_reclaimed(str(task.identifier), task.operation, sum(file.size_bytes for file in gone))
        gone += quarantine_orphans(task.table, found.orphans, now=task.now, progress=self._progress)
        # Done even if none is left: each was checked again, and what is needed after all stays.
        return task.result(
            planned.plan.engine, done=True, files_removed=len(gone), bytes_removed=sum(file.size_bytes for file in gone)
        )

    def _find_orphans_with_spark(self, task: Task) -> list[str]:
        return self._spark_run(task).find_orphans(older_than=task.now - task.policy.orphans.older_than)

    def _spark_run(self, task: Task) -> "SparkRun":
        from floe_dagster_iceberg.maintenance.spark_runner import SparkRun  # noqa: PLC0415 - it loads pyspark

        if self._spark is None:
            raise EngineCapabilityError("There is no Spark session. Configure an IcebergSparkResource.", engine="spark")
        return SparkRun(task, self._spark, self._budget, self._progress, self._snapshot_properties)
