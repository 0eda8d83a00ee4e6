"""One operation on one table, before anybody knows what is to be done."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from pyiceberg.table import Table

from floe_dagster_iceberg.maintenance.sections import policy_of
from floe_dagster_iceberg.models import (
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePlan,
    MaintenancePolicy,
    PlanReason,
    TableIdentifier,
)
from floe_dagster_iceberg.models.maintenance import OperationPolicy
from floe_dagster_iceberg.models.quantities import format_duration
from floe_dagster_iceberg.plugins.translation import translated
from floe_dagster_iceberg.table.health import LiveFiles, read_live_files
from floe_dagster_iceberg.table.maintenance_marks import last_run
from floe_dagster_iceberg.table.names import to_identifier
from floe_dagster_iceberg.table.quarantine import load_quarantines
from floe_dagster_iceberg.table.reachability import ReadManifests


@dataclass(frozen=True)
class Task:
    """One operation on one table.

    Attributes:
        table: The table, as it is now.
        operation: The operation.
        policy: How it is to be done.
        now: The moment from which ages are counted.
        has_spark: Whether there is a Spark session to be had.
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
    def manifests(self) -> ReadManifests:
        """Manifests of expiring snapshots, read for the plan and not again for what follows it."""
        return ReadManifests(self.table.io)

    @property
    def own_policy(self) -> OperationPolicy:
        """The part of the policy that is about this operation."""
        return policy_of(self.operation, self.policy)

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

    def blocked(self, why: str, **fields: Any) -> MaintenancePlan:
        """A plan that leaves the table as it is, because something stands in the way."""
        return self.plan(PlanReason.BLOCKED, "", blocked_by=why, **fields)


@dataclass(frozen=True)
class Work:
    """What was done, in the words of `MaintenanceResult`.

    Attributes:
        lost: Why nothing was done although it was planned; None when it was done.
    """

    files_removed: int = 0
    bytes_removed: int = 0
    files_added: int = 0
    bytes_added: int = 0
    snapshots_expired: int = 0
    statement: str | None = None
    lost: str | None = None

    def to_result_fields(self) -> dict[str, Any]:
        """What a result takes over."""
        return {name: value for name, value in vars(self).items() if name != "lost"}


NOTHING_LEFT: Final = Work(lost="another process has done it meanwhile")


def too_early(task: Task) -> MaintenancePlan | None:
    """The plan of an operation that is switched off or was done a short while ago; None when it may go on."""
    own, compaction = task.own_policy, task.policy.compaction
    if not own.enabled:
        return task.blocked("The policy switches it off. Set enabled to true to have it done.")
    if task.operation is MaintenanceOperation.POSITION_DELETES and not compaction.rewrite_position_deletes:
        return task.blocked("The policy switches it off. Set rewrite_position_deletes to true to have it done.")
    if not own.min_interval:
        return None
    last = _last_run(task)
    if last is None or task.now - last >= own.min_interval:
        return None
    return task.plan(
        PlanReason.MIN_INTERVAL,
        f"Last done {last:%Y-%m-%d %H:%M} UTC; the policy waits {format_duration(own.min_interval)} in between.",
    )


def _last_run(task: Task) -> datetime | None:
    if task.operation is not MaintenanceOperation.ORPHAN_FILES:
        return last_run(task.table.metadata, task.operation)
    with translated(task.table.catalog.name, table=".".join(task.table.name())):
        return max((quarantine.created_at for quarantine in load_quarantines(task.table)), default=None)
