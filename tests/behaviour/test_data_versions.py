"""The data version of a materialization is the snapshot of its own commit, in the event log and after."""

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from dagster import AssetExecutionContext, AssetKey, AssetsDefinition, DagsterInstance, DailyPartitionsDefinition, asset
from support.warehouse import Warehouse

pytestmark = pytest.mark.requirement("S2-FR-022", "S3-3")

VERSION = "dagster/data_version"


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


def versions(instance: DagsterInstance, key: str) -> dict[str | None, str]:
    """The newest data version of each partition, as stored."""
    records = instance.fetch_materializations(AssetKey(key), limit=1000, ascending=True).records
    materializations = [record.asset_materialization for record in records]
    return {each.partition: (each.tags or {})[VERSION] for each in materializations if each is not None}


def daily_orders(warehouse: Warehouse) -> AssetsDefinition:
    @asset(partitions_def=DailyPartitionsDefinition("2024-01-01"), metadata={"partition_expr": "day"})
    def orders(context: AssetExecutionContext) -> Any:
        return warehouse.frame({"day": [date.fromisoformat(key) for key in context.partition_keys]})

    return orders


@pytest.mark.lakes
def test_it_is_the_snapshot_of_this_very_commit(warehouse: Warehouse, instance: DagsterInstance) -> None:
    orders = daily_orders(warehouse)
    for key in ("2024-01-01", "2024-01-02"):
        warehouse.run(orders, key, instance=instance)

    first, second = warehouse.table("orders").metadata.snapshots
    assert versions(instance, "orders") == {"2024-01-01": str(first.snapshot_id), "2024-01-02": str(second.snapshot_id)}


def test_every_partition_of_a_range_has_it(warehouse: Warehouse, instance: DagsterInstance) -> None:
    warehouse.run(daily_orders(warehouse), key_range=("2024-01-01", "2024-01-03"), instance=instance)

    snapshot = str(warehouse.table("orders").metadata.current_snapshot_id)
    assert versions(instance, "orders") == dict.fromkeys(("2024-01-01", "2024-01-02", "2024-01-03"), snapshot)


def test_downstream_is_built_from_it(warehouse: Warehouse, instance: DagsterInstance) -> None:
    @asset
    def source() -> Any:
        return warehouse.frame({"id": [1]})

    @asset
    def report(source: warehouse.frame_type) -> Any:
        return warehouse.frame({"rows": [warehouse.to_arrow(source).num_rows]})

    result = warehouse.run([source, report], instance=instance)

    (materialization,) = result.asset_materializations_for_node("report")
    tags = materialization.tags or {}
    assert tags["dagster/input_data_version/source"] == versions(instance, "source")[None]
    assert tags[VERSION] == str(warehouse.table("report").metadata.current_snapshot_id)
