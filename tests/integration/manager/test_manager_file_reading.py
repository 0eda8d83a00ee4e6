"""Files are read as PyIceberg reads them, by the short way where that does."""

import datetime as dt
import decimal
import uuid
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType
from support.delete_files import delete_positions
from support.lake import Lake
from support.maintenance_tables import ORDERS, make_orders
from support.maintenance_upkeep import Upkeep
from support.reading_io import READING_IO, reading
from support.table_facts import live_files

from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager

NOW = dt.datetime(2024, 2, 29, 12, 30, 15, 123_456)  # noqa: DTZ001
EVERY_TYPE = pa.table(
    {
        "id": pa.array([1, 2, None], pa.int64()),
        "small": pa.array([1, None, 3], pa.int32()),
        "flag": pa.array([True, None, False]),
        "ratio": pa.array([1.5, None, float("nan")], pa.float32()),
        "amount": pa.array([1.5, None, 2.5]),
        "price": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")], pa.decimal128(9, 2)),
        "day": pa.array([NOW.date(), None, NOW.date()]),
        "at": pa.array([NOW.time(), None, NOW.time()], pa.time64("us")),
        "ts": pa.array([NOW, None, NOW], pa.timestamp("us")),
        "tz": pa.array([NOW, None, NOW], pa.timestamp("us", "UTC")),
        "name": pa.array(["o'brien", None, "x"]),
        "data": pa.array([b"a", None, b"b"]),
        "code": pa.array([b"abc", None, b"xyz"], pa.binary(3)),
        "key": pa.ExtensionArray.from_storage(
            pa.uuid(), pa.array([uuid.UUID(int=1).bytes, None, uuid.UUID(int=3).bytes], pa.binary(16))
        ),
    }
)


def assert_reads_like_pyiceberg(
    manager: IcebergTableManager, table: Table, where: str = "true", columns: list[str] | None = None
) -> pa.Table:
    theirs = table.scan(row_filter=where, selected_fields=tuple(columns or ("*",))).to_arrow()
    ours = manager.scan(".".join(table.name()), columns, row_filter=where)

    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert Counter(map(repr, ours.to_pylist())) == Counter(map(repr, theirs.to_pylist()))
    return ours


@pytest.mark.parametrize("columns", [None, ["amount"], ["tz", "id"]], ids=str)
@pytest.mark.parametrize("where", ["true", "id = 1", "amount is null", "name in ('x', 'y') or small > 2", "id > 5"])
def test_every_plain_type_is_read_as_pyiceberg_reads_it(
    lake: Lake, manager: IcebergTableManager, where: str, columns: list[str] | None
) -> None:
    manager.create_table("bronze.t", EVERY_TYPE.schema)
    for _ in range(2):
        manager.append("bronze.t", EVERY_TYPE)

    assert_reads_like_pyiceberg(manager, lake.table("bronze.t"), where, columns)


def test_columns_with_parts_are_read_as_pyiceberg_reads_them(lake: Lake, manager: IcebergTableManager) -> None:
    rows = pa.table({"id": [1, 2], "tags": [["a"], None], "place": [{"x": 1}, {"x": None}]})
    manager.create_table("bronze.t", rows.schema)
    manager.append("bronze.t", rows)

    assert_reads_like_pyiceberg(manager, lake.table("bronze.t"))
    assert_reads_like_pyiceberg(manager, lake.table("bronze.t"), "place.x = 1", ["id"])
    assert_reads_like_pyiceberg(manager, lake.table("bronze.t"), "id = 1", ["tags"])


@pytest.mark.parametrize("where", ["true", "id > 1", "amount is null", "amount > 1", "total > 15", "note is null"])
def test_files_from_before_a_change_of_columns_are_read_as_pyiceberg_reads_them(
    lake: Lake, manager: IcebergTableManager, where: str
) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int32()), "total": [10, 20], "gone": ["a", "b"], "x y": [1, 2]})
    manager.create_table("bronze.t", rows.schema)
    manager.append("bronze.t", rows)
    with lake.table("bronze.t").update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("total", "sum")
        update.delete_column("gone")
    with lake.table("bronze.t").update_schema() as update:
        update.add_column("total", LongType())
        update.add_column("amount", LongType(), doc="in cents")
        update.add_column("note", StringType())
    later = pa.table({"id": pa.array([3], pa.int32()), "sum": [30], "total": [31], "amount": [5], "note": ["n"]})
    manager.append("bronze.t", later)

    assert_reads_like_pyiceberg(manager, lake.table("bronze.t"), where)
    assert_reads_like_pyiceberg(manager, lake.table("bronze.t"), where, ["amount", "sum"])
    manager.append("bronze.t", pa.table({"id": [2**40]}))  # widens id
    assert_reads_like_pyiceberg(manager, lake.table("bronze.t"), where)


@pytest.mark.parametrize("where", ["id = 2", "id is null"])
def test_names_that_files_cannot_hold_are_read_as_pyiceberg_reads_them(
    lake: Lake, manager: IcebergTableManager, where: str
) -> None:
    rows = pa.table({"id": [1, 2, None], "a b": [1, 2, 3], "ü": ["x", "y", "z"], "1st": [1, 2, 3]})
    manager.create_table("bronze.t", rows.schema)
    manager.append("bronze.t", rows)

    assert_reads_like_pyiceberg(manager, lake.table("bronze.t"), where)


def test_rows_deleted_by_position_are_left_out(lake: Lake, manager: IcebergTableManager) -> None:
    manager.create_table("bronze.t", pa.schema([("id", pa.int64())]))
    manager.append("bronze.t", pa.table({"id": [1, 2, 3]}))
    table = lake.table("bronze.t")
    (file,) = live_files(table).values()
    delete_positions(table, file, 1)
    manager.append("bronze.t", pa.table({"id": [4]}))

    found = assert_reads_like_pyiceberg(manager, lake.table("bronze.t"), "id > 1")

    assert sorted(found.column("id").to_pylist()) == [3, 4]


def test_files_without_field_ids_are_read_by_their_names(lake: Lake, manager: IcebergTableManager) -> None:
    rows = pa.table({"id": [1, 2], "name": ["a", "b"]})
    manager.create_table("bronze.t", rows.schema)
    table = lake.table("bronze.t")
    foreign = f"{table.location()}/data/foreign.parquet"
    with table.io.new_output(foreign).create() as stream:
        pq.write_table(rows, stream)
    table.add_files([foreign])
    manager.append("bronze.t", rows)

    found = assert_reads_like_pyiceberg(manager, lake.table("bronze.t"), "id = 2")

    assert found.column("name").to_pylist() == ["b", "b"]


def test_lists_and_maps_are_compared_with_null(manager: IcebergTableManager) -> None:
    rows = pa.table({"id": [1, 2], "tags": [["a"], None], "by": pa.array([None, []], pa.map_(pa.string(), pa.int32()))})
    manager.create_table("bronze.t", rows.schema)
    manager.append("bronze.t", rows)

    for limit in (None, 5):
        assert manager.scan("bronze.t", ["id"], "tags is null", limit=limit)["id"].to_pylist() == [2]
        assert (
            manager.scan("bronze.t", row_filter="by is null", limit=limit).to_pylist() == rows.slice(0, 1).to_pylist()
        )


@pytest.mark.parametrize("limit", [0, 1, 3, 10])
def test_a_limit_holds(manager: IcebergTableManager, limit: int) -> None:
    manager.create_table("bronze.t", EVERY_TYPE.schema)
    for _ in range(2):
        manager.append("bronze.t", EVERY_TYPE)

    assert manager.scan("bronze.t", ["id"], limit=limit).num_rows == min(limit, 6)


def test_files_that_spark_wrote_are_read_as_pyiceberg_reads_them(spark_upkeep: Upkeep) -> None:
    make_orders(spark_upkeep.manager, batches=2, days=2)
    spark_upkeep.sql("INSERT INTO ORDERS SELECT * FROM ORDERS")
    spark_upkeep.set_properties(write__delete__mode="merge-on-read")
    spark_upkeep.sql("DELETE FROM ORDERS WHERE id = 1")

    manager = spark_upkeep.manager
    for where in ("true", "region = 'eu'", "day = '2024-01-02' and amount > 1"):
        assert_reads_like_pyiceberg(manager, manager.load_table(ORDERS), where)


@pytest.fixture
def watched(tmp_path: Path) -> IcebergTableManager:
    """A manager whose files are counted when they are opened."""
    iceberg = IcebergResource(
        catalog_uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}", catalog_properties=READING_IO
    )
    iceberg.table_manager.create_namespace("bronze")
    return iceberg.table_manager


def opened_data_files(manager: IcebergTableManager) -> list[int]:
    with reading() as opened:
        manager.scan("bronze.t", row_filter="id >= 0")
    return sorted(Counter(file for file in opened if file.endswith(".parquet")).values())


def test_a_file_is_opened_once_and_at_most_one_of_a_scan_twice(watched: IcebergTableManager) -> None:
    watched.create_table("bronze.t", pa.schema([("id", pa.int32()), ("name", pa.string())]))
    for _ in range(3):
        watched.append("bronze.t", pa.table({"id": pa.array([1], pa.int32())}))
    assert opened_data_files(watched) == [1, 1, 1]

    watched.append("bronze.t", pa.table({"id": pa.array([1], pa.int32()), "more": [1]}))
    assert opened_data_files(watched) == [1, 1, 1, 1], "a column that a file lacks is no reason to open it again"

    watched.append("bronze.t", pa.table({"id": [2**40]}))
    assert sum(opened_data_files(watched)) <= 5 + 2, "those of another type are, until one was met"
