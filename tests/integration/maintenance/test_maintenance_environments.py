"""Environments and maintenance: what a live one needs stays, and an idle one is dropped by policy."""

from datetime import timedelta

import pyarrow as pa
import pytest
from support.lake import Lake
from support.maintenance_expiry import EXPIRY, expire, policy
from support.maintenance_tables import DAY, EAGER, ORDERS, content, later, make_orders, rows_of, to_path
from support.maintenance_upkeep import Upkeep

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    ExpiryPolicy,
    MaintenanceOperation,
    MaintenancePlan,
    MaintenancePolicy,
    MaintenanceStatus,
)
from floe_dagster_iceberg.table.environments import IcebergEnvironments
from floe_dagster_iceberg.table.manager import IcebergTableManager

BRANCH = "env-pr-12"
OTHER = "bronze.other"
WEEKS = timedelta(days=14)


def make_preview(manager: IcebergTableManager, *tables: str) -> None:
    """Tables of production, each written once, and the same once more in a preview."""
    for table in tables:
        make_orders(manager, name=table)
        manager.append(table, rows_of(0, days=1))
        manager.overwrite(table, rows_of(1, days=1), branch=BRANCH)


def append_on_both_sides(manager: IcebergTableManager) -> None:
    """A preview of one commit, and four more of production since it began."""
    make_orders(manager)
    manager.append(ORDERS, rows_of(0, days=1))
    manager.append(ORDERS, rows_of(1, days=1), branch=BRANCH)
    for batch in range(2, 6):
        manager.append(ORDERS, rows_of(batch, days=1))


def plan(manager: IcebergTableManager, by: MaintenancePolicy, after: timedelta) -> MaintenancePlan:
    return TableMaintenance(manager, clock=lambda: later(after)).plan(EXPIRY, ORDERS, by)


def refs(manager: IcebergTableManager, table: str = ORDERS) -> set[str]:
    return set(manager.load_table(table).metadata.refs)


def test_an_idle_environment_is_planned_and_dropped(upkeep: Upkeep) -> None:
    manager, by = upkeep.manager, policy(max_environment_age=WEEKS)
    make_preview(manager, ORDERS)
    rows, version = content(manager), manager.load_table(ORDERS).metadata_location

    planned = upkeep.plan(EXPIRY, by, after=15 * DAY)

    assert planned.refs == (BRANCH,)
    assert "1 branch or tag past their age (environment pr-12)" in planned.summary
    assert manager.load_table(ORDERS).metadata_location == version

    result = upkeep.execute(EXPIRY, by, after=15 * DAY)

    assert (result.status, result.error) == (MaintenanceStatus.DONE, None)
    assert refs(manager) == {"main"}
    assert content(manager) == rows
    assert IcebergEnvironments(manager).list() == []


@pytest.mark.parametrize(
    ("by", "after"),
    [(policy(), timedelta(days=400)), (policy(max_environment_age=WEEKS), timedelta(days=13))],
    ids=["without the policy", "before its age"],
)
def test_an_environment_stays(manager: IcebergTableManager, by: MaintenancePolicy, after: timedelta) -> None:
    make_preview(manager, ORDERS)

    assert plan(manager, by, after).refs == ()
    expire(manager, by, after=after)

    assert refs(manager) == {"main", BRANCH}


def test_an_environment_that_was_written_in_any_table_is_in_use(manager: IcebergTableManager) -> None:
    by = policy(max_environment_age=timedelta(0), overrides=["environment_age"])
    make_preview(manager, ORDERS, OTHER)
    limit = manager.load_table(OTHER).metadata.snapshots[-1].timestamp_ms

    # As old as the newest snapshot of the environment, which is in the other table.
    written = pa.scalar(limit, pa.timestamp("ms", tz="UTC")).as_py()
    TableMaintenance(manager, clock=lambda: written).execute(EXPIRY, ORDERS, by)

    assert refs(manager) == {"main", BRANCH}


def test_where_a_table_cannot_be_loaded_no_environment_is_dropped(lake: Lake, manager: IcebergTableManager) -> None:
    by = policy(max_environment_age=WEEKS)
    make_preview(manager, ORDERS, OTHER)
    to_path(lake.table(OTHER).metadata_location).unlink()

    planned = plan(manager, by, 15 * DAY)
    expire(manager, by, after=15 * DAY)

    assert "No environment is dropped, because 'bronze.other' cannot be loaded" in planned.summary
    assert refs(manager) == {"main", BRANCH}


def test_an_age_below_a_day_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"max_environment_age of 2 hours is below the floor of 1 day.*'environment_age'"
    ):
        ExpiryPolicy(max_environment_age=timedelta(hours=2))


def test_the_guardrail_refuses_an_age_that_got_past_the_policy(manager: IcebergTableManager) -> None:
    make_preview(manager, ORDERS)
    unchecked = ExpiryPolicy().model_copy(update={"max_environment_age": timedelta(hours=2)})

    planned = plan(manager, EAGER.model_copy(update={"expiry": unchecked}), 15 * DAY)

    assert planned.blocked_by is not None
    assert "environment_age" in planned.blocked_by
    assert refs(manager) == {"main", BRANCH}


def test_maintenance_deletes_nothing_that_a_live_environment_needs(upkeep: Upkeep) -> None:
    manager = upkeep.manager
    make_preview(manager, ORDERS)
    for batch in range(2, 8):
        manager.append(ORDERS, rows_of(batch, days=2))
    preview = content(manager, ref=BRANCH)

    for operation in (MaintenanceOperation.COMPACTION, EXPIRY, MaintenanceOperation.ORPHAN_FILES, EXPIRY):
        result = upkeep.execute(operation, policy(), after=20 * DAY)
        assert result.error is None

    assert content(manager, ref=BRANCH) == preview


def test_an_old_environment_can_still_be_published(manager: IcebergTableManager) -> None:
    append_on_both_sides(manager)
    expire(manager, policy(), after=20 * DAY)

    IcebergEnvironments(manager).publish("pr-12")

    assert manager.scan(ORDERS).num_rows == 6 * rows_of(0, days=1).num_rows


def test_past_the_age_of_cursors_an_environment_holds_back_only_its_own_rows(manager: IcebergTableManager) -> None:
    append_on_both_sides(manager)
    preview = content(manager, ref=BRANCH)

    expire(manager, policy(), after=40 * DAY)

    assert len(manager.list_snapshots(ORDERS)) == 2
    assert content(manager, ref=BRANCH) == preview
    with pytest.raises(ValidationError, match="the snapshot where it began has expired"):
        IcebergEnvironments(manager).publish("pr-12")
