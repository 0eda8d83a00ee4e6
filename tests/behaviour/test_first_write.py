"""The first write makes namespace and table; a first write that fails makes neither table nor file."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    DailyPartitionsDefinition,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
    asset,
)
from support.io_results import failure_of, shown
from support.place import Place
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.models import PartitionField, PartitionSpec, PartitionTransform

pytestmark = pytest.mark.requirement("S4-handle_output", "S1-T077/82-88", "S3-3c")

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
DAYS = DailyPartitionsDefinition("2024-01-01")


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def spec_of(warehouse: Warehouse, table: str = "events") -> list[str]:
    loaded = warehouse.table(table)
    names = {field.field_id: field.name for field in loaded.schema().fields}
    return [f"{field.name}: {field.transform}({names[field.source_id]})" for field in loaded.spec().fields]


@pytest.mark.lakes
def test_namespace_and_table_are_made_with_the_columns_of_the_frame(warehouse: Warehouse) -> None:
    @asset(key=["bronze", "raw", "events"])
    def events() -> Any:
        return warehouse.frame({"id": [1], "at": [NOON]})

    warehouse.run(events)

    columns = warehouse.table("bronze.raw_events").schema().fields
    assert {column.name: str(column.field_type) for column in columns} == {"id": "long", "at": "timestamptz"}
    assert spec_of(warehouse, "bronze.raw_events") == []


def test_the_spec_follows_from_the_partitions_definition(warehouse: Warehouse) -> None:
    both = MultiPartitionsDefinition({"day": DAYS, "region": StaticPartitionsDefinition(["eu"])})

    @asset(partitions_def=both, metadata={"partition_expr": {"day": "ts", "region": "region"}})
    def events() -> Any:
        return warehouse.frame({"ts": [NOON], "region": ["eu"]})

    warehouse.run(events, "2024-01-01|eu")

    assert spec_of(warehouse) == ["ts_day: day(ts)", "region: identity(region)"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["month(ts)", "bucket(8, id)"], ["ts_month: month(ts)", "id_bucket_8: bucket[8](id)"]),
        ([], []),
        (
            PartitionSpec(
                fields=[
                    PartitionField(
                        source_field_id=2, partition_field_id=1000, name="by_day", transform=PartitionTransform.DAY
                    )
                ]
            ),
            ["by_day: day(ts)"],
        ),
    ],
    ids=["texts", "none at all", "PartitionSpec"],
)
def test_the_asset_may_name_another_spec(warehouse: Warehouse, given: Any, expected: list[str]) -> None:
    runs = iter(range(10))

    @asset(partitions_def=DAYS, metadata=iceberg_settings(partition_expr="ts", partition_spec=given))
    def events(context: AssetExecutionContext) -> Any:
        at = datetime.fromisoformat(context.partition_key).replace(tzinfo=UTC)
        return warehouse.frame({"id": [next(runs)], "ts": [at]})

    for key in ("2024-01-01", "2024-01-02", "2024-01-01"):
        warehouse.run(events, key)

    assert spec_of(warehouse) == expected
    assert warehouse.rows("events", "id") == [(1,), (2,)]


def test_properties_are_those_of_the_manager_under_those_of_the_asset(warehouse: Warehouse) -> None:
    @asset(metadata=iceberg_settings(properties={"write.parquet.compression-codec": "snappy", "owner": "sales"}))
    def events() -> Any:
        return warehouse.frame({"id": [1]})

    warehouse.run(events)

    properties = dict(warehouse.table("events").properties)
    # Iceberg's REST server notes when it made a table.
    properties.pop("created-at", None)
    defaults = warehouse.manager.config.default_table_properties
    assert properties == {**defaults, "write.parquet.compression-codec": "snappy", "owner": "sales"}


@pytest.mark.lakes
def test_a_missing_table_is_an_error_when_none_may_be_made(warehouse: Warehouse) -> None:
    @asset
    def events() -> Any:
        return warehouse.frame({"id": [1]})

    result = warehouse.with_settings(auto_create_tables=False).run(events, raise_on_error=False)

    assert "Table 'public.events' not found in the catalog" in failure_of(result, "events")
    assert not warehouse.exists("events")


@pytest.mark.lakes
@pytest.mark.requirement("S2-US5.4", "S2-FR-026")
def test_a_failed_first_write_leaves_no_table_and_no_file(warehouse: Warehouse, place: Place) -> None:
    @asset(partitions_def=DAYS, metadata={"partition_expr": "ts"})
    def events() -> Any:
        return warehouse.broken_frame({"id": [1], "ts": [NOON]})

    result = warehouse.run(events, "2024-01-01", raise_on_error=False)

    assert not result.success
    assert not warehouse.exists("events")
    assert files_below(place.warehouse) == []


@pytest.mark.lakes
def test_after_a_failed_first_write_the_next_one_makes_the_table(warehouse: Warehouse) -> None:
    timestamps = iter([NOON.replace(year=2023), NOON])

    @asset(partitions_def=DAYS, metadata={"partition_expr": "ts"})
    def events() -> Any:
        return warehouse.frame({"ts": [next(timestamps)]})

    assert not warehouse.run(events, "2024-01-01", raise_on_error=False).success
    warehouse.run(events, "2024-01-01")

    assert warehouse.rows("events") == [(NOON,)]
    assert spec_of(warehouse) == ["ts_day: day(ts)"]


def test_a_column_of_unknown_type_is_named(warehouse: Warehouse) -> None:
    @asset
    def events() -> Any:
        return warehouse.frame({"id": [1], "note": pa.nulls(1)})

    result = warehouse.run(events, raise_on_error=False)

    assert "Columns of 'public.events' hold only NULL and have no type: note" in failure_of(result, "events")


def test_columns_that_differ_only_in_case_are_refused(warehouse: Warehouse) -> None:
    @asset
    def events() -> Any:
        return warehouse.frame({"id": [1], "ID": [2]})

    result = warehouse.run(events, raise_on_error=False)

    assert "ID, id. Rename or drop one of each." in failure_of(result, "events")
    assert not warehouse.exists("events")


def test_the_table_name_may_follow_a_pattern(warehouse: Warehouse) -> None:
    @asset(key=["sales", "orders", "daily"])
    def orders() -> Any:
        return warehouse.frame({"id": [1]})

    result = warehouse.with_settings(table_name_pattern="raw_{asset_key}").run(orders)

    assert shown(result, "sales__orders__daily")["dagster/table_name"] == "sales.raw_orders_daily"
