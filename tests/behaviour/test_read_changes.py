"""Changes that an asset reads itself, without an IO manager for its input; and Dagster partitions that changed."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetsDefinition,
    AssetSpec,
    DagsterInstance,
    DailyPartitionsDefinition,
    RetryRequested,
    asset,
)
from support.change_history import TABLE, create_orders, head, orders
from support.io_results import shown
from support.warehouse import ArrowWarehouse, Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.models import Cursor
from floe_dagster_iceberg.table.manager.changes import TableChanges

SOURCE = AssetSpec("orders", metadata={"schema": "public", "table": "orders"})
FULL_REFRESH = {"iceberg/full_refresh": "true"}
CURSOR = f"floe.cursor.{TABLE}"


def run(warehouse: Warehouse, reader: AssetsDefinition, **options: Any) -> Any:
    return warehouse.run([AssetsDefinition(specs=[SOURCE]), reader], selection=[reader], **options)


def own_cursor(warehouse: Warehouse, table: str) -> int:
    snapshot = warehouse.table(table).current_snapshot()
    return Cursor.parse(snapshot.summary.additional_properties[CURSOR]).snapshot_id


def ids(warehouse: Warehouse, table: str) -> list[int]:
    return sorted(warehouse.manager.scan(f"public.{table}")["id"].to_pylist())


def test_an_asset_that_is_stored_by_the_io_manager_commits_how_far_it_read(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    attempts: list[int] = []

    @asset(deps=[SOURCE])
    def copy(context: AssetExecutionContext) -> Any:
        changes = warehouse.iceberg.read_changes(context, "orders", changes="appends")
        attempts.append(changes.cursor.snapshot_id)
        if len(attempts) == 2:
            warehouse.manager.append(TABLE, orders((3, 0, 10)))
            raise RetryRequested(max_retries=1)
        return warehouse.frame(changes.to_arrow())

    for number in (1, 2):
        warehouse.manager.append(TABLE, orders((number, 0, 10)))
        run(warehouse, copy)

    assert ids(warehouse, "copy") == [1, 2], "the retry has read what the first attempt did"
    assert attempts[1] == attempts[2] == own_cursor(warehouse, "copy") != head(warehouse)
    run(warehouse, copy)
    assert ids(warehouse, "copy") == [1, 2, 3]
    run(warehouse, copy, tags=FULL_REFRESH)
    assert ids(warehouse, "copy") == [1, 2, 3]


def write_target(warehouse: Warehouse, changes: TableChanges) -> None:
    manager, rows = warehouse.manager, changes.to_arrow()
    write = manager.overwrite if changes.reads_everything else manager.append
    write("public.target", rows, snapshot_properties=changes.snapshot_properties)


@pytest.mark.parametrize("crash", ["before", "after"])
def test_an_asset_that_writes_a_table_itself_has_its_position_there(
    arrow_warehouse: ArrowWarehouse, crash: str
) -> None:
    warehouse = arrow_warehouse
    create_orders(warehouse)
    warehouse.iceberg.catalog.create_table("public.target", orders((1, 0, 1)).schema)
    runs = iter(range(10))

    @asset(deps=[SOURCE])
    def export(context: AssetExecutionContext) -> None:
        fails = next(runs) == 1
        changes = warehouse.iceberg.read_changes(context, "orders", changes="appends", target="public.target")
        if fails and crash == "before":
            raise RetryRequested(max_retries=1)
        write_target(warehouse, changes)
        if fails:
            raise RetryRequested(max_retries=1)

    for number in (1, 2, 3):
        warehouse.manager.append(TABLE, orders((number, 0, 10)))
        result = run(warehouse, export)

    assert ids(warehouse, "target") == [1, 2, 3]
    assert own_cursor(warehouse, "target") == head(warehouse)
    assert "iceberg/cursors" not in shown(result, "export")
    assert shown(result, "export")["iceberg/changes_behind"] == 0
    run(warehouse, export, tags=FULL_REFRESH)
    assert ids(warehouse, "target") == [1, 2, 3]


def test_an_asset_without_a_table_has_its_position_in_its_materialization(arrow_warehouse: ArrowWarehouse) -> None:
    warehouse, seen = arrow_warehouse, []
    create_orders(warehouse)

    @asset(deps=[SOURCE])
    def mail(context: AssetExecutionContext) -> None:
        changes = warehouse.iceberg.read_changes(context, "orders", changes="appends", changes_limit=1)
        seen.append(changes.to_arrow()["id"].to_pylist())

    with DagsterInstance.ephemeral() as instance:
        for number in (1, 2, 3):
            warehouse.manager.append(TABLE, orders((number, 0, 10)))
            if number != 2:
                run(warehouse, mail, instance=instance)
        run(warehouse, mail, instance=instance)

    assert seen == [[1], [2], [3]]


def test_what_cannot_be_read_is_refused_with_a_reason(arrow_warehouse: ArrowWarehouse) -> None:
    warehouse = arrow_warehouse
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))

    def refused(key: str, **settings: Any) -> str:
        @asset(deps=[SOURCE])
        def copy(context: AssetExecutionContext) -> Any:
            return warehouse.iceberg.read_changes(context, key, **settings).to_arrow()

        result = run(warehouse, copy, raise_on_error=False)
        (failure,) = [event for event in result.all_node_events if event.is_step_failure]
        return str(failure.step_failure_data)

    assert "asset 'copy' reads changes of asset 'elsewhere', but does not depend on it" in refused(
        "elsewhere", changes="appends"
    )
    assert "appends" in refused("orders", changes="everything")
    assert "has no branch or tag 'gone'" in refused("orders", changes="appends", branch="gone")
    assert "leave out 'iceberg/tag'" in refused("orders", changes="appends", tag="monday")
    assert not warehouse.exists("copy")


def test_days_of_a_time_zone_are_read_whole_although_iceberg_has_days_of_utc(warehouse: Warehouse) -> None:
    days = DailyPartitionsDefinition("2024-03-01", end_date="2024-03-10", timezone="America/New_York")
    amounts = {"2024-03-01": 1, "2024-03-02": 2, "2024-03-03": 3}
    seen: list[list[str]] = []

    @asset(partitions_def=days, metadata={"partition_expr": "at"})
    def events(context: AssetExecutionContext) -> Any:
        start = context.partition_time_window.start.astimezone(UTC)
        # In the afternoon and late in the evening: two days of UTC.
        times = [start.replace(hour=20), start.replace(hour=3, day=start.day + 1)]
        columns = {"at": pa.array(times, pa.timestamp("us", "UTC")), "amount": [amounts[context.partition_key]] * 2}
        return warehouse.frame(pa.table(columns))

    @asset(
        ins={"events": AssetIn(metadata=iceberg_settings(changes="partitions"))},
        metadata=iceberg_settings(upsert_keys=["day"]),
    )
    def revenue(events: TableChanges) -> Any:
        seen.append(list(events.partition_keys))
        found: dict[str, int] = {}
        for row in events.to_arrow().to_pylist():
            key = next(key for key in amounts if days.time_window_for_partition_key(key).start <= row["at"] < _end(key))
            found[key] = found.get(key, 0) + row["amount"]
        return warehouse.frame({"day": list(found), "revenue": list(found.values())})

    def _end(key: str) -> datetime:
        return days.time_window_for_partition_key(key).end

    for key in amounts:
        warehouse.run(events, key)
    warehouse.run([events, revenue], selection=[revenue])
    amounts["2024-03-02"] = 20
    warehouse.run(events, "2024-03-02")
    warehouse.run([events, revenue], selection=[revenue])

    assert seen == [[], ["2024-03-02"]]
    assert warehouse.rows("revenue", "day", "revenue") == [("2024-03-01", 2), ("2024-03-02", 40), ("2024-03-03", 6)]
