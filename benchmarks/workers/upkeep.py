"""This package's maintenance, on both engines."""

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from benchmarks.workers.tables import open_manager
from floe_dagster_iceberg._pyiceberg.file_io import forget_all
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.maintenance.policy import PolicySources
from floe_dagster_iceberg.maintenance.runner import MaintenanceRun
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    ExpiryPolicy,
    HealthTier,
    MaintenanceBudget,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePolicy,
    MaintenanceResult,
    MaintenanceStatus,
)

if TYPE_CHECKING:
    from floe_dagster_iceberg.spark.procedures import SparkProvider

_PLANNED = (
    MaintenanceOperation.COMPACTION,
    MaintenanceOperation.SNAPSHOT_EXPIRY,
    MaintenanceOperation.MANIFESTS,
)


class NotDoneError(RuntimeError):
    """An operation was skipped, so there is nothing to time."""


def compact(lake: Mapping[str, str], table: str, spark: "SparkProvider | None" = None) -> Mapping[str, Any]:
    """Compact small files with the default policy."""
    done = _maintain(
        lake, MaintenanceOperation.COMPACTION, table, MaintenancePolicy(compaction=CompactionPolicy()), spark
    )
    return {"seconds": done.duration.total_seconds(), "files_removed": done.files_removed}


def expire(lake: Mapping[str, str], table: str, keep: int) -> Mapping[str, Any]:
    """Expire all snapshots but the newest, with their files."""
    policy = MaintenancePolicy(expiry=ExpiryPolicy(min_snapshots_to_keep=keep))
    done = _maintain(lake, MaintenanceOperation.SNAPSHOT_EXPIRY, table, policy)
    return {"seconds": done.duration.total_seconds(), "files_removed": done.files_removed}


def measure_tables(lake: Mapping[str, str], tables: Sequence[str]) -> Mapping[str, Any]:
    """Measure every table, and plan each operation on it."""
    maintenance, policy = _maintenance(lake), MaintenancePolicy()
    started = time.perf_counter()
    files = 0
    for name in tables:
        files += maintenance.health(f"bench.{name}", policy).data_files
        for operation in _PLANNED:
            maintenance.plan(operation, f"bench.{name}", policy)
    return {"seconds": time.perf_counter() - started, "files": files}


def measure_fleet(lake: Mapping[str, str], tables: str, at_once: int | None = None) -> Mapping[str, Any]:
    """Measure the health of all tables of a glob, with nothing remembered of their files."""
    manager = open_manager(lake)
    policy = MaintenancePolicy(tables=[tables])
    if at_once is not None:
        policy = policy.model_copy(update={"budget": MaintenanceBudget(max_concurrent_tables=at_once)})
    run = MaintenanceRun(
        MaintenanceOperation.TABLE_HEALTH,
        manager,
        TableMaintenance(manager),
        PolicySources(code=policy),
        logging.getLogger(__name__),
    )
    forget_all()
    started = time.perf_counter()
    outcomes = run.measure(HealthTier.FILES)
    return {"seconds": time.perf_counter() - started, "tables": len(outcomes)}


def _maintain(
    lake: Mapping[str, str],
    operation: MaintenanceOperation,
    table: str,
    policy: MaintenancePolicy,
    spark: "SparkProvider | None" = None,
) -> MaintenanceResult:
    engine = MaintenanceEngine.PYICEBERG if spark is None else MaintenanceEngine.SPARK
    chosen = policy.model_copy(update={"engine": engine})
    result = _maintenance(lake, spark).execute(operation, f"bench.{table}", chosen)
    if result.status is not MaintenanceStatus.DONE:
        raise NotDoneError(f"{operation} of {table} is {result.status}: {result.error or result.plan}")
    return result


def _maintenance(lake: Mapping[str, str], spark: "SparkProvider | None" = None) -> TableMaintenance:
    # Snapshots that are a minute old must be old enough to expire.
    return TableMaintenance(open_manager(lake), spark=spark, clock=lambda: datetime.now(UTC) + timedelta(days=30))
