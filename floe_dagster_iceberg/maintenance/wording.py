"""What maintenance foresaw, did and found, as a person reads it."""

from datetime import timedelta
from typing import Final, assert_never

from floe_dagster_iceberg.models import (
    MaintenanceOperation,
    MaintenancePlan,
    MaintenanceResult,
    MaintenanceStatus,
    PlanReason,
)
from floe_dagster_iceberg.secrets import redact

_REASONS: Final = {
    PlanReason.RECOMMENDED: "There is work to do.",
    PlanReason.BELOW_THRESHOLD: "Nothing to do.",
    PlanReason.MIN_INTERVAL: "Its last run is too recent.",
    PlanReason.BUDGET_CAPPED: "It does not fit into what is left of the budget.",
    PlanReason.BLOCKED: "Blocked.",
}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BYTES_PER_UNIT: Final = 1024


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
    removed = f"{result.files_removed} files ({format_bytes(result.bytes_removed)})"
    match result.operation:
        case MaintenanceOperation.SNAPSHOT_EXPIRY:
            return f"{result.snapshots_expired} snapshots expired, {removed} deleted."
        case MaintenanceOperation.ORPHAN_FILES:
            return f"{removed} moved to quarantine or deleted from it."
        case MaintenanceOperation.MANIFESTS:
            return f"{result.files_removed} manifests became {result.files_added}."
        case MaintenanceOperation.COMPACTION | MaintenanceOperation.POSITION_DELETES:
            return f"{removed} became {result.files_added} ({format_bytes(result.bytes_added)})."
        case _:
            assert_never(result.operation)


def format_bytes(size: float) -> str:
    """A size with a unit that keeps it short.

    >>> format_bytes(1536)
    '1.5 KiB'
    """
    for unit in _UNITS[:-1]:
        if size < _BYTES_PER_UNIT:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _BYTES_PER_UNIT
    return f"{size:.1f} {_UNITS[-1]}"


def format_value(value: object) -> str:
    """A setting as a person writes it."""
    match value:
        case timedelta():
            return str(value)
        case tuple() | list():
            return ", ".join(map(str, value)) or "none"
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)
