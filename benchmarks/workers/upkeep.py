"""This package's maintenance, on both engines."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from benchmarks.workers.tables import open_manager
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    ExpiryPolicy,
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
