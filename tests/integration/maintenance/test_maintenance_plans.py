"""Health, plans and dry runs: everything is seen, nothing is changed."""

from datetime import timedelta
from typing import Any

import pytest
from support.lake import Lake
from support.maintenance_tables import DAY, EAGER, ORDERS, later, make_older, make_orders, rows_of, to_path
from support.reading_io import READING_IO, reading

from floe_dagster_iceberg.errors import NoSuchTableError, ScanError
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    CompactionStrategyType,
    HealthTier,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePolicy,
    MaintenanceStatus,
    PlanReason,
)
from floe_dagster_iceberg.table.manager import IcebergTableManager

DRY = EAGER.model_copy(update={"dry_run": True})


def neglected(manager: IcebergTableManager) -> None:
    """A table that every operation of PyIceberg finds something to do for."""
    table = make_orders(manager, batches=4, days=3)
    orphan = to_path(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"orphaned")
    make_older(orphan, 40 * DAY)


def test_an_operation_that_is_switched_off_is_blocked(manager: IcebergTableManager) -> None:
    neglected(manager)
    off = EAGER.model_copy(update={"compaction": CompactionPolicy(enabled=False)})

    plan = TableMaintenance(manager).plan(MaintenanceOperation.COMPACTION, ORDERS, off)

    assert plan.reason is PlanReason.BLOCKED
    assert "policy disables it" in plan.blocked_by


def test_an_operation_waits_for_its_interval(manager: IcebergTableManager) -> None:
    neglected(manager)
    hourly = EAGER.model_copy(
        update={"compaction": CompactionPolicy(min_input_files=2, min_interval=timedelta(hours=1))}
    )
    compaction = MaintenanceOperation.COMPACTION
    first = TableMaintenance(manager).execute(compaction, ORDERS, hourly)
    for batch in (7, 8):
        manager.append(ORDERS, rows_of(batch, days=1))

    soon = TableMaintenance(manager).execute(compaction, ORDERS, hourly)
    late = TableMaintenance(manager, clock=lambda: later(timedelta(hours=2))).execute(compaction, ORDERS, hourly)

    assert (first.status, late.status) == (MaintenanceStatus.DONE, MaintenanceStatus.DONE)
    assert (soon.status, soon.plan.reason) == (MaintenanceStatus.SKIPPED, PlanReason.MIN_INTERVAL)
    assert "min_interval is 1 hour" in soon.plan.summary


@pytest.mark.parametrize(
    ("operation", "compaction"),
    [
        ("compaction", {"strategy": CompactionStrategyType.Z_ORDER, "sort_columns": ["id", "amount"]}),
        ("compaction", {"min_input_files": 2}),
        ("manifests", {}),
        ("snapshot_expiry", {}),
        ("orphan_files", {}),
    ],
)
def test_asking_for_spark_without_a_session_is_blocked_with_the_remedy(
    manager: IcebergTableManager, operation: str, compaction: dict[str, Any]
) -> None:
    neglected(manager)
    by_spark = EAGER.model_copy(
        update={
            "engine": MaintenanceEngine.SPARK,
            "compaction": CompactionPolicy(**{"min_input_files": 2, **compaction}),
        }
    )

    result = TableMaintenance(manager, clock=lambda: later(30 * DAY)).execute(
        MaintenanceOperation(operation), ORDERS, by_spark
    )

    assert (result.status, result.plan.reason) == (MaintenanceStatus.SKIPPED, PlanReason.BLOCKED)
    assert result.engine is MaintenanceEngine.SPARK
    assert "there is no Spark session. Configure an IcebergSparkResource." in result.plan.blocked_by


@pytest.mark.parametrize("engine", [MaintenanceEngine.AUTO, MaintenanceEngine.PYICEBERG])
def test_z_order_needs_spark(manager: IcebergTableManager, engine: MaintenanceEngine) -> None:
    neglected(manager)
    z_order = CompactionPolicy(strategy=CompactionStrategyType.Z_ORDER, sort_columns=["id"], min_input_files=2)
    policy = EAGER.model_copy(update={"engine": engine, "compaction": z_order})

    plan = TableMaintenance(manager).plan(MaintenanceOperation.COMPACTION, ORDERS, policy)

    assert plan.reason is PlanReason.BLOCKED
    assert "The files are to be in z-order, which PyIceberg cannot do" in plan.blocked_by


def test_health_reads_more_with_each_tier(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=3, days=4)
    maintenance = TableMaintenance(manager)

    summary, manifests, files = (maintenance.health(ORDERS, EAGER, tier=tier) for tier in HealthTier)

    for health in (summary, manifests, files):
        assert (health.data_files, health.records, health.snapshots) == (12, 36, 3)
        assert health.total_bytes == files.total_bytes > 0
    assert (summary.manifests, manifests.manifests) == (None, 3)
    assert manifests.metadata_json_bytes == to_path(manager.load_table(ORDERS).metadata_location).stat().st_size
    assert (manifests.small_files, files.small_files, files.small_file_share) == (None, 12, 1.0)
    assert (files.partitions, files.partitions_needing_work) == (4, 4)
    assert sum(bar.files for bar in files.file_sizes) == 12


def test_health_of_an_empty_table_is_all_zero(manager: IcebergTableManager) -> None:
    make_orders(manager)

    health = TableMaintenance(manager).health(ORDERS, EAGER)

    assert (health.data_files, health.snapshots, health.manifests, health.partitions_needing_work) == (0, 0, 0, 0)
    assert health.snapshot_id is None


def test_health_agrees_with_the_plan_on_what_needs_work(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=3, days=2)
    manager.append(ORDERS, rows_of(9, days=1))
    picky = EAGER.model_copy(update={"compaction": CompactionPolicy(min_input_files=4)})
    maintenance = TableMaintenance(manager)

    health = maintenance.health(ORDERS, picky)

    assert health.partitions_needing_work == 1
    assert maintenance.plan(MaintenanceOperation.COMPACTION, ORDERS, picky).partitions == 1


@pytest.mark.parametrize(
    ("tier", "opened"),
    [(HealthTier.SUMMARY, 0), (HealthTier.MANIFESTS, 1), (HealthTier.FILES, 1 + 3)],
    ids=["no file", "the manifest list", "the list and its manifests"],
)
def test_a_tier_opens_only_what_it_needs_besides_the_metadata(
    lake: Lake, manager: IcebergTableManager, tier: HealthTier, opened: int
) -> None:
    lake.catalog.properties.update(READING_IO)
    make_orders(manager, batches=3, days=4)

    with reading() as files:
        TableMaintenance(manager).health(ORDERS, EAGER, tier=tier)

    assert sorted(set(files)) == sorted(files), "no file is opened twice"
    assert len([file for file in files if file.endswith(".avro")]) == opened
    assert [file for file in files if not file.endswith(".avro")] == [manager.load_table(ORDERS).metadata_location]


def test_a_manifest_that_is_missing_is_seen_only_by_those_who_need_it(manager: IcebergTableManager) -> None:
    table = make_orders(manager, batches=2)
    for path in to_path(table.location()).rglob("*.avro"):
        path.unlink()

    assert TableMaintenance(manager).health(ORDERS, EAGER, tier=HealthTier.SUMMARY).data_files == 20
    with pytest.raises(ScanError, match="missing from storage"):
        TableMaintenance(manager).health(ORDERS, EAGER, tier=HealthTier.FILES)


def test_a_plan_for_a_table_that_is_not_there_raises(manager: IcebergTableManager) -> None:
    with pytest.raises(NoSuchTableError):
        TableMaintenance(manager).plan(MaintenanceOperation.COMPACTION, ORDERS, MaintenancePolicy())


def test_a_name_that_no_table_can_have_is_a_failure_and_no_exception(manager: IcebergTableManager) -> None:
    result = TableMaintenance(manager).execute(MaintenanceOperation.COMPACTION, "no namespace", EAGER)

    assert result.status is MaintenanceStatus.FAILED
    assert "has no namespace" in (result.error or "")
