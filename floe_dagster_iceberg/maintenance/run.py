"""Plans made and carried out, on the engine that fits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, assert_never

from floe_dagster_iceberg.errors import CommitConflictError, EngineCapabilityError
from floe_dagster_iceberg.maintenance.planning import (
    plan_compaction,
    plan_expiry,
    plan_manifest_rewrite,
    plan_orphans,
    plan_position_deletes,
)
from floe_dagster_iceberg.maintenance.table_selection import TableLocations
from floe_dagster_iceberg.maintenance.task import NOTHING_LEFT, Task, Work, too_early
from floe_dagster_iceberg.models import MaintenanceEngine, MaintenanceOperation, MaintenancePlan
from floe_dagster_iceberg.table.commit import CommitBudget
from floe_dagster_iceberg.table.compaction import FileRewrite, rewrite_files
from floe_dagster_iceberg.table.expiry_run import expire
from floe_dagster_iceberg.table.health import to_group_limits
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.manifest_rewrite import rewrite_manifests
from floe_dagster_iceberg.table.orphans import OrphanSearch, purge_quarantine, quarantine_orphans
from floe_dagster_iceberg.telemetry.metrics import count_reclaimed

if TYPE_CHECKING:
    # They load pyspark, which only those need who have a session.
    from floe_dagster_iceberg.maintenance.spark_runner import SparkRun
    from floe_dagster_iceberg.spark.maintenance import SparkProvider

# Groups of files that one commit of a rewrite with partial progress takes.
_GROUPS_PER_COMMIT = 10


@dataclass(frozen=True)
class Planned:
    """A plan, and what was found while it was made that its execution needs."""

    plan: MaintenancePlan
    orphans: OrphanSearch | None = None


class TaskRunner:
    """Plans tasks and carries them out.

    Args:
        manager: The tables' manager.
        spark: Returns a session when one is needed; None when there is none.
        progress: Told what has been done, in words.
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
        if (early := too_early(task)) is not None:
            return Planned(early)
        match task.operation:
            case MaintenanceOperation.COMPACTION:
                return Planned(plan_compaction(task))
            case MaintenanceOperation.POSITION_DELETES:
                return Planned(plan_position_deletes(task))
            case MaintenanceOperation.SNAPSHOT_EXPIRY:
                return Planned(plan_expiry(task))
            case MaintenanceOperation.MANIFESTS:
                return Planned(plan_manifest_rewrite(task))
            case MaintenanceOperation.ORPHAN_FILES:
                return Planned(
                    *plan_orphans(task, self._locations.overlapping_tables, lambda: self._seen_by_spark(task))
                )
            case _:
                assert_never(task.operation)

    def run(self, task: Task, planned: Planned) -> Work:
        """Carry out a plan that is actionable.

        Raises:
            CommitConflictError: Other writers won more often than the budget allows; nothing was changed.
        """
        if task.operation is MaintenanceOperation.ORPHAN_FILES:
            return self._clear_orphans(task, planned.orphans)
        if planned.plan.engine is MaintenanceEngine.SPARK:
            return self._by_spark(task).run(planned.plan)
        match task.operation:
            case MaintenanceOperation.COMPACTION:
                return self._compact(task)
            case MaintenanceOperation.SNAPSHOT_EXPIRY:
                return self._expire(task)
            case MaintenanceOperation.MANIFESTS:
                return self._rewrite_manifests(task)
            case MaintenanceOperation.POSITION_DELETES:
                raise AssertionError("position deletes are planned for Spark alone")
            case _:
                assert_never(task.operation)

    @property
    def _budget(self) -> CommitBudget:
        return CommitBudget.from_config(self._manager.config)

    def _compact(self, task: Task) -> Work:
        policy = task.policy.compaction
        strategy, left = policy.to_strategy(), task.policy.budget.max_rewrite_bytes
        limits = to_group_limits(task.table, policy)
        rewrites: list[FileRewrite] = []
        while True:
            limits = replace(limits, max_bytes=left, max_groups=_GROUPS_PER_COMMIT if policy.partial_progress else None)
            try:
                rewrite = rewrite_files(
                    task.table,
                    strategy,
                    self._budget,
                    limits=limits,
                    progress=self._progress,
                    snapshot_properties=self._snapshot_properties,
                )
            except CommitConflictError:
                if not rewrites:
                    raise
                # What was committed before stays; the rest is for the next run.
                return _sum_of(rewrites)
            if rewrite.removed:
                rewrites.append(rewrite)
            left = None if left is None else left - rewrite.bytes_removed
            if not rewrite.removed or not policy.partial_progress:
                return _sum_of(rewrites)

    def _expire(self, task: Task) -> Work:
        expired = expire(
            task.table, task.policy.expiry, task.now, self._budget, progress=self._progress, read=task.manifests
        )
        if not expired.snapshots and not expired.refs and not expired.deleted.files:
            return NOTHING_LEFT
        return Work(
            files_removed=expired.deleted.files,
            bytes_removed=expired.deleted.total_bytes,
            snapshots_expired=expired.snapshots,
        )

    def _rewrite_manifests(self, task: Task) -> Work:
        rewrite = rewrite_manifests(
            task.table, task.policy.manifests, self._budget, snapshot_properties=self._snapshot_properties
        )
        if not rewrite.removed:
            return NOTHING_LEFT
        return Work(
            files_removed=len(rewrite.removed),
            bytes_removed=sum(manifest.manifest_length for manifest in rewrite.removed),
            files_added=len(rewrite.added),
            bytes_added=sum(manifest.manifest_length for manifest in rewrite.added),
        )

    def _clear_orphans(self, task: Task, found: OrphanSearch | None) -> Work:
        if found is None:
            return NOTHING_LEFT
        gone = [file for quarantine in found.due for file in purge_quarantine(task.table, quarantine)]
        count_reclaimed(str(task.identifier), task.operation, sum(file.size_bytes for file in gone))
        gone += quarantine_orphans(task.table, found.orphans, now=task.now, progress=self._progress)
        return Work(files_removed=len(gone), bytes_removed=sum(file.size_bytes for file in gone))

    def _seen_by_spark(self, task: Task) -> list[str]:
        return self._by_spark(task).find_orphans(older_than=task.now - task.policy.orphans.older_than)

    def _by_spark(self, task: Task) -> "SparkRun":
        from floe_dagster_iceberg.maintenance.spark_runner import SparkRun  # noqa: PLC0415 - it loads pyspark

        if self._spark is None:
            raise EngineCapabilityError("There is no Spark session. Configure an IcebergSparkResource.", engine="spark")
        return SparkRun(task, self._spark, self._budget, self._progress, self._snapshot_properties)


def _sum_of(rewrites: Sequence[FileRewrite]) -> Work:
    if not rewrites:
        return NOTHING_LEFT
    return Work(
        files_removed=sum(len(rewrite.removed) for rewrite in rewrites),
        bytes_removed=sum(rewrite.bytes_removed for rewrite in rewrites),
        files_added=sum(len(rewrite.added) for rewrite in rewrites),
        bytes_added=sum(rewrite.bytes_added for rewrite in rewrites),
    )
