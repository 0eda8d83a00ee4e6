"""What must work on any Polaris: on the gateway, or unchanged on the live server that the environment names."""

import uuid
from collections.abc import Iterator
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetExecutionContext, DailyPartitionsDefinition, asset, materialize
from pyspark.sql import DataFrame
from support.live_polaris import live_polaris
from support.spark_session import spark_resource, to_frame

from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager, SparkIcebergIOManager
from floe_dagster_iceberg.models import SchemaChange, SchemaChangeType, SchemaEvolution
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager

pytestmark = pytest.mark.requirement("S1-T097-101", "S2-US1.2")

ROWS = pa.table({"id": [1, 2], "amount": [10, 20]}, schema=pa.schema([("id", pa.int64()), ("amount", pa.int32())]))


@pytest.fixture
def iceberg(request: pytest.FixtureRequest) -> IcebergResource:
    live = live_polaris()
    return live if live is not None else request.getfixturevalue("polaris").resource()


@pytest.fixture
def namespace(iceberg: IcebergResource) -> Iterator[str]:
    """A namespace of this test alone; dropped with its tables, whose files stay where Polaris refuses to purge."""
    name, manager = f"floe_test_{uuid.uuid4().hex[:12]}", iceberg.table_manager
    manager.create_namespace(name)
    yield name
    for table in manager.list_tables(name):
        manager.drop_table(f"{name}.{table}")
    manager.drop_namespace(name)


@pytest.fixture
def manager(iceberg: IcebergResource) -> IcebergTableManager:
    return iceberg.table_manager


def rows_of(manager: IcebergTableManager, table: str, *columns: str) -> list[tuple[Any, ...]]:
    found = manager.load_table(table).scan(selected_fields=columns or ("*",)).to_arrow()
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def test_a_table_is_created_written_and_listed(manager: IcebergTableManager, namespace: str) -> None:
    manager.create_table(f"{namespace}.orders", ROWS.schema)
    manager.append(f"{namespace}.orders", ROWS)
    manager.overwrite(f"{namespace}.orders", ROWS.slice(0, 1), overwrite_filter="id = 1")
    assert manager.list_tables(namespace) == ["orders"]
    assert rows_of(manager, f"{namespace}.orders") == [(1, 10), (2, 20)]


def test_a_schema_evolves(manager: IcebergTableManager, namespace: str) -> None:
    table = f"{namespace}.orders"
    manager.create_table(table, ROWS.schema)
    manager.append(table, ROWS)
    widen = SchemaChange(change_type=SchemaChangeType.WIDEN_TYPE, column_name="amount", new_type="long")
    rename = SchemaChange(change_type=SchemaChangeType.RENAME_COLUMN, column_name="amount", new_name="cents")
    manager.evolve_schema(table, SchemaEvolution(changes=[widen]))
    manager.evolve_schema(table, SchemaEvolution(changes=[rename]))
    manager.append(table, pa.table({"id": [3], "cents": [30], "note": ["new"]}))
    assert rows_of(manager, table) == [(1, 10, None), (2, 20, None), (3, 30, "new")]


def test_snapshots_are_listed_tagged_and_gone_back_to(manager: IcebergTableManager, namespace: str) -> None:
    table = f"{namespace}.orders"
    manager.create_table(table, ROWS.schema)
    first = manager.append(table, ROWS)
    manager.create_tag(table, "audited", first.snapshot_id)
    manager.append(table, ROWS)
    assert len(manager.list_snapshots(table)) == 2
    manager.rollback_to_snapshot(table, first.snapshot_id)
    assert rows_of(manager, table) == [(1, 10), (2, 20)]
    assert manager.load_table(table).metadata.refs["audited"].snapshot_id == first.snapshot_id


def test_partitions_of_an_asset_are_replaced_by_their_own_rows(iceberg: IcebergResource, namespace: str) -> None:
    amounts = iter([10, 20, 99])

    @asset(
        key_prefix=namespace,
        partitions_def=DailyPartitionsDefinition("2024-01-01"),
        metadata={"partition_expr": "day"},
    )
    def orders(context: AssetExecutionContext) -> pa.Table:
        return pa.table({"day": [date.fromisoformat(context.partition_key)], "amount": [next(amounts)]})

    for day in ("2024-01-01", "2024-01-02", "2024-01-01"):
        materialize([orders], partition_key=day, resources={"io_manager": ArrowIcebergIOManager(iceberg=iceberg)})
    assert rows_of(iceberg.table_manager, f"{namespace}.orders") == [(date(2024, 1, 1), 99), (date(2024, 1, 2), 20)]


def test_spark_and_arrow_write_the_same_table(iceberg: IcebergResource, namespace: str) -> None:
    pyspark = spark_resource(iceberg)

    @asset(key_prefix=namespace)
    def orders() -> DataFrame:
        return to_frame(pyspark.spark_session, ROWS)

    for _ in range(2):
        materialize([orders], resources={"io_manager": SparkIcebergIOManager(iceberg=iceberg, pyspark=pyspark)})
    iceberg.table_manager.append(f"{namespace}.orders", ROWS)
    seen = pyspark.spark_session.table(f"{iceberg.catalog_name}.{namespace}.orders").count()
    assert (seen, len(rows_of(iceberg.table_manager, f"{namespace}.orders"))) == (6, 6)
