"""Expiry of the snapshots of the orders table, some days later."""

from datetime import timedelta
from typing import Any

from support.maintenance_tables import DAY, EAGER, ORDERS, later

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import ExpiryPolicy, MaintenanceOperation, MaintenancePolicy, MaintenanceResult
from floe_dagster_iceberg.table.manager import IcebergTableManager

EXPIRY = MaintenanceOperation.SNAPSHOT_EXPIRY


def policy(**arguments: Any) -> MaintenancePolicy:
    """Keeps one snapshot unless the arguments say otherwise."""
    return EAGER.model_copy(update={"expiry": ExpiryPolicy(**{"min_snapshots_to_keep": 1, **arguments})})


def expire(
    manager: IcebergTableManager, by: MaintenancePolicy = EAGER, after: timedelta = 8 * DAY
) -> MaintenanceResult:
    """Expire by a policy, as if that much time had passed."""
    return TableMaintenance(manager, clock=lambda: later(after)).execute(EXPIRY, ORDERS, by)
