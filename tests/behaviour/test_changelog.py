"""What changed between two snapshots, on both engines."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from dagster import DagsterInstance
from pyiceberg.types import LongType, NestedField, StringType, StructType
from support.change_history import (
    FIRST_DAY,
    TABLE,
    Follower,
    RandomHistory,
    create_orders,
    expire_all_but_the_newest,
    head,
    orders,
    read,
    rows_of,
)
from support.delete_files import delete_by_equality, delete_positions
from support.place import Place
from support.warehouse import ArrowWarehouse, SparkWarehouse, Warehouse

from floe_dagster_iceberg.errors import EngineCapabilityError, ScanError, SnapshotNotFoundError, ValidationError

DAY_0 = "day = '2024-01-01'"


def changed(warehouse: Warehouse, since: int | None, until: int | None = None, **options: Any) -> list[tuple[Any, ...]]:
    """Changes as (ordinal, type, id, amount), sorted."""
    rows = read(warehouse, warehouse.manager.scan_changes(TABLE, since, until, **options)).to_pylist()
    return sorted((row["_change_ordinal"], row["_change_type"], row["id"], row["amount"]) for row in rows)


def test_a_replaced_day_yields_only_the_rows_that_differ(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 0, 20), (3, 1, 30)))
    since = head(warehouse)

    warehouse.manager.overwrite(TABLE, orders((1, 0, 10), (2, 0, 21), (4, 0, 40)), overwrite_filter=DAY_0)
    changes = warehouse.manager.scan_changes(TABLE, since)
    rows = read(warehouse, changes)

    assert rows.column_names == ["id", "day", "amount", "_change_type", "_change_ordinal", "_commit_snapshot_id"]
    assert rows.schema.types[-3:] == [pa.string(), pa.int32(), pa.int64()]
    assert set(rows["_commit_snapshot_id"].to_pylist()) == {head(warehouse)}
    assert changed(warehouse, since) == [(0, "DELETE", 2, 20), (0, "INSERT", 2, 21), (0, "INSERT", 4, 40)]
    assert changes.partitions == [{"day_day": "2024-01-01"}]


def test_updates_have_images_by_key(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 0, 20)))
    since = head(warehouse)

    # The row moves to another day, so its images are in different partitions.
    warehouse.manager.upsert(TABLE, orders((2, 1, 21), (3, 1, 30)), ["id"])

    assert changed(warehouse, since, identifier_columns=["id"]) == [
        (0, "INSERT", 3, 30),
        (0, "UPDATE_AFTER", 2, 21),
        (0, "UPDATE_BEFORE", 2, 20),
    ]


def test_net_changes_leave_out_what_came_and_went(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 0, 20)))
    since = head(warehouse)

    warehouse.manager.append(TABLE, orders((3, 0, 30), (4, 1, 40)))
    warehouse.manager.delete(TABLE, "id = 3")
    warehouse.manager.overwrite(TABLE, orders((1, 0, 11)), overwrite_filter=DAY_0)
    warehouse.manager.overwrite(TABLE, orders((1, 0, 10)), overwrite_filter=DAY_0)

    found = sorted(change[1:] for change in changed(warehouse, since, net_changes=True))
    assert found == [("DELETE", 2, 20), ("INSERT", 4, 40)]


def test_rows_deleted_by_position_are_deletes(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 0, 20), (3, 0, 30)))
    (task,) = warehouse.table(TABLE).scan().plan_files()
    delete_positions(warehouse.table(TABLE), task.file, 0)
    since = head(warehouse)

    delete_positions(warehouse.table(TABLE), task.file, 1)
    warehouse.manager.append(TABLE, orders((4, 0, 40)))
    warehouse.manager.overwrite(TABLE, orders((3, 0, 31)), overwrite_filter=DAY_0)

    assert changed(warehouse, since) == [
        (0, "DELETE", 2, 20),
        (1, "INSERT", 4, 40),
        (2, "DELETE", 3, 30),
        (2, "DELETE", 4, 40),
        (2, "INSERT", 3, 31),
    ]


def test_a_rolled_back_table_yields_the_inverse(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    first = head(warehouse)
    warehouse.manager.append(TABLE, orders((2, 0, 20)))
    warehouse.manager.delete(TABLE, "id = 1")
    since = head(warehouse)

    warehouse.manager.rollback_to_snapshot(TABLE, first)
    warehouse.manager.append(TABLE, orders((3, 0, 30)))

    assert changed(warehouse, since) == [
        (0, "INSERT", 1, 10),
        (1, "DELETE", 2, 20),
        (2, "INSERT", 3, 30),
    ]
    with pytest.raises(ValidationError, match="rolled back"):
        warehouse.manager.scan_changes(TABLE, since, mode="appends")


def test_appends_are_the_rows_of_added_files(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    since = head(warehouse)
    for number in range(2, 6):
        warehouse.manager.append(TABLE, orders((number, 0, 10)))
    # Nothing is replaced by it, so it is an append by another name.
    warehouse.manager.overwrite(TABLE, orders((9, 1, 90)), overwrite_filter="day = '2024-01-02'")

    rows = read(warehouse, warehouse.manager.scan_changes(TABLE, since, mode="appends"))

    assert rows.column_names == ["id", "day", "amount"]
    assert sorted(rows["id"].to_pylist()) == [2, 3, 4, 5, 9]


def test_appends_refuse_a_range_with_other_changes_and_name_the_ways_out(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    since = head(warehouse)
    warehouse.manager.overwrite(TABLE, orders((1, 0, 11)), overwrite_filter=DAY_0)

    with pytest.raises(ValidationError) as refused:
        warehouse.manager.scan_changes(TABLE, since, mode="appends")

    for part in (str(head(warehouse)), "'changelog'", "'partitions'", "'iceberg/full_refresh'"):
        assert part in str(refused.value)


def test_changed_partitions_are_read_whole(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 1, 20), (3, 1, 30), (4, 2, 40)))
    since = head(warehouse)
    warehouse.manager.upsert(TABLE, orders((3, 1, 31)), ["id"])

    changes = warehouse.manager.scan_changes(TABLE, since, mode="partitions")

    assert changes.partitions == [{"day_day": "2024-01-02"}]
    assert sorted(read(warehouse, changes)["id"].to_pylist()) == [2, 3]


@pytest.mark.parametrize("transform", ["day", "identity"])
def test_changed_partitions_have_the_names_of_now_although_their_snapshots_are_older(
    warehouse: Warehouse, transform: str
) -> None:
    create_orders(warehouse, partitioned=False)
    with warehouse.table(TABLE).update_spec() as spec:
        spec.add_field("day", transform, "of_day")
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 1, 20)))
    since = head(warehouse)
    warehouse.manager.append(TABLE, orders((3, 1, 30)))
    with warehouse.table(TABLE).update_schema() as update:
        update.rename_column("day", "date")
    with warehouse.table(TABLE).update_schema() as update:
        # It has the name of an old one.
        update.add_column("day", StringType())
    with warehouse.table(TABLE).update_spec() as spec:
        spec.rename_field("of_day", "of_date")

    def found(until: int | None = None, **options: Any) -> tuple[list[Any], list[Any]]:
        changes = warehouse.manager.scan_changes(TABLE, since, until, mode="partitions", **options)
        return changes.partitions, sorted(tuple(row.values()) for row in read(warehouse, changes).to_pylist())

    second, third = FIRST_DAY + timedelta(days=1), FIRST_DAY + timedelta(days=2)
    renamed_only = [(2, second, 20, None), (3, second, 30, None)]
    before = head(warehouse)
    assert found() == ([{"of_date": "2024-01-02"}], renamed_only)
    assert found(columns=["date"], row_filter="date = '2024-01-02' and id > 2")[1] == [(second,)]
    newest = pa.table({"id": [4, 5], "date": [second, third], "amount": [40, 50], "day": ["Tuesday", "Wednesday"]})
    warehouse.manager.append(TABLE, newest.cast(warehouse.table(TABLE).schema().as_arrow()))
    both_days = [*renamed_only, (4, second, 40, "Tuesday"), (5, third, 50, "Wednesday")]
    assert found() == ([{"of_date": "2024-01-02"}, {"of_date": "2024-01-03"}], both_days)
    assert found(until=before) == ([{"of_date": "2024-01-02"}], renamed_only)


def test_columns_of_older_snapshots_are_found_by_their_ids(warehouse: Warehouse) -> None:
    create_orders(warehouse, partitioned=False)
    with warehouse.table(TABLE).update_schema() as update:
        fields = (NestedField(number, name, StringType()) for number, name in enumerate(("city", "zip")))
        update.add_column("place", StructType(*fields))
    schema = warehouse.table(TABLE).schema().as_arrow()
    rows = {"id": [1], "day": [FIRST_DAY], "amount": [10], "place": [{"city": "Bern", "zip": "3000"}]}
    warehouse.manager.append(TABLE, pa.table(rows, schema=schema))
    (task,) = warehouse.table(TABLE).scan().plan_files()
    since = head(warehouse)
    warehouse.manager.append(TABLE, pa.table({**rows, "id": [2]}, schema=schema))
    delete_positions(warehouse.table(TABLE), task.file, 0)
    with warehouse.table(TABLE).update_schema() as update:
        update.delete_column("amount")
        update.rename_column("place.city", "town").delete_column("place.zip")
    with warehouse.table(TABLE).update_schema() as update:
        # Others with the names of those that are gone.
        update.add_column("amount", LongType()).add_column(("place", "zip"), StringType())

    now = {"day": FIRST_DAY, "place": {"town": "Bern", "zip": None}, "amount": None}
    whole = read(warehouse, warehouse.manager.scan_changes(TABLE, since, mode="partitions"))
    assert whole.to_pylist() == [{"id": 2, **now}]
    earlier = warehouse.manager.scan(TABLE, snapshot_id=since, current_columns=True)
    assert earlier.to_pylist() == [{"id": 1, **now}]
    changes = read(warehouse, warehouse.manager.scan_changes(TABLE, since)).to_pylist()
    assert [(row["_change_type"], row["id"]) for row in changes] == [("INSERT", 2), ("DELETE", 1)]
    assert [{name: row[name] for name in now} for row in changes] == [now, now]


def test_a_reader_that_has_nothing_gets_every_row_as_an_insert(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 1, 20)))
    warehouse.manager.delete(TABLE, "id = 1")

    assert changed(warehouse, None) == [(0, "INSERT", 2, 20)]
    assert changed(warehouse, head(warehouse)) == []


@pytest.mark.parametrize("spec", ["day", "none"])
def test_following_the_changelog_gives_the_rows_of_the_table(warehouse: Warehouse, spec: str) -> None:
    _follow(warehouse, seed=len(spec), steps=10, partitioned=spec == "day")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 30))
def test_following_the_changelog_of_any_history_gives_the_rows_of_the_table(warehouse: Warehouse, seed: int) -> None:
    _follow(warehouse, seed=seed, steps=30, partitioned=seed % 3 > 0)


def _follow(warehouse: Warehouse, *, seed: int, steps: int, partitioned: bool) -> None:
    create_orders(warehouse, partitioned=partitioned)
    warehouse.manager.append(TABLE, orders((1, 0, 1), (1, 0, 1), (2, 1, 1)))
    history, followers = RandomHistory(warehouse, seed), [Follower(warehouse), Follower(warehouse, net_changes=True)]
    for number in range(steps):
        history.step()
        if number % 4 == 0 or number == steps - 1:
            rows = warehouse.manager.scan(TABLE)
            expected = rows_of(rows, warehouse.table(TABLE).schema().column_names)
            for follower in followers:
                follower.catch_up()
                assert follower.copy == expected, history.kinds
        if number % 12 == 4:
            expire_all_but_the_newest(warehouse)
    assert Counter(history.kinds).total() == steps


def test_expired_snapshots_are_an_error_that_says_what_is_lost(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    since = head(warehouse)
    for number in (2, 3):
        warehouse.manager.append(TABLE, orders((number, 0, 10)))
    expire_all_but_the_newest(warehouse)

    with pytest.raises(ScanError, match=f"since snapshot {since} are lost.*iceberg/full_refresh.*max_cursor_age"):
        warehouse.manager.scan_changes(TABLE, since)


@pytest.mark.parametrize("deletes", ["copy-on-write", "merge-on-read"])
def test_rows_of_every_snapshot_have_the_current_columns(warehouse: Warehouse, deletes: str) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10), (2, 0, 20)))
    since = head(warehouse)
    if deletes == "merge-on-read":
        (task,) = warehouse.table(TABLE).scan().plan_files()
        delete_positions(warehouse.table(TABLE), task.file, 0)
    else:
        warehouse.manager.delete(TABLE, "id = 1")
    warehouse.manager.append(TABLE, orders((3, 1, 30)))
    with warehouse.table(TABLE).update_schema() as update:
        update.rename_column("amount", "price")
    with warehouse.table(TABLE).update_schema() as update:
        # It has the name of an old one.
        update.add_column("amount", StringType())
        update.add_column("note", StringType())
    newest = pa.table({"id": [4], "day": [FIRST_DAY], "price": [40], "amount": ["many"], "note": ["x"]})
    warehouse.manager.append(TABLE, newest.cast(warehouse.table(TABLE).schema().as_arrow()))

    rows = read(warehouse, warehouse.manager.scan_changes(TABLE, since)).to_pylist()

    columns = ("_change_ordinal", "_change_type", "id", "price", "amount", "note")
    assert sorted(tuple(row[column] for column in columns) for row in rows) == [
        (0, "DELETE", 1, 10, None, None),
        (1, "INSERT", 3, 30, None, None),
        (2, "INSERT", 4, 40, "many", "x"),
    ]
    appended = read(warehouse, warehouse.manager.scan_changes(TABLE, rows[-1]["_commit_snapshot_id"], mode="appends"))
    assert appended.column_names == ["id", "day", "price", "amount", "note"]


def test_snapshots_that_expired_between_two_that_are_left_are_an_error(warehouse: Warehouse) -> None:
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    since = head(warehouse)
    warehouse.manager.create_tag(TABLE, "monday", since)
    for number in (2, 3, 4):
        warehouse.manager.append(TABLE, orders((number, 0, 10)))
    expire_all_but_the_newest(warehouse)
    kept = {snapshot.snapshot_id: snapshot for snapshot in warehouse.table(TABLE).metadata.snapshots}
    assert kept.keys() == {since, head(warehouse)}
    assert kept[head(warehouse)].parent_snapshot_id is None, "it looks like a first snapshot"

    with pytest.raises(ScanError, match=f"since snapshot {since} are lost"):
        warehouse.manager.scan_changes(TABLE, since)


def test_a_table_whose_contents_spark_replaced_yields_the_old_rows_as_deletes(
    place: Place, shared_instance: DagsterInstance
) -> None:
    warehouse = SparkWarehouse.open(place, shared_instance)
    create_orders(warehouse)
    warehouse.manager.append(TABLE, orders((1, 0, 10)))
    warehouse.manager.append(TABLE, orders((2, 0, 20)))
    since = head(warehouse)
    rows = "SELECT 3L AS id, DATE'2024-01-01' AS day, 30L AS amount"
    warehouse.io_manager.pyspark.spark_session.sql(f"CREATE OR REPLACE TABLE floe.{TABLE} USING iceberg AS {rows}")
    assert warehouse.table(TABLE).current_snapshot().parent_snapshot_id is None

    assert changed(warehouse, since) == [(0, "DELETE", 2, 20), (1, "DELETE", 1, 10), (2, "INSERT", 3, 30)]
    arrow = ArrowWarehouse.open(place, shared_instance)
    assert changed(arrow, since) == changed(warehouse, since)


def test_invalid_requests_say_what_is_wrong(arrow_warehouse: ArrowWarehouse) -> None:
    manager = arrow_warehouse.manager
    create_orders(arrow_warehouse)
    with pytest.raises(ValidationError, match="no snapshot yet"):
        manager.scan_changes(TABLE)
    manager.append(TABLE, orders((1, 0, 10)))
    with pytest.raises(ValidationError, match="appends, changelog, partitions"):
        manager.scan_changes(TABLE, mode="everything")
    with pytest.raises(ValidationError, match="either net changes or have update images"):
        manager.scan_changes(TABLE, net_changes=True, identifier_columns=["id"])
    with pytest.raises(ValidationError, match="net_changes is for a changelog"):
        manager.scan_changes(TABLE, mode="appends", net_changes=True)
    with pytest.raises(ValidationError, match="no column 'nowhere'"):
        manager.scan_changes(TABLE, identifier_columns=["nowhere"])
    with pytest.raises(SnapshotNotFoundError, match="gone"):
        manager.scan_changes(TABLE, ref="gone")


def test_arrow_refuses_the_changelog_of_equality_deletes(arrow_warehouse: ArrowWarehouse) -> None:
    manager = arrow_warehouse.manager
    create_orders(arrow_warehouse)
    manager.append(TABLE, orders((1, 0, 10), (2, 0, 20)))
    since = head(arrow_warehouse)
    (task,) = arrow_warehouse.table(TABLE).scan().plan_files()
    delete_by_equality(arrow_warehouse.table(TABLE), task.file, "id", 1)

    with pytest.raises(EngineCapabilityError, match="equality deletes, which only Spark can read"):
        manager.scan_changes(TABLE, since).to_arrow()
