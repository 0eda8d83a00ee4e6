"""Inputs that read what changed since their asset last ran, exactly once."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster import (
    AssetIn,
    AssetOut,
    AssetsDefinition,
    AssetSpec,
    DagsterInstance,
    DailyPartitionsDefinition,
    Output,
    RetryRequested,
    asset,
    multi_asset,
)
from support.change_history import FIRST_DAY, TABLE, create_orders, expire_all_but_the_newest, head, orders, read
from support.io_results import shown
from support.place import Place
from support.reading_io import READING_IO, reading
from support.warehouse import ArrowWarehouse, Warehouse

from floe_dagster_iceberg import AuditedTable, audited_asset
from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import Cursor
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.manager.changes import TableChanges

CURSOR = f"floe.cursor.{TABLE}"
FULL_REFRESH = {"iceberg/full_refresh": "true"}


@asset(key="orders")
def source() -> None:
    """Written by the table manager."""


def target(
    warehouse: Warehouse,
    name: str = "copy",
    *,
    changes: str = "appends",
    settings: dict[str, Any] | None = None,
    check: Callable[[], None] = lambda: None,
    **asset_settings: Any,
) -> AssetsDefinition:
    """An asset that stores the changes of the source as they come."""

    @asset(
        name=name,
        ins={"orders": AssetIn(metadata=iceberg_settings(changes=changes, **(settings or {})))},
        metadata=asset_settings,
    )
    def copy(orders: warehouse.frame_type) -> Any:
        check()
        return orders

    return copy


def run(warehouse: Warehouse, *assets: AssetsDefinition, **options: Any) -> Any:
    return warehouse.run([source, *assets], selection=list(assets), **options)


def cursors(warehouse: Warehouse, name: str = "copy") -> list[int | None]:
    """How far each snapshot of a target has read the source, oldest first."""
    texts = [
        snapshot.summary.additional_properties.get(CURSOR) for snapshot in warehouse.table(name).metadata.snapshots
    ]
    return [None if text is None else Cursor.parse(text).snapshot_id for text in texts]


def ids(warehouse: Warehouse, name: str = "copy") -> list[int]:
    return sorted(warehouse.manager.scan(f"public.{name}")["id"].to_pylist())


def error_of(result: Any) -> str:
    events = [event for event in result.all_node_events if event.is_step_failure]
    return str(events[0].step_failure_data.error)


@pytest.mark.lakes
def test_each_run_reads_what_came_since_the_last_one_and_commits_how_far_it_read(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    copy, positions = target(warehouse), []
    for number in (1, 2, 3):
        warehouse.manager.append(TABLE, orders((number, number, 10)))
        positions.append(head(warehouse))
        result = run(warehouse, copy)

    assert ids(warehouse) == [1, 2, 3]
    assert cursors(warehouse) == positions
    uuid = str(warehouse.table(TABLE).metadata.table_uuid)
    assert warehouse.table("copy").current_snapshot().summary.additional_properties[CURSOR] == f"{uuid}/{positions[2]}"
    assert shown(result, "copy")["iceberg/changes"] == {
        TABLE: {"since": str(positions[1]), "until": str(positions[2]), "behind": 0}
    }


def test_a_run_without_changes_adds_nothing(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    copy = target(warehouse)

    for _ in range(2):
        run(warehouse, copy)

    assert ids(warehouse) == [1]


@pytest.mark.lakes
def test_a_failed_run_moves_nothing_and_its_retry_reads_the_same_range(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    run(warehouse, target(warehouse))
    warehouse.manager.append(TABLE, orders((2, 0, 10)))
    attempts = [0]

    def fail_once() -> None:
        attempts[0] += 1
        if attempts[0] == 1:
            # The second attempt could read more.
            warehouse.manager.append(TABLE, orders((3, 0, 10)))
            assert ids(warehouse) == [1]
            raise RetryRequested(max_retries=1)

    run(warehouse, target(warehouse, check=fail_once))

    assert attempts == [2]
    assert ids(warehouse) == [1, 2]
    run(warehouse, target(warehouse))
    assert ids(warehouse) == [1, 2, 3]


def test_a_rollback_of_the_target_moves_its_cursor_back(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    copy = target(warehouse)
    for number in (1, 2):
        warehouse.manager.append(TABLE, orders((number, 0, 10)))
        run(warehouse, copy)
    first = warehouse.table("copy").metadata.snapshots[0].snapshot_id
    warehouse.manager.rollback_to_snapshot("public.copy", first)
    assert ids(warehouse) == [1]

    run(warehouse, copy)

    assert ids(warehouse) == [1, 2]


@pytest.mark.lakes
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_of_two_runs_at_a_time_only_one_adds_what_came(warehouse: Warehouse, mode: str) -> None:
    settings = iceberg_settings(**({"upsert_keys": ["id"]} if mode == "upsert" else {"write_mode": "append"}))
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    run(warehouse, target(warehouse, **settings))
    warehouse.manager.append(TABLE, orders((2, 0, 10)))

    def let_another_run_be_faster() -> None:
        run(warehouse, target(warehouse, **settings))

    reason = refused(warehouse, target(warehouse, check=let_another_run_be_faster, **settings))

    assert f"another run has read the changes of '{TABLE}' meanwhile" in reason
    assert ids(warehouse) == [1, 2]
    assert len(cursors(warehouse)) == 2, "no snapshot of the run that failed is left"
    assert set(warehouse.table("copy").metadata.refs) == {"main"}
    warehouse.manager.append(TABLE, orders((3, 0, 10)))
    run(warehouse, target(warehouse, **settings))
    assert ids(warehouse) == [1, 2, 3]


def test_a_retry_after_another_run_goes_on_where_that_stopped(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    run(warehouse, target(warehouse))
    warehouse.manager.append(TABLE, orders((2, 0, 10)))
    attempts = [0]

    def fail_once_and_let_another_run_go_further() -> None:
        attempts[0] += 1
        if attempts[0] == 1:
            warehouse.manager.append(TABLE, orders((3, 0, 10)))
            run(warehouse, target(warehouse))
            raise RetryRequested(max_retries=1)

    run(warehouse, target(warehouse, check=fail_once_and_let_another_run_go_further))

    assert attempts == [2]
    assert ids(warehouse) == [1, 2, 3]


def test_two_targets_of_one_source_are_independent(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    early, late = target(warehouse, "early"), target(warehouse, "late")
    for number in (1, 2, 3):
        warehouse.manager.append(TABLE, orders((number, 0, 10)))
        run(warehouse, early)
    run(warehouse, late)

    assert ids(warehouse, "early") == ids(warehouse, "late") == [1, 2, 3]
    assert len(warehouse.table("late").metadata.snapshots) == 1


def test_a_full_refresh_reads_everything_and_replaces(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    copy = target(warehouse)
    run(warehouse, copy)
    warehouse.manager.overwrite(TABLE, orders((2, 0, 20), (3, 0, 30)), overwrite_filter="day = '2024-01-01'")

    assert "not only appended" in refused(warehouse, copy)
    assert ids(warehouse) == [1]
    run(warehouse, copy, tags=FULL_REFRESH)

    assert ids(warehouse) == [2, 3]
    warehouse.manager.append(TABLE, orders((4, 0, 40)))
    run(warehouse, copy)
    assert ids(warehouse) == [2, 3, 4]


def test_a_full_refresh_of_a_merge_deletes_and_orders_as_every_run_does(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 0, 20)))
    rules = iceberg_settings(upsert_keys="id", delete_when="amount < 0", order_by="amount", update_columns="amount")
    copy = target(warehouse, **rules)
    run(warehouse, copy)
    changed = orders((2, 0, 20), (2, 0, 25), (3, 0, 30), (4, 0, -1))
    warehouse.manager.overwrite(TABLE, changed, overwrite_filter="day = '2024-01-01'")

    run(warehouse, copy, tags=FULL_REFRESH)

    assert sorted(warehouse.rows("copy", "id", "amount")) == [(2, 25), (3, 30)]


def test_a_limit_leaves_the_rest_to_the_next_run(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    copy = target(warehouse, settings={"changes_limit": 2})
    warehouse.manager.append(TABLE, orders((0, 0, 10)))
    run(warehouse, copy)
    for number in range(1, 6):
        warehouse.manager.append(TABLE, orders((number, 0, 10)))

    behind = [shown(run(warehouse, copy), "copy")["iceberg/changes_behind"] for _ in range(3)]

    assert behind == [3, 1, 0]
    assert ids(warehouse) == [0, 1, 2, 3, 4, 5]


def test_a_changelog_and_changed_partitions_come_as_frames(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 1, 20)))
    log = target(warehouse, "log", changes="changelog")
    days = target(warehouse, "days", changes="partitions", **iceberg_settings(upsert_keys=["id"]))
    run(warehouse, log, days)
    warehouse.manager.upsert(TABLE, orders((2, 1, 21), (3, 1, 30)), ["id"])
    run(warehouse, log, days)

    assert warehouse.rows("log", "id", "amount", "_change_type") == [
        (1, 10, "INSERT"),
        (2, 20, "DELETE"),
        (2, 20, "INSERT"),
        (2, 21, "INSERT"),
        (3, 30, "INSERT"),
    ]
    assert warehouse.rows("days", "id", "amount") == [(1, 10), (2, 21), (3, 30)]


def test_a_source_that_was_created_again_is_noticed(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    copy = target(warehouse)
    run(warehouse, copy)
    warehouse.iceberg.catalog.drop_table(TABLE)
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((2, 0, 10)))

    assert "dropped and created again" in refused(warehouse, copy)
    assert ids(warehouse) == [1]


@pytest.mark.lakes
def test_outputs_of_a_multi_asset_read_the_same_range_after_a_crash_between_them(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    crashes = iter([False, True, False, False])

    @multi_asset(
        outs={name: AssetOut(is_required=False) for name in ("first", "second")},
        ins={"orders": AssetIn(metadata=iceberg_settings(changes="appends"))},
    )
    def both(orders: warehouse.frame_type) -> Iterator[Any]:
        yield Output(orders, "first")
        if next(crashes):
            warehouse.manager.append(TABLE, one_order(3))
            raise RetryRequested(max_retries=1)
        yield Output(orders, "second")

    run(warehouse, both)
    warehouse.manager.append(TABLE, one_order(2))
    run(warehouse, both)

    assert ids(warehouse, "first") == ids(warehouse, "second") == [1, 2]
    run(warehouse, both)
    assert ids(warehouse, "first") == ids(warehouse, "second") == [1, 2, 3]


@pytest.mark.parametrize("fate", ["passes", "is retried", "is overtaken"])
def test_an_audited_asset_publishes_rows_and_position_in_one_commit(warehouse: Warehouse, fate: str) -> None:
    create_orders(warehouse)
    checks: list[int] = []

    def follower(fate: str) -> AssetsDefinition:
        def is_fine(audited: AuditedTable) -> bool:
            checks.append(audited.row_count()[0])
            if fate != "passes" and len(checks) % 2 == 0:
                # The next attempt could read more.
                warehouse.manager.append(TABLE, one_order(3))
                if fate == "is retried":
                    raise RetryRequested(max_retries=1)
                run(warehouse, follower("passes"))
            return True

        @audited_asset(
            name="copy",
            ins={"orders": AssetIn(metadata=iceberg_settings(changes="appends"))},
            metadata=iceberg_settings(write_mode="append"),
            checks=[is_fine],
        )
        def copy(orders: warehouse.frame_type) -> Any:
            return orders

        return copy

    for number, each in ((1, "passes"), (2, fate)):
        warehouse.manager.append(TABLE, one_order(number))
        result = run(warehouse, follower(each), raise_on_error=each != "is overtaken")

    main = warehouse.table("copy").metadata
    if fate == "is overtaken":
        assert "another run has read the changes" in error_of(result)
    assert ids(warehouse) == ([1, 2, 3] if fate == "is overtaken" else [1, 2])
    assert set(main.refs) == {"main"}
    run(warehouse, follower("passes"))
    assert ids(warehouse) == [1, 2] + ([] if fate == "passes" else [3])
    assert cursors(warehouse)[-1] == head(warehouse)


def test_outputs_at_different_positions_are_refused_until_a_full_refresh(arrow_warehouse: ArrowWarehouse) -> None:
    warehouse = arrow_warehouse
    create_orders(warehouse)

    @multi_asset(
        outs={name: AssetOut() for name in ("first", "second")},
        ins={"orders": AssetIn(metadata=iceberg_settings(changes="appends"))},
    )
    def both(orders: pa.Table) -> tuple[pa.Table, pa.Table]:
        return orders, orders

    for number in (1, 2):
        warehouse.manager.append(TABLE, one_order(number))
        run(warehouse, both)
    beginning = warehouse.table("second").metadata.snapshots[0].snapshot_id
    warehouse.manager.rollback_to_snapshot("public.second", beginning)

    assert "have read 'public.orders' up to different snapshots" in refused(warehouse, both)
    run(warehouse, both, tags=FULL_REFRESH)
    assert ids(warehouse, "first") == ids(warehouse, "second") == [1, 2]


def one_order(number: int) -> Any:
    return orders((number, 0, 10))


def refused(warehouse: Warehouse, *assets: AssetsDefinition, **options: Any) -> str:
    """What the failure of a run says."""
    result = run(warehouse, *assets, raise_on_error=False, **options)
    return error_of(result)


def test_an_asset_that_is_stored_elsewhere_has_its_position_in_its_materialization(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    files: list[list[int]] = []
    breaks = iter([False, True, False, False])

    @asset(ins={"orders": AssetIn(metadata=iceberg_settings(changes="appends"))})
    def export(orders: warehouse.frame_type) -> None:
        found = orders if isinstance(orders, pa.Table) else orders.toArrow()
        files.append(found["id"].to_pylist())
        if next(breaks):
            raise RuntimeError("after the file, before Dagster knows of it")

    # Other tests materialize an asset of that name, too.
    with DagsterInstance.ephemeral() as instance:
        for number in (1, 2):
            warehouse.manager.append(TABLE, one_order(number))
            run(warehouse, export, instance=instance, raise_on_error=False)
        run(warehouse, export, instance=instance)
        warehouse.manager.append(TABLE, one_order(3))
        result = run(warehouse, export, instance=instance)

    assert files == [[1], [2], [2], [3]], "at least once"
    uuid = str(warehouse.table(TABLE).metadata.table_uuid)
    assert shown(result, "export")["iceberg/cursors"] == {TABLE: f"{uuid}/{head(warehouse)}"}
    assert shown(result, "export")["iceberg/changes_behind"] == 0


def test_what_cannot_be_read_incrementally_is_refused_with_a_reason(arrow_warehouse: ArrowWarehouse) -> None:
    warehouse = arrow_warehouse
    create_orders(warehouse)
    assert "has no snapshot yet" in refused(warehouse, target(warehouse))
    warehouse.manager.append(TABLE, one_order(1))

    gone = target(warehouse, settings={"branch": "gone"})
    assert "has no branch or tag 'gone'" in refused(warehouse, gone)

    @asset(
        ins={"orders": AssetIn(metadata=iceberg_settings(changes="appends"))},
        partitions_def=DailyPartitionsDefinition("2024-01-01"),
        metadata={"partition_expr": "day"},
    )
    def daily(orders: pa.Table) -> pa.Table:
        return orders

    assert "has partitions" in refused(warehouse, daily, partition_key="2024-01-01")
    assert not any(warehouse.exists(name) for name in ("copy", "daily"))
    with pytest.raises(ValidationError, match="appends"):
        iceberg_settings(changes="everything")
    with pytest.raises(ValidationError, match="iceberg/changes"):
        iceberg_settings(changes_limit=3)
    with pytest.raises(ValidationError, match="leave out 'iceberg/tag'"):
        iceberg_settings(changes="appends", tag="monday")


def test_an_expired_cursor_is_refused_and_nothing_is_written(arrow_warehouse: ArrowWarehouse) -> None:
    warehouse, copy = arrow_warehouse, target(arrow_warehouse)
    create_orders(warehouse)
    warehouse.manager.append(TABLE, one_order(1))
    run(warehouse, copy)
    for number in (2, 3):
        warehouse.manager.append(TABLE, one_order(number))
    expire_all_but_the_newest(warehouse)

    assert "are lost, because snapshots after it have expired" in refused(warehouse, copy)
    assert ids(warehouse) == [1]
    run(warehouse, copy, tags=FULL_REFRESH)
    assert ids(warehouse) == [1, 2, 3]


def test_an_input_may_ask_for_the_changes_themselves(arrow_warehouse: ArrowWarehouse) -> None:
    warehouse, seen = arrow_warehouse, []
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 1, 20)))

    @asset(ins={"orders": AssetIn(metadata=iceberg_settings(changes="partitions"))})
    def days(orders: TableChanges) -> pa.Table:
        seen.append(orders.partitions)
        return orders.to_arrow()

    run(warehouse, days)
    warehouse.manager.append(TABLE, orders((3, 1, 30)))
    run(warehouse, days)

    assert seen == [[], [{"day_day": "2024-01-02"}]]
    assert ids(warehouse, "days") == [1, 2, 2, 3]


@pytest.mark.parametrize("changes", ["appends", "changelog", "partitions"])
def test_rows_of_a_partition_that_is_not_over_yet_are_not_lost(warehouse: Warehouse, changes: str) -> None:
    create_orders(warehouse)
    last = FIRST_DAY + timedelta(days=1)
    # Dagster has no key for days after the last one, as for a day that is not over yet.
    days = DailyPartitionsDefinition("2024-01-01", end_date=last.isoformat())
    upstream = AssetSpec("orders", partitions_def=days, metadata={"partition_expr": "day"})
    copy = target(warehouse, changes=changes, **iceberg_settings(write_mode="append"))
    warehouse.manager.append(TABLE, one_order(1))
    for number in (2, 3):
        warehouse.run([AssetsDefinition(specs=[upstream]), copy], selection=[copy])
        warehouse.manager.append(TABLE, orders((number, number, 10)))
    warehouse.manager.append(TABLE, pa.table({"id": [4], "day": [None], "amount": [10]}, schema=orders().schema))
    warehouse.run([AssetsDefinition(specs=[upstream]), copy], selection=[copy])

    assert ids(warehouse) == [1, 2, 3, 4]


@pytest.mark.parametrize("named", ["date", "day"], ids=["as it is now", "as it was"])
def test_days_whose_column_was_renamed_are_read_whole(warehouse: Warehouse, named: str) -> None:
    create_orders(warehouse)
    days = DailyPartitionsDefinition("2024-01-01", end_date="2024-01-10")
    seen: list[Any] = []

    @asset(ins={"orders": AssetIn(metadata=iceberg_settings(changes="partitions"))})
    def copy(orders: TableChanges) -> Any:
        rows = read(warehouse, orders)
        assert rows.column_names == ["id", "date", "amount"]
        seen.append((list(orders.partition_keys), sorted(rows["id"].to_pylist())))
        return warehouse.frame(rows)

    def follow() -> None:
        upstream = AssetSpec("orders", partitions_def=days, metadata={"partition_expr": named})
        warehouse.run([AssetsDefinition(specs=[upstream]), copy], selection=[copy])

    def rename(old: str, new: str) -> None:
        with warehouse.table(TABLE).update_schema() as update:
            update.rename_column(old, new)

    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 1, 20)))
    rename("day", "date")
    follow()
    rename("date", "day")
    warehouse.manager.append(TABLE, orders((3, 1, 30)))
    rename("day", "date")
    follow()
    warehouse.manager.append(TABLE, orders((4, 2, 40)).rename_columns(["id", "date", "amount"]))
    follow()

    assert seen == [([], [1, 2]), (["2024-01-02"], [2, 3]), (["2024-01-03"], [4])]


@pytest.mark.parametrize(
    "kind", [pa.Table, pa.RecordBatchReader, pd.DataFrame, pl.DataFrame, pl.LazyFrame], ids=lambda kind: kind.__name__
)
def test_changes_come_as_the_annotated_type(arrow_warehouse: ArrowWarehouse, kind: type) -> None:
    warehouse, seen = arrow_warehouse, []
    create_orders(warehouse)

    @asset(ins={"orders": AssetIn(metadata=iceberg_settings(changes="changelog", columns=["id"]))})
    def copy(orders: kind) -> Any:  # type: ignore[valid-type]
        seen.append(type(orders))
        return orders

    for number in (1, 2):
        warehouse.manager.append(TABLE, one_order(number))
        run(warehouse, copy)

    assert [issubclass(each, kind) for each in seen] == [True, True]
    assert warehouse.rows("copy", "id", "_change_type") == [(1, "INSERT"), (2, "INSERT")]


def test_a_limit_in_bytes_leaves_the_rest_to_the_next_run(arrow_warehouse: ArrowWarehouse) -> None:
    warehouse = arrow_warehouse
    create_orders(warehouse)
    warehouse.manager.append(TABLE, one_order(0))
    run(warehouse, target(warehouse))
    for number in range(1, 6):
        snapshot = warehouse.manager.append(TABLE, one_order(number))
    size = int(snapshot.summary["added-files-size"])
    copy = target(warehouse, settings={"changes_limit": f"{2 * size + size // 2}B"})

    behind = [shown(run(warehouse, copy), "copy")["iceberg/changes_behind"] for _ in range(3)]

    assert behind == [3, 1, 0]
    assert ids(warehouse) == [0, 1, 2, 3, 4, 5]


def test_one_day_of_many_is_read_by_opening_only_its_files(place: Place) -> None:
    manager = IcebergTableManager(place.connect(**READING_IO))
    manager.create_namespace("public")
    warehouse = SimpleNamespace(manager=manager, iceberg=manager)
    create_orders(warehouse)
    manager.append(TABLE, orders(*((number, number, 10) for number in range(2000))))
    since = manager.load_table(TABLE).metadata.current_snapshot_id
    manager.append(TABLE, orders((1, 2001, 10)))
    table = manager.load_table(TABLE)

    with reading() as locations:
        rows = manager.scan_changes(table, since, mode="appends").to_arrow()
        opened = list(locations)

    assert rows.num_rows == 1
    new_files = {task.file.file_path for task in table.scan("day = '2029-06-24'").plan_files()}
    assert len(new_files) == 1
    data_files = [path for path in opened if path.endswith(".parquet")]
    assert set(data_files) == new_files
    assert len(opened) - len(data_files) == 2, "a manifest list and a manifest"
