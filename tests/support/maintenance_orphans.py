"""Orphan files made, and cleared away."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from pyiceberg.table.statistics import StatisticsFile
from support.maintenance_tables import DAY, EAGER, ORDERS, later, make_older, paths_of, to_path

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    MaintenanceOperation,
    MaintenancePlan,
    MaintenancePolicy,
    MaintenanceResult,
    OrphanPolicy,
)
from floe_dagster_iceberg.table.manager import IcebergTableManager

ORPHANS = MaintenanceOperation.ORPHAN_FILES
NOW = timedelta(0)


def policy(**arguments: Any) -> MaintenancePolicy:
    return EAGER.model_copy(update={"orphans": OrphanPolicy(**arguments)})


def clean(manager: IcebergTableManager, by: MaintenancePolicy = EAGER, *, after: timedelta = NOW) -> MaintenanceResult:
    return TableMaintenance(manager, clock=lambda: later(after)).execute(ORPHANS, ORDERS, by)


def plan(manager: IcebergTableManager, by: MaintenancePolicy = EAGER) -> MaintenancePlan:
    return TableMaintenance(manager).plan(ORPHANS, ORDERS, by)


def leave_orphan(
    manager: IcebergTableManager, name: str = "data/day=2024-01-01/left-behind.parquet", age: timedelta = 10 * DAY
) -> Path:
    """A file below the table's location that was written that long ago and that nothing leads to."""
    path = to_path(manager.load_table(ORDERS).location()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"bytes of {name}".encode())
    make_older(path, age)
    return path


def all_old(manager: IcebergTableManager, name: str = ORDERS) -> None:
    """Let every file of a table look as if it was written a month ago."""
    for path in paths_of(manager.load_table(name)):
        make_older(path, 30 * DAY)


def statistics_at(manager: IcebergTableManager, path: Path) -> StatisticsFile:
    """Statistics of the table's newest snapshot in a file."""
    return StatisticsFile(
        snapshot_id=manager.load_table(ORDERS).metadata.current_snapshot_id,
        statistics_path=f"file://{path}",
        file_size_in_bytes=path.stat().st_size,
        file_footer_size_in_bytes=1,
        blob_metadata=[],
    )
