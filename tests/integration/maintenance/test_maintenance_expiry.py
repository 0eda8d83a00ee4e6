"""Expiry with its files: the right snapshots gone, their files gone, nothing else."""

from datetime import timedelta
from pathlib import Path

import pytest
from support.lake import Lake
from support.maintenance_expiry import EXPIRY, expire, policy
from support.maintenance_tables import (
    DAY,
    EAGER,
    ORDERS,
    checksum,
    content,
    later,
    make_orders,
    paths_of,
    reachable_paths,
    rows_of,
    to_path,
)
from support.racing_catalog import racing_manager
from support.snapshot_history import grow

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceOperation, MaintenanceStatus, PlanReason
from floe_dagster_iceberg.table.manager import IcebergTableManager


def overwritten(manager: IcebergTableManager, times: int) -> list[int]:
    """A table whose rows were replaced that often; returns the snapshots, oldest first."""
    make_orders(manager)
    for batch in range(times):
        manager.overwrite(ORDERS, rows_of(batch, days=1))
    return [snapshot.snapshot_id for snapshot in reversed(manager.list_snapshots(ORDERS))]


@pytest.mark.requirement("S2-US4.4")
def test_files_and_bytes_of_the_result_are_those_that_left_the_disk(manager: IcebergTableManager) -> None:
    overwritten(manager, 5)
    before = {path: path.stat().st_size for path in paths_of(manager.load_table(ORDERS))}

    result = expire(manager)

    gone = before.keys() - paths_of(manager.load_table(ORDERS))
    assert (result.files_removed, result.bytes_removed) == (len(gone), sum(before[path] for path in gone))
    assert set(map(to_path, result.plan.files)) == gone
    assert result.plan.input_bytes == result.bytes_removed


def test_a_snapshot_that_is_young_stays(manager: IcebergTableManager) -> None:
    overwritten(manager, 3)

    result = expire(manager, after=6 * DAY)

    assert (result.status, result.plan.reason) == (MaintenanceStatus.SKIPPED, PlanReason.BELOW_THRESHOLD)
    assert len(manager.list_snapshots(ORDERS)) == 3


@pytest.mark.requirement("S2-E8")
def test_many_snapshots_expire_in_several_commits(lake: Lake, manager: IcebergTableManager) -> None:
    overwritten(manager, 11)
    before, messages = lake.metadata_versions(ORDERS), list[str]()

    maintenance = TableMaintenance(manager, clock=lambda: later(8 * DAY), progress=messages.append)
    result = maintenance.execute(EXPIRY, ORDERS, policy(max_snapshots_per_commit=4))

    assert result.snapshots_expired == 10
    assert lake.metadata_versions(ORDERS) == before + 3
    assert [line for line in messages if "snapshots expired" in line] == [f"{n} snapshots expired" for n in (4, 8, 10)]
    assert paths_of(manager.load_table(ORDERS)) == reachable_paths(manager.load_table(ORDERS))


def test_files_stay_when_the_policy_says_so(manager: IcebergTableManager) -> None:
    overwritten(manager, 3)
    before = paths_of(manager.load_table(ORDERS))

    result = expire(manager, policy(delete_files=False))

    assert (result.snapshots_expired, result.files_removed) == (2, 0)
    assert before < paths_of(manager.load_table(ORDERS))


def test_files_that_compaction_replaced_go_with_the_last_snapshot_that_needs_them(
    lake: Lake, manager: IcebergTableManager
) -> None:
    make_orders(manager, batches=3, days=2)
    rows = content(manager)
    TableMaintenance(manager).execute(MaintenanceOperation.COMPACTION, ORDERS, EAGER)

    expire(manager)

    assert len(lake.data_files()) == 2
    assert content(manager) == rows


@pytest.mark.requirement("S2-FR-024", "S0-D5", "S0-I2")
def test_an_expiry_below_governance_is_refused_and_an_override_shows(manager: IcebergTableManager) -> None:
    overwritten(manager, 3)
    strict = {"max_age": 7 * DAY, "governance_min_age": 30 * DAY}

    refused = expire(manager, policy(**strict))
    allowed = expire(manager, policy(**strict, overrides=["governance_retention"]))

    assert (refused.status, refused.plan.reason) == (MaintenanceStatus.SKIPPED, PlanReason.BLOCKED)
    assert "below the 30 days that governance demands" in refused.plan.blocked_by
    assert (allowed.status, allowed.overrides) == (MaintenanceStatus.DONE, ("governance_retention",))


def test_a_table_without_garbage_collection_is_left_alone_unless_that_is_overridden(
    manager: IcebergTableManager,
) -> None:
    overwritten(manager, 3)
    manager.load_table(ORDERS).transaction().set_properties({"gc.enabled": "false"}).commit_transaction()

    refused = expire(manager)
    allowed = expire(manager, policy(overrides=["gc_disabled"]))

    assert refused.plan.reason is PlanReason.BLOCKED
    assert "refused by 'gc_disabled'" in refused.plan.blocked_by
    assert (allowed.snapshots_expired, allowed.overrides) == (2, ("gc_disabled",))


def test_the_time_of_the_last_expiry_is_kept_without_a_commit_of_its_own(
    lake: Lake, manager: IcebergTableManager
) -> None:
    overwritten(manager, 3)
    before = lake.metadata_versions(ORDERS)
    weekly = policy(min_interval=7 * DAY)

    expire(manager, weekly)
    manager.overwrite(ORDERS, rows_of(9, days=1))

    assert lake.metadata_versions(ORDERS) == before + 2
    assert expire(manager, weekly, after=14 * DAY).plan.reason is PlanReason.MIN_INTERVAL
    assert expire(manager, weekly, after=16 * DAY).status is MaintenanceStatus.DONE


def test_a_writer_that_is_faster_makes_expiry_plan_again(manager: IcebergTableManager, tmp_path: Path) -> None:
    first, *_ = overwritten(manager, 3)
    slow = racing_manager(tmp_path, lambda: manager.create_tag(ORDERS, "keep", first))

    result = expire(slow)

    assert result.snapshots_expired == 1
    assert content(manager, ref="keep") == checksum(rows_of(0, days=1))


def test_an_old_snapshot_that_was_current_until_just_now_may_be_in_use_and_stays(
    manager: IcebergTableManager,
) -> None:
    first, second = overwritten(manager, 2)
    grow(manager.load_table(ORDERS), [later(8 * DAY)])
    last = manager.get_current_snapshot(ORDERS).snapshot_id

    soon = expire(manager, after=8 * DAY + timedelta(hours=1))
    left = [snapshot.snapshot_id for snapshot in manager.list_snapshots(ORDERS)]
    next_day = expire(manager, after=9 * DAY + timedelta(hours=1))

    # The second was replaced only just now, however long ago it was written.
    assert (soon.snapshots_expired, left) == (1, [last, second])
    assert next_day.snapshots_expired == 1
    assert first not in left


def test_a_snapshot_that_was_current_again_after_a_rollback_may_be_in_use_and_stays(
    manager: IcebergTableManager,
) -> None:
    history = overwritten(manager, 4)
    manager.rollback_to_snapshot(ORDERS, history[1])
    manager.rollback_to_snapshot(ORDERS, history[0])

    result = TableMaintenance(manager, clock=lambda: later(8 * DAY)).plan(EXPIRY, ORDERS, policy())
    in_use = TableMaintenance(manager, clock=lambda: later(timedelta(hours=2))).plan(
        EXPIRY, ORDERS, policy(max_age=DAY)
    )

    assert (result.snapshots, in_use.snapshots) == (2, 0)
