"""Expiry and incremental readers: what a reader has not read yet stays, for some time."""

from datetime import timedelta

import pyarrow as pa
from support.maintenance_expiry import EXPIRY, expire, policy
from support.maintenance_tables import DAY, EAGER, ORDERS, later, make_orders, rows_of

from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import Cursor, MaintenancePlan, MaintenancePolicy
from floe_dagster_iceberg.table.changes.cursors import cursor_key
from floe_dagster_iceberg.table.manager import IcebergTableManager

READER = "bronze.copy"


def written(manager: IcebergTableManager, times: int) -> list[int]:
    """A table that was written that often; returns its snapshots, oldest first."""
    make_orders(manager)
    for batch in range(times):
        manager.overwrite(ORDERS, rows_of(batch, days=1))
    return snapshots(manager)


def snapshots(manager: IcebergTableManager, table: str = ORDERS) -> list[int]:
    return [snapshot.snapshot_id for snapshot in reversed(manager.list_snapshots(table))]


def read_up_to(manager: IcebergTableManager, snapshot_id: int, *, uuid: str | None = None) -> None:
    """Commit the reader's table, as an asset with an incremental input does."""
    rows = pa.table({"n": [1]})
    if not manager.table_exists(READER):
        manager.catalog.create_table(READER, rows.schema)
    cursor = Cursor(table_uuid=uuid or str(manager.load_table(ORDERS).metadata.table_uuid), snapshot_id=snapshot_id)
    manager.append(READER, rows, snapshot_properties={cursor_key(ORDERS): str(cursor)})


def plan(manager: IcebergTableManager, by: MaintenancePolicy, after: timedelta = 8 * DAY) -> MaintenancePlan:
    return TableMaintenance(manager, clock=lambda: later(after)).plan(EXPIRY, ORDERS, by)


def test_what_a_reader_has_not_read_stays_and_the_plan_says_why(manager: IcebergTableManager) -> None:
    known = written(manager, 6)
    read_up_to(manager, known[0])
    read_up_to(manager, known[3])

    planned = plan(manager, policy())
    expire(manager, policy())

    assert f"2 snapshots more are kept for incremental readers ('{READER}')" in planned.summary
    assert "max_cursor_age (30 days)" in planned.summary
    assert snapshots(manager) == known[3:]
    assert len(manager.scan_changes(ORDERS, known[3]).snapshots) == 2


def test_past_its_age_a_reader_holds_nothing_back(manager: IcebergTableManager) -> None:
    known = written(manager, 4)
    read_up_to(manager, known[1])

    expire(manager, policy(max_cursor_age=timedelta(days=7)))

    assert snapshots(manager) == known[-1:]


def test_a_reader_can_be_overridden(manager: IcebergTableManager) -> None:
    known = written(manager, 4)
    read_up_to(manager, known[1])

    expire(manager, policy(overrides=["reader_cursors"]))

    assert snapshots(manager) == known[-1:]


def test_a_reader_of_an_earlier_table_of_the_same_name_holds_nothing_back(manager: IcebergTableManager) -> None:
    known = written(manager, 4)
    read_up_to(manager, known[1], uuid="00000000-0000-0000-0000-000000000000")

    expire(manager, policy())

    assert snapshots(manager) == known[-1:]


def test_a_reader_at_a_rolled_back_snapshot_keeps_the_way_back(manager: IcebergTableManager) -> None:
    known = written(manager, 4)
    read_up_to(manager, known[3])
    manager.rollback_to_snapshot(ORDERS, known[1])
    manager.overwrite(ORDERS, rows_of(9, days=1))

    expire(manager, policy())

    assert set(known[1:]) <= set(snapshots(manager))
    assert [info.snapshot_id for info in manager.scan_changes(ORDERS, known[3]).snapshots[:2]] == [known[3], known[2]]


def test_the_cursor_of_a_table_survives_its_own_expiry(manager: IcebergTableManager) -> None:
    known = written(manager, 2)
    read_up_to(manager, known[0])
    read_up_to(manager, known[1])
    position = snapshots(manager, READER)[-1]
    for _ in range(3):
        manager.append(READER, pa.table({"n": [1]}))

    TableMaintenance(manager, clock=lambda: later(8 * DAY)).execute(EXPIRY, READER, EAGER)

    assert position in snapshots(manager, READER)
    assert len(snapshots(manager, READER)) == 2
