"""Compaction by policy: small files together, everything else alone."""

from datetime import date, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from support.maintenance_tables import (
    BY_DAY,
    DAY,
    EAGER,
    ORDERS,
    SCHEMA,
    content,
    files_per_partition,
    later,
    make_orders,
    rows_of,
)

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    CompactionPolicy,
    MaintenanceBudget,
    MaintenanceOperation,
    MaintenancePolicy,
    MaintenanceResult,
    MaintenanceStatus,
    PlanReason,
)
from floe_dagster_iceberg.table.manager import IcebergTableManager

COMPACTION = MaintenanceOperation.COMPACTION
MIB = 1024 * 1024


def policy(**arguments: Any) -> MaintenancePolicy:
    return EAGER.model_copy(update={"compaction": CompactionPolicy(**{"min_input_files": 2, **arguments})})


def compact(manager: IcebergTableManager, by: MaintenancePolicy = EAGER) -> MaintenanceResult:
    return TableMaintenance(manager).execute(COMPACTION, ORDERS, by)


@pytest.mark.requirement("S2-FR-030")
def test_a_result_describes_the_table_before_and_after(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=3)

    result = compact(manager)

    assert (result.before.data_files, result.after.data_files) == (30, 10)
    assert (result.before.partitions_needing_work, result.after.partitions_needing_work) == (10, 0)
    assert result.snapshot_id_before == result.plan.snapshot_id != result.snapshot_id_after
    assert result.bytes_removed == result.plan.input_bytes == result.before.total_bytes
    assert result.bytes_added == result.after.total_bytes


def test_the_snapshot_says_which_operation_made_it_and_how_long_it_took(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=2)

    compact(manager)

    summary = manager.get_current_snapshot(ORDERS).summary
    assert summary["floe.maintenance.operation"] == "compaction"
    assert int(summary["floe.maintenance.duration-ms"]) >= 0


def test_a_plan_estimates_its_duration_from_the_last_rewrite(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=2)
    first = TableMaintenance(manager).plan(COMPACTION, ORDERS, EAGER)
    compact(manager)
    for batch in (2, 3):
        manager.append(ORDERS, rows_of(batch))

    second = TableMaintenance(manager).plan(operation=COMPACTION, table=ORDERS, policy=EAGER)

    assert first.estimated_duration is None
    assert second.estimated_duration > timedelta(0)


def test_a_partition_with_too_few_small_files_is_left_alone(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=3, days=2)
    manager.append(ORDERS, rows_of(9, days=1))

    result = compact(manager, policy(min_input_files=4))

    assert (result.files_removed, result.plan.partitions) == (4, 1)


@pytest.mark.parametrize("partition_filter", ["day = '2024-01-02'", EqualTo("day", date(2024, 1, 2))])
def test_a_partition_filter_leaves_other_partitions_alone(manager: IcebergTableManager, partition_filter: Any) -> None:
    make_orders(manager, batches=3, days=3)

    result = compact(manager, policy(partition_filter=partition_filter))

    assert (result.files_removed, result.files_added) == (3, 1)
    assert sorted(files_per_partition(manager.load_table(ORDERS)).values()) == [1, 3, 3]


def test_a_filter_that_does_not_fit_the_table_is_a_failure_and_no_exception(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=2, days=1)

    result = compact(manager, policy(partition_filter="nowhere = 1"))

    assert result.status is MaintenanceStatus.FAILED
    assert "names a column that does not exist" in (result.error or "")


def test_files_of_a_good_size_stay(manager: IcebergTableManager) -> None:
    manager.create_table(ORDERS, rows_of(0).schema)
    manager.append(ORDERS, _incompressible(300_000))
    large = _data_files(manager)
    for batch in range(3):
        manager.append(ORDERS, rows_of(batch))

    result = compact(manager, policy(target_file_size_bytes=5 * MIB, small_file_ratio=0.5))

    assert (result.files_removed, result.files_added) == (3, 1)
    assert large < _data_files(manager)


def test_a_file_that_is_far_too_large_is_split(manager: IcebergTableManager) -> None:
    manager.create_table(ORDERS, rows_of(0).schema)
    manager.append(ORDERS, _incompressible(300_000))
    rows = content(manager)
    small = policy(target_file_size_bytes=MIB)

    result = compact(manager, small)

    assert result.files_removed == 1
    assert result.files_added > 3
    assert content(manager) == rows
    assert compact(manager, small).plan.reason is PlanReason.BELOW_THRESHOLD


def test_files_of_an_older_partition_spec_are_rewritten_into_the_new_one(manager: IcebergTableManager) -> None:
    manager.create_table(ORDERS, rows_of(0).schema)
    manager.append(ORDERS, rows_of(0, days=3))
    with manager.load_table(ORDERS).update_spec() as update:
        update.add_identity("day")
    rows = content(manager)

    result = compact(manager)

    table = manager.load_table(ORDERS)
    assert (result.files_removed, result.files_added) == (1, 3)
    assert {task.file.spec_id for task in table.scan().plan_files()} == {table.spec().spec_id}
    assert content(manager) == rows


def test_a_byte_budget_takes_the_partitions_that_lose_most_files_for_each_byte(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=2, days=2)
    for batch in range(2, 6):
        manager.append(ORDERS, rows_of(batch, days=1))
    everything = TableMaintenance(manager).plan(COMPACTION, ORDERS, EAGER)
    capped = EAGER.model_copy(update={"budget": MaintenanceBudget(max_rewrite_bytes=everything.input_bytes - 1)})

    result = compact(manager, capped)

    assert (result.files_removed, result.files_added) == (6, 1)
    assert "For the next run's budget: 1 more group." in result.plan.summary


def test_a_budget_that_nothing_fits_into_is_reported(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=2, days=1)
    capped = EAGER.model_copy(update={"budget": MaintenanceBudget(max_rewrite_bytes=1)})

    result = compact(manager, capped)

    assert (result.status, result.plan.reason) == (MaintenanceStatus.SKIPPED, PlanReason.BUDGET_CAPPED)


def test_partial_progress_commits_groups_as_they_finish(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=2, days=25)
    rows, before = content(manager), len(manager.list_snapshots(ORDERS))

    result = compact(manager, policy(partial_progress=True))

    assert (result.files_removed, result.files_added) == (50, 25)
    assert len(manager.list_snapshots(ORDERS)) == before + 3
    assert content(manager) == rows


def test_progress_is_reported_group_by_group(manager: IcebergTableManager) -> None:
    make_orders(manager, batches=2, days=3)
    messages: list[str] = []

    TableMaintenance(manager, progress=messages.append).execute(COMPACTION, ORDERS, EAGER)

    assert messages[-1] == "3 of 3 file groups rewritten"


@pytest.mark.requirement("S2-FR-031")
def test_large_dagster_partitions_keep_files_of_their_own(manager: IcebergTableManager) -> None:
    manager.create_table(ORDERS, rows_of(0).schema)
    for key in ("2024-01-01", "2024-01-02"):
        for part in range(2):
            manager.append(
                ORDERS, _incompressible(200_000, seed=part), snapshot_properties={"dagster.partition-key": key}
            )
    for key in ("2024-02-01", "2024-02-02"):
        manager.append(ORDERS, rows_of(1), snapshot_properties={"dagster.partition-key": key})

    plan = TableMaintenance(manager).plan(COMPACTION, ORDERS, policy(target_file_size_bytes=6 * MIB))
    result = compact(manager, policy(target_file_size_bytes=6 * MIB))

    assert plan.input_files == 6
    # One file for each of the large ones, one for the two small ones together.
    assert result.files_added == 3


def test_tables_of_format_version_1_are_maintained_as_well(manager: IcebergTableManager) -> None:
    manager.create_table(ORDERS, SCHEMA, BY_DAY, properties={"format-version": "1"})
    for batch in range(3):
        manager.append(ORDERS, rows_of(batch, days=2))
    rows = content(manager)
    maintenance = TableMaintenance(manager, clock=lambda: later(8 * DAY))

    names = ("compaction", "manifests", "snapshot_expiry")
    results = [maintenance.execute(MaintenanceOperation(name), ORDERS, EAGER) for name in names]

    assert [(result.status, result.error) for result in results] == [(MaintenanceStatus.DONE, None)] * 3
    assert set(files_per_partition(manager.load_table(ORDERS)).values()) == {1}
    assert content(manager) == rows


def test_a_table_without_rows_has_nothing_to_compact(manager: IcebergTableManager) -> None:
    make_orders(manager)

    result = compact(manager)

    assert (result.status, result.plan.reason) == (MaintenanceStatus.SKIPPED, PlanReason.BELOW_THRESHOLD)


def test_a_table_that_is_not_there_is_a_failure_and_no_exception(manager: IcebergTableManager) -> None:
    result = compact(manager)

    assert result.status is MaintenanceStatus.FAILED
    assert "'bronze.orders' not found" in (result.error or "")
    assert str(result.table) == ORDERS


def _incompressible(rows: int, seed: int = 0) -> pa.Table:
    """About 16 bytes a row on disk."""
    numbers = np.random.default_rng(seed).integers(2**62, size=rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "day": pa.array([date(2024, 1, 1)] * rows, pa.date32()),
            "amount": pa.array(numbers / 7, pa.float64()),
            "region": pa.array(["EU"] * rows, pa.string()),
        }
    )


def _data_files(manager: IcebergTableManager) -> set[str]:
    return {task.file.file_path for task in manager.load_table(ORDERS).scan().plan_files()}
