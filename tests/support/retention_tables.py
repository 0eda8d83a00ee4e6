"""Tables with rows of many days, and a retention at a fixed time."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, LongType, NestedField
from support.maintenance_tables import ORDERS
from support.maintenance_upkeep import Upkeep

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePlan,
    MaintenancePolicy,
    MaintenanceResult,
    RetentionPolicy,
)
from floe_dagster_iceberg.table.manager import IcebergTableManager

RETENTION = MaintenanceOperation.RETENTION
FIRST = date(2024, 1, 1)
NOW = datetime(2024, 12, 31, 13, 45, tzinfo=UTC)


def retention(**settings: Any) -> MaintenancePolicy:
    """A policy of 30 days, with other settings, for which a run may delete everything."""
    given = {"max_age": timedelta(days=30), "max_share": 1.0, **settings}
    return MaintenancePolicy(retention=RetentionPolicy(**given))


def make_events(
    manager: IcebergTableManager,
    kind: IcebergType,
    values: Sequence[Sequence[Any]],
    *,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
) -> Table:
    """A table with columns id and at, to which these values of at are appended, one commit for each sequence."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", kind))
    manager.create_table(ORDERS, schema, spec)
    number = 0
    for batch in values:
        ids = range(number, number + len(batch))
        rows = {"id": pa.array(ids, pa.int64()), "at": pa.array(batch, schema.as_arrow().field("at").type)}
        manager.append(ORDERS, pa.table(rows))
        number += len(batch)
    return manager.load_table(ORDERS)


def days(count: int, first: date = FIRST) -> list[date]:
    """Consecutive days."""
    return [first + timedelta(days=number) for number in range(count)]


def left(manager: IcebergTableManager, **version: Any) -> list[Any]:
    """The values of column at, in order, NULL last."""
    return sorted(manager.scan(ORDERS, **version)["at"].to_pylist(), key=lambda value: (value is None, str(value)))


def at_fixed_time(upkeep: Upkeep) -> TableMaintenance:
    """Maintenance on the last day of 2024."""
    return TableMaintenance(upkeep.manager, spark=upkeep.provider, clock=lambda: NOW)


def plan(upkeep: Upkeep, policy: MaintenancePolicy) -> MaintenancePlan:
    """The plan of a retention by the engine."""
    return at_fixed_time(upkeep).plan(RETENTION, ORDERS, _by(upkeep.engine, policy))


def execute(upkeep: Upkeep, policy: MaintenancePolicy) -> MaintenanceResult:
    """A retention by the engine."""
    return at_fixed_time(upkeep).execute(RETENTION, ORDERS, _by(upkeep.engine, policy))


def _by(engine: MaintenanceEngine, policy: MaintenancePolicy) -> MaintenancePolicy:
    return policy.model_copy(update={"engine": engine})
