"""Tables of format version 3, written from Spark DataFrames and from Arrow tables that are handed to Spark.

Rows are read back by raw Spark, with their row ids, and by raw PyIceberg.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
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
    Failure,
    StaticPartitionsDefinition,
    asset,
)
from pyiceberg.catalog import MetastoreCatalog
from pyspark.sql import SparkSession
from support.foreign_writers import metadata_json
from support.io_results import failure_of, shown
from support.place import Place
from support.warehouse import FORMAT_3_WAREHOUSES, ArrowWarehouse, Warehouse, frames_asset

from floe_dagster_iceberg import AuditedTable, audited_asset
from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.io_managers.managers import IcebergIOManager

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
DAYS = DailyPartitionsDefinition("2024-01-01")
WHY = "spark, because PyIceberg does not write format version 3"


@pytest.fixture(params=FORMAT_3_WAREHOUSES)
def warehouse(request: pytest.FixtureRequest, place: Place, shared_instance: DagsterInstance) -> Warehouse:
    """Both kinds of frames, through an IO manager that has Spark and makes tables of format version 3."""
    return FORMAT_3_WAREHOUSES[request.param].open(place, shared_instance)


def raw(warehouse: Warehouse, *columns: str, table: str = "items", order: str = "id") -> list[tuple[Any, ...]]:
    """Rows as Spark alone reads them."""
    query = f"SELECT {', '.join(columns)} FROM floe.public.{table} ORDER BY {order}"  # noqa: S608 - constants
    return [tuple(row) for row in session_of(warehouse).sql(query).collect()]


def session_of(warehouse: Warehouse) -> SparkSession:
    assert isinstance(warehouse.io_manager, IcebergIOManager)
    assert warehouse.io_manager.pyspark is not None
    return warehouse.io_manager.pyspark.spark_session


def versions(warehouse: Warehouse, table: str = "items") -> int:
    return len(warehouse.table(table).metadata.metadata_log) + 1


def next_row_id(warehouse: Warehouse, table: str = "items") -> int:
    return int(metadata_json(warehouse.table(table))["next-row-id"])


@pytest.mark.lakes
def test_a_new_table_has_the_version_the_partitions_the_properties_and_the_docs(warehouse: Warehouse) -> None:
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"doc": "it's the \\ id"}),
            pa.field("ts", pa.timestamp("us", "UTC")),
            pa.field("place", pa.struct([pa.field("x", pa.int32()), pa.field("tags", pa.list_(pa.string()))])),
        ]
    )
    rows = warehouse.frame({"id": [1, 2], "ts": [NOON, NOON], "place": [{"x": 1, "tags": ["a"]}, None]}, schema)

    @asset(
        partitions_def=DAYS,
        metadata=iceberg_settings(
            partition_expr="ts",
            partition_spec=["day(ts)", "bucket(4, id)"],
            properties={"owner": "sales", "note": "it's ours", "write.target-file-size-bytes": "1048576"},
        ),
    )
    def items() -> Any:
        return rows

    metadata = shown(warehouse.run(items, "2024-01-01"), "items")

    table = warehouse.table("items")
    document = metadata_json(table)
    assert (document["format-version"], document["next-row-id"]) == (3, 2)
    assert [field.name for field in table.spec().fields] == ["ts_day", "id_bucket_4"]
    assert table.schema().find_field("id").doc == "it's the \\ id"
    assert {"owner": "sales", "note": "it's ours", "write.target-file-size-bytes": "1048576"}.items() <= dict(
        table.properties
    ).items()
    assert "format-version" not in table.properties
    assert raw(warehouse, "id", "place.x", "_row_id") in ([(1, 1, 0), (2, None, 1)], [(1, 1, 1), (2, None, 0)])
    assert warehouse.rows("items", "id") == [(1,), (2,)]
    assert metadata.get("iceberg/engine") == (WHY if warehouse.engine == "arrow" else None)


def test_creating_takes_an_empty_version_first_and_one_for_each_named_partition_field(warehouse: Warehouse) -> None:
    warehouse.run(frames_asset(warehouse.frame({"id": [1]})))
    plain = versions(warehouse)
    warehouse.run(frames_asset(warehouse.frame({"id": [1]}), table="bucketed", partition_spec=["bucket(4, id)"]))

    # Spark's CREATE TABLE names a bucket field in its own way, so it is added by its name.
    assert (plain, versions(warehouse, "bucketed")) == (2, 3)
    assert len(warehouse.table("bucketed").metadata.snapshots) == 1


@pytest.mark.lakes
def test_columns_are_added_widened_and_made_optional_and_rows_keep_their_ids(warehouse: Warehouse) -> None:
    first = pa.table({"id": pa.array([1], pa.int32()), "s": pa.array([{"a": 1}], pa.struct([("a", pa.int32())]))})
    wider = pa.struct([("a", pa.int64()), ("b", pa.string())])
    second = pa.table({"id": [2**40], "s": pa.array([{"a": 2**40, "b": "x"}], wider), "name": ["n"]})
    items = frames_asset(warehouse.frame(first), warehouse.frame(second), write_mode="append")
    warehouse.run(items)
    warehouse.manager.create_tag("public.items", "before")
    before = versions(warehouse)

    metadata = shown(warehouse.run(items), "items")

    assert metadata["iceberg/schema_changes"] == [
        "widen id int to long",
        "widen s.a int to long",
        "add s.b string",
        "add name string",
    ]
    assert raw(warehouse, "id", "s.a", "s.b", "name", "_row_id", "_last_updated_sequence_number") == [
        (1, 1, None, None, 0, 1),
        (2**40, 2**40, "x", "n", 1, 2),
    ]
    assert warehouse.rows("items", "id", "name") == [(1, None), (2**40, "n")]
    # One statement for all types, one for all new columns, and the rows; a REST server takes both changes at once.
    assert versions(warehouse) - before == (3 if isinstance(warehouse.iceberg.catalog, MetastoreCatalog) else 2)


def test_a_required_column_is_made_optional_by_a_null(warehouse: Warehouse) -> None:
    warehouse.manager.create_namespace("public")
    required = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    warehouse.manager.create_table("public.items", required, properties={"format-version": "3"})

    warehouse.run(frames_asset(warehouse.frame({"id": pa.array([None], pa.int64())})))

    assert raw(warehouse, "id", "_row_id") == [(None, 0)]
    assert not warehouse.table("items").schema().find_field("id").required


@pytest.mark.lakes
def test_a_partition_that_shares_a_file_is_replaced_in_one_move_and_the_other_rows_keep_their_ids(
    warehouse: Warehouse,
) -> None:
    @asset(
        partitions_def=StaticPartitionsDefinition(["eu", "us"]),
        metadata=iceberg_settings(partition_expr="region", partition_spec=[]),
    )
    def items(context: AssetExecutionContext) -> Any:
        keys = list(context.partition_keys)
        return warehouse.frame({"id": [len(keys) * 10 + number for number in range(len(keys))], "region": keys})

    warehouse.run(items, key_range=("eu", "us"))
    before, rows_before = next_row_id(warehouse), raw(warehouse, "id", "region", "_row_id")
    warehouse.run(items, "eu")

    metadata = warehouse.table("items").metadata
    assert len(metadata.snapshot_log) == 2
    assert list(metadata.refs) == ["main"]
    (other,) = [row for row in rows_before if row[1] == "us"]
    after = raw(warehouse, "id", "region", "_row_id")
    assert other in after
    assert [(row[0], row[1]) for row in after] == [(10, "eu"), (21, "us")]
    assert next_row_id(warehouse) > before
    assert warehouse.rows("items") == [(10, "eu"), (21, "us")]


def test_a_merge_creates_the_table_and_keeps_the_ids_of_untouched_rows(warehouse: Warehouse) -> None:
    first = {"id": [1, 2, 3], "at": [1, 1, 1], "gone": [False, False, True]}
    then = {"id": [2, 2, 4], "at": [2, 3, 1], "gone": [False, True, False]}
    items = frames_asset(
        warehouse.frame(first), warehouse.frame(then), upsert_keys="id", delete_when="gone", order_by="at"
    )

    warehouse.run(items)
    before = raw(warehouse, "id", "at", "_row_id")
    metadata = shown(warehouse.run(items), "items")

    assert [row[:2] for row in before] == [(1, 1), (2, 1)]
    assert raw(warehouse, "id", "at", "_row_id")[0] == before[0]
    assert warehouse.rows("items") == [(1, 1), (4, 1)]
    assert [metadata[f"iceberg/rows_{what}"] for what in ("inserted", "updated", "deleted")] == [1, 0, 1]


def test_replacing_a_partition_upserting_and_appending_keep_the_ids_of_untouched_rows(warehouse: Warehouse) -> None:
    def daily(rows: pa.Table, **settings: Any) -> AssetsDefinition:
        @asset(partitions_def=DAYS, metadata=iceberg_settings(partition_expr="ts", **settings))
        def items() -> Any:
            return warehouse.frame(rows)

        return items

    def on(day: int, ids: Sequence[int], name: str) -> pa.Table:
        at = pa.array([NOON + timedelta(days=day)] * len(ids), pa.timestamp("us", "UTC"))
        return pa.table({"id": list(ids), "ts": at, "name": [name] * len(ids)})

    seen = []
    for run, key in (
        (daily(on(0, [1, 2], "a")), "2024-01-01"),
        (daily(on(1, [3], "a")), "2024-01-02"),
        (daily(on(1, [4], "b")), "2024-01-02"),
        (daily(on(0, [2, 5], "c"), upsert_keys="id"), "2024-01-01"),
        (daily(on(0, [6], "d"), write_mode="append"), "2024-01-01"),
    ):
        warehouse.run(run, key)
        seen.append(next_row_id(warehouse))

    assert seen == sorted(set(seen))
    found = {row[0]: row[1:] for row in raw(warehouse, "id", "name", "_row_id")}
    assert {key: value[0] for key, value in found.items()} == {1: "a", 2: "c", 4: "b", 5: "c", 6: "d"}
    assert sorted(value[1] for key, value in found.items() if key in (1, 2)) == [0, 1]
    assert len({value[1] for value in found.values()}) == 5


@pytest.mark.lakes
def test_a_branch_is_written_and_published(warehouse: Warehouse) -> None:
    """The first branch of an empty table too: main must not show its rows."""
    warehouse.manager.create_namespace("public")
    warehouse.manager.create_table("public.items", pa.schema([("id", pa.int64())]), properties={"format-version": "3"})
    items = frames_asset(*(warehouse.frame({"id": [number]}) for number in (1, 2)), branch="audit", write_mode="append")
    for _ in range(2):
        warehouse.run(items)
    hidden = warehouse.rows("items")

    warehouse.manager.fast_forward("public.items", "main", "audit")
    warehouse.manager.remove_ref("public.items", "audit")

    assert hidden == []
    assert raw(warehouse, "id", "_row_id") == [(1, 0), (2, 1)]
    assert list(warehouse.table("items").metadata.refs) == ["main"]


@pytest.mark.lakes
def test_a_variant_is_written_by_spark_and_the_other_columns_are_read_by_arrow(warehouse: Warehouse) -> None:
    spark = session_of(warehouse)
    warehouse.run(frames_asset(spark.sql("SELECT 1L AS id, parse_json('[1]') AS v"), write_mode="append"))
    warehouse.run(frames_asset(warehouse.frame({"id": [2]}), write_mode="append"))
    loaded: list[Any] = []

    @asset(ins={"items": AssetIn(metadata={"columns": ["id"]})})
    def ids(items: pa.Table) -> None:
        loaded.extend(sorted(items["id"].to_pylist()))

    warehouse.run([AssetSpec("items"), ids])  # type: ignore[list-item]

    assert raw(warehouse, "id", "to_json(v)", "_row_id") == [(1, "[1]", 0), (2, None, 1)]
    assert loaded == [1, 2]


@pytest.mark.lakes
def test_a_failed_first_write_leaves_no_table_and_no_file(warehouse: Warehouse, place: Place) -> None:
    result = warehouse.run(frames_asset(warehouse.broken_frame({"id": [1]})), raise_on_error=False)

    assert not result.success
    assert not warehouse.exists("items")
    assert [path for path in place.warehouse.rglob("*") if path.is_file()] == []


def test_rows_outside_the_partition_are_refused_and_change_nothing(warehouse: Warehouse) -> None:
    frames = iter([warehouse.frame({"ts": [NOON]}), warehouse.frame({"ts": [NOON + timedelta(days=3)], "more": [1]})])

    @asset(partitions_def=DAYS, metadata={"partition_expr": "ts"})
    def items() -> Any:
        return next(frames)

    warehouse.run(items, "2024-01-01")
    before = warehouse.table("items").metadata_location
    result = warehouse.run(items, "2024-01-01", raise_on_error=False)

    assert "1 row for 'public.items' lies outside the partition being written" in failure_of(result, "items")
    assert warehouse.table("items").metadata_location == before


@pytest.mark.parametrize("version", [1, 2])
def test_older_versions_are_made_when_asked_for_by_the_asset(warehouse: Warehouse, version: int) -> None:
    """The asset's setting wins over the IO manager's."""
    result = warehouse.run(frames_asset(warehouse.frame({"id": [1]}), format_version=version))

    assert warehouse.table("items").metadata.format_version == version
    assert "iceberg/engine" not in shown(result, "items")
    assert warehouse.rows("items") == [(1,)]


@pytest.mark.lakes
def test_an_existing_table_keeps_its_version_and_the_log_says_so(warehouse: Warehouse) -> None:
    warehouse.run(frames_asset(warehouse.frame({"id": [1]}), format_version=2))
    result = warehouse.run(frames_asset(warehouse.frame({"id": [2]}), write_mode="append"))

    assert warehouse.table("items").metadata.format_version == 2
    assert (
        "Table 'public.items' has format version 2, and the setting is 3. An existing table keeps its own: "
        "upgrade_format_version() of the table manager upgrades it, for good."
    ) in [entry.user_message for entry in warehouse.instance.all_logs(result.run_id)]
    warehouse.manager.upgrade_format_version("public.items", 3)
    warehouse.run(frames_asset(warehouse.frame({"id": [3]}), write_mode="append"))
    assert metadata_json(warehouse.table("items"))["format-version"] == 3
    assert raw(warehouse, "id") == [(1,), (2,), (3,)]
    assert len({row for (row,) in raw(warehouse, "_row_id", order="_row_id")}) == 3


def test_without_spark_arrow_rows_for_version_3_are_refused_with_the_remedy(
    place: Place, shared_instance: DagsterInstance
) -> None:
    arrow = ArrowWarehouse.open(place, shared_instance).with_settings(format_version=3)

    result = arrow.run(frames_asset(pa.table({"id": [1]})), raise_on_error=False)

    assert "format version 3, which PyIceberg does not write" in failure_of(result, "items")
    assert "IcebergSparkResource" in failure_of(result, "items")
    assert not arrow.exists("items")


def test_an_invalid_version_is_refused(place: Place, shared_instance: DagsterInstance) -> None:
    arrow = ArrowWarehouse.open(place, shared_instance).with_settings(format_version=4)

    with pytest.raises(Failure, match="format_version is 4"):
        arrow.run(frames_asset(pa.table({"id": [1]})))


def test_an_audited_asset_is_published_or_kept_aside(warehouse: Warehouse) -> None:
    others: list[int] = []

    def is_positive(audited: AuditedTable) -> bool:
        for number in others:
            warehouse.run(frames_asset(warehouse.frame({"id": [number]}), write_mode="append"))
        return all(number > 0 for number in audited.scan()["id"].to_pylist())

    def run_audited(number: int) -> bool:
        @audited_asset(name="items", checks=[is_positive], metadata=iceberg_settings(write_mode="append"))
        def audited() -> Any:
            return warehouse.frame({"id": [number]})

        return warehouse.run(audited, raise_on_error=False).success

    assert [run_audited(-1), warehouse.exists("items")] == [False, False]
    assert [run_audited(1), run_audited(2), run_audited(-2)] == [True, True, False]
    assert raw(warehouse, "id") == [(1,), (2,)]
    # PyIceberg cannot put rows on top of those of others here; another run writes them again.
    others.append(3)
    assert not run_audited(4)
    others.clear()
    assert run_audited(4)
    assert raw(warehouse, "id") == [(1,), (2,), (3,), (4,)]
    (kept,) = set(warehouse.table("items").metadata.refs) - {"main"}
    assert kept.startswith("floe-rejected-")
