"""What the Dagster UI shows of a materialization is what the table says."""

from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    BackfillPolicy,
    DailyPartitionsDefinition,
    TableColumn,
    TableSchema,
    asset,
)
from support.io_results import failure_of, shown
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S3-3", "S4-handle_output", "S2-FR-025")

ALWAYS = {
    "dagster/row_count",
    "dagster/column_schema",
    "dagster/table_name",
    "dagster/storage_kind",
    "dagster/uri",
    "iceberg/snapshot_id",
    "iceberg/operation",
    "iceberg/rows_added",
    "iceberg/added_files",
    "iceberg/added_bytes",
    "iceberg/added_size",
    "iceberg/write_mode",
    "iceberg/schema_evolved",
    "iceberg/duration",
}
SCHEMA = pa.schema(
    [
        pa.field("day", pa.date32(), nullable=False, metadata={"doc": "Day of the order."}),
        pa.field("amount", pa.int64()),
    ]
)


def daily_orders(warehouse: Warehouse, amounts: list[int], **settings: Any) -> AssetsDefinition:
    @asset(
        partitions_def=DailyPartitionsDefinition("2024-01-01"),
        metadata=iceberg_settings(partition_expr="day", **settings),
    )
    def orders(context: AssetExecutionContext) -> Any:
        days = [date.fromisoformat(key) for key in context.partition_keys for _ in amounts]
        return warehouse.frame({"day": days, "amount": amounts * len(context.partition_keys)}, SCHEMA)

    return orders


def test_a_replaced_partition(warehouse: Warehouse) -> None:
    for key, amounts in (("2024-01-01", [1]), ("2024-01-02", [1])):
        warehouse.run(daily_orders(warehouse, amounts), key)

    metadata = shown(warehouse.run(daily_orders(warehouse, [7, 8, 9]), "2024-01-02"), "orders")

    table = warehouse.table("orders")
    files = table.inspect.files().filter(pa.compute.field("record_count") == 3).to_pylist()
    assert metadata.keys() == ALWAYS | {
        "dagster/partition_row_count",
        "iceberg/rows_removed",
        "iceberg/deleted_files",
    }
    assert (metadata["iceberg/rows_added"], metadata["iceberg/rows_removed"]) == (3, 1)
    assert metadata["iceberg/added_size"].endswith(" B") or metadata["iceberg/added_size"].endswith(" KiB")
    assert metadata["dagster/row_count"] == table.scan().count() == 4
    assert metadata["dagster/partition_row_count"] == 3
    assert metadata["dagster/table_name"] == "public.orders"
    assert metadata["dagster/storage_kind"] == "iceberg"
    assert metadata["dagster/uri"] == table.location()
    assert metadata["iceberg/snapshot_id"] == str(table.metadata.current_snapshot_id)
    assert metadata["iceberg/operation"] == metadata["iceberg/write_mode"] == "overwrite"
    assert metadata["iceberg/added_files"] == len(files) == metadata["iceberg/deleted_files"] == 1
    assert metadata["iceberg/added_bytes"] == files[0]["file_size_in_bytes"]
    assert metadata["iceberg/schema_evolved"] is False
    assert metadata["iceberg/duration"] > 0


def test_columns_have_types_nullability_docs_and_partitioning(warehouse: Warehouse) -> None:
    schema = shown(warehouse.run(daily_orders(warehouse, [1]), "2024-01-01"), "orders")["dagster/column_schema"]

    day, amount = schema.columns
    assert (day.name, day.type, day.description) == ("day", "date", "Day of the order.")
    assert day.constraints.nullable is warehouse.table("orders").schema().find_field("day").optional
    assert day.constraints.other == ["partitioned by day"]
    assert (amount.name, amount.type, amount.constraints.nullable) == ("amount", "long", True)


def test_a_changed_schema_is_spelled_out(warehouse: Warehouse) -> None:
    frames = iter([pa.table({"id": pa.array([1], pa.int32())}), pa.table({"id": [2**40], "name": ["a"]})])

    @asset
    def items() -> Any:
        return warehouse.frame(next(frames))

    assert "iceberg/schema_changes" not in shown(warehouse.run(items), "items")
    assert set(shown(warehouse.run(items), "items")["iceberg/schema_changes"]) == {
        "add name string",
        "widen id int to long",
    }


def test_without_partitions_there_is_no_count_of_one(warehouse: Warehouse) -> None:
    @asset
    def items() -> Any:
        return warehouse.frame({"id": [1]})

    assert shown(warehouse.run(items), "items").keys() == ALWAYS


def test_each_partition_of_a_range_shows_its_own_rows_and_files(warehouse: Warehouse) -> None:
    amounts = {"2024-01-01": [1], "2024-01-02": [], "2024-01-03": [1, 2, 3]}

    @asset(
        partitions_def=DailyPartitionsDefinition("2024-01-01"),
        backfill_policy=BackfillPolicy.single_run(),
        metadata=iceberg_settings(partition_expr="day"),
    )
    def orders(context: AssetExecutionContext) -> Any:
        rows = [(date.fromisoformat(key), amount) for key in context.partition_keys for amount in amounts[key]]
        return warehouse.frame({"day": [day for day, _ in rows], "amount": [amount for _, amount in rows]}, SCHEMA)

    result = warehouse.run(orders, key_range=("2024-01-01", "2024-01-03"))

    shown = {each.partition: each.metadata for each in result.asset_materializations_for_node("orders")}
    files = {row["partition"]["day_day"]: row for row in warehouse.table("orders").inspect.files().to_pylist()}
    assert {key: each["dagster/partition_row_count"].value for key, each in shown.items()} == {
        key: len(rows) for key, rows in amounts.items()
    }
    assert {key: each["iceberg/added_files"].value for key, each in shown.items()} == {
        key: min(1, len(rows)) for key, rows in amounts.items()
    }
    assert shown["2024-01-03"]["iceberg/added_bytes"].value == files[date(2024, 1, 3)]["file_size_in_bytes"]
    assert {each["dagster/row_count"].value for each in shown.values()} == {4}


def test_rows_in_files_of_several_partitions_are_counted_and_the_files_are_not_divided(warehouse: Warehouse) -> None:
    source = daily_orders(warehouse, [1, 2], partition_spec="bucket(2, amount)")

    result = warehouse.run(source, key_range=("2024-01-01", "2024-01-03"))

    materializations = result.asset_materializations_for_node("orders")
    assert [materialization.partition for materialization in materializations] == [
        "2024-01-01",
        "2024-01-02",
        "2024-01-03",
    ]
    assert {each.metadata["dagster/partition_row_count"].value for each in materializations} == {2}
    files = len(warehouse.table("orders").inspect.files())
    assert {each.metadata["iceberg/added_files"].value for each in materializations} == {files}
    assert {each.metadata["dagster/row_count"].value for each in materializations} == {6}


@pytest.mark.lakes
@pytest.mark.requirement("S2-FR-025")
def test_the_snapshot_says_who_made_it(warehouse: Warehouse) -> None:
    settings: Any = {"snapshot_properties": {"ticket": 42}}
    before = datetime.now(UTC)

    result = warehouse.run(daily_orders(warehouse, [1], **settings), "2024-01-01")

    snapshot = warehouse.manager.list_snapshots("public.orders")[0]
    assert snapshot.summary["dagster.run-id"] == result.run_id
    assert snapshot.summary["dagster.asset-key"] == "orders"
    assert snapshot.summary["dagster.partition-key"] == "2024-01-01"
    assert snapshot.summary["dagster.step-key"] == "orders"
    assert snapshot.summary["ticket"] == "42"
    assert len(snapshot.summary["floe.idempotency-key"]) == 64
    assert before.timestamp() - 1 < snapshot.timestamp.timestamp() < datetime.now(UTC).timestamp() + 1


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"iceberg/wirte_mode": "append"}, "Did you mean 'iceberg/write_mode'? Known are iceberg/branch"),
        (
            {"iceberg/write_mode": "replace"},
            "Input should be 'append', 'overwrite' or 'upsert'",
        ),
        ({"iceberg/row_filter": "id > 1"}, "is a setting of inputs, not of outputs"),
    ],
    ids=["unknown", "not valid", "of inputs"],
)
def test_a_setting_that_is_invalid_stops_the_run(warehouse: Warehouse, metadata: Any, message: str) -> None:
    @asset(metadata=metadata)
    def items() -> Any:
        return warehouse.frame({"id": [1]})

    result = warehouse.run(items, raise_on_error=False)

    assert message in failure_of(result, "items")
    assert not warehouse.exists("items")


def test_an_upsert_says_what_became_of_its_rows(warehouse: Warehouse) -> None:
    frames = iter([{"id": [1, 2, 3], "v": [1.0, 2.0, None]}, {"id": [2, 3, 4, 5], "v": [2.0, 9.0, 4.0, 5.0]}])

    @asset(metadata=iceberg_settings(upsert_keys="id"))
    def items() -> Any:
        return warehouse.frame(next(frames))

    first, second = (shown(warehouse.run(items), "items") for _ in range(2))

    names = ["iceberg/rows_inserted", "iceberg/rows_updated", "iceberg/rows_unchanged"]
    assert [first[name] for name in names] == [3, 0, 0]
    assert [second[name] for name in names] == [2, 1, 1]
    assert warehouse.rows("items") == [(1, 1.0), (2, 2.0), (3, 9.0), (4, 4.0), (5, 5.0)]


def test_descriptions_of_columns_become_docs_of_the_table(warehouse: Warehouse) -> None:
    def described(text: str, **columns: Any) -> AssetsDefinition:
        schema = TableSchema(columns=[TableColumn("id", description=text), TableColumn("name", description="Name.")])

        @asset(metadata={"dagster/column_schema": schema})
        def items() -> Any:
            return warehouse.frame(columns)

        return items

    def docs() -> dict[str, str | None]:
        return {field.name: field.doc for field in warehouse.table("items").schema().fields}

    warehouse.run(described("Key.", id=[1], amount=[1]))
    assert docs() == {"id": "Key.", "amount": None}

    columns = shown(warehouse.run(described("Number of the item.", id=[2], name=["a"])), "items")[
        "dagster/column_schema"
    ]
    assert docs() == {"id": "Number of the item.", "amount": None, "name": "Name."}
    assert {column.name: column.description for column in columns.columns} == docs()

    schemas = len(warehouse.table("items").metadata.schemas)
    warehouse.run(described("Number of the item.", id=[3], name=["b"]))
    assert len(warehouse.table("items").metadata.schemas) == schemas
