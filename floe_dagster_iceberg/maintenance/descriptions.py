"""What maintenance foresaw, did and found, as a person reads it."""

from typing import Final, assert_never

from floe_dagster_iceberg.models import (
    MaintenanceOperation,
    MaintenancePlan,
    MaintenanceResult,
    MaintenanceStatus,
    PlanReason,
)
from floe_dagster_iceberg.models.quantities import counted, format_bytes
from floe_dagster_iceberg.secrets import redact

_REASONS: Final = {
    PlanReason.RECOMMENDED: "There is work to do.",
    PlanReason.BELOW_THRESHOLD: "Nothing to do.",
    PlanReason.MIN_INTERVAL: "Its last run is too recent.",
    PlanReason.BUDGET_CAPPED: "It does not fit into what is left of the budget.",
    PlanReason.BLOCKED: "Blocked.",
}


def describe_result(result: MaintenanceResult) -> str:
    """What an operation did, or why it did nothing."""
    match result.status:
        case MaintenanceStatus.FAILED:
            return redact(str(result.error))
        case MaintenanceStatus.SKIPPED | MaintenanceStatus.PLANNED:
            return "Nothing to do." if result.plan is None else describe_plan(result.plan)
        case MaintenanceStatus.DONE:
            return _describe_work(result)
        case _:
            assert_never(result.status)


def describe_plan(plan: MaintenancePlan) -> str:
    """What would be done, or why nothing would."""
    return redact(plan.blocked_by or plan.summary or _REASONS[plan.reason])


def _describe_work(result: MaintenanceResult) -> str:
    removed = f"{counted(result.files_removed, 'file')} ({format_bytes(result.bytes_removed)})"
    match result.operation:
        case MaintenanceOperation.SNAPSHOT_EXPIRY:
            return f"{counted(result.snapshots_expired, 'snapshot')} expired, {removed} deleted."
        case MaintenanceOperation.ORPHAN_FILES:
            return f"{removed} moved to quarantine or deleted from it."
        case MaintenanceOperation.MANIFESTS:
            return f"{counted(result.files_removed, 'manifest')} became {result.files_added:,}."
        case (
            MaintenanceOperation.COMPACTION | MaintenanceOperation.POSITION_DELETES | MaintenanceOperation.TABLE_HEALTH
        ):
            return f"{removed} became {result.files_added:,} ({format_bytes(result.bytes_added)})."
        case _:
            assert_never(result.operation)
