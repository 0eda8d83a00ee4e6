"""A table that others made or changed keeps what they gave it."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetExecutionContext, AssetsDefinition, DailyPartitionsDefinition, asset
from pyiceberg.types import StringType
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-FR-040", "S4-handle_output")

DAYS = DailyPartitionsDefinition("2024-01-01")


def daily_events(warehouse: Warehouse, **settings: Any) -> AssetsDefinition:
    runs = iter(range(10))

    @asset(partitions_def=DAYS, metadata=iceberg_settings(partition_expr="ts", **settings))
    def events(context: AssetExecutionContext) -> Any:
        day, run = datetime.fromisoformat(context.partition_key).replace(tzinfo=UTC), next(runs)
        return warehouse.frame({"ts": [day, day.replace(hour=12)], "id": [10 * run, 10 * run + 1]})

    return events


def spec_of(warehouse: Warehouse) -> list[str]:
    return [field.name for field in warehouse.table("events").spec().fields]


def test_an_extra_partition_field_is_kept_and_filled(warehouse: Warehouse) -> None:
    events = daily_events(warehouse)
    warehouse.run(events, "2024-01-01")
    warehouse.manager.evolve_partition_spec("public.events", add=["bucket(4, id)"])

    for key in ("2024-01-02", "2024-01-01", "2024-01-02"):
        warehouse.run(events, key)

    assert spec_of(warehouse) == ["ts_day", "id_bucket_4"]
    assert warehouse.rows("events", "id") == [(20,), (21,), (30,), (31,)]


@pytest.mark.parametrize("spec", [[], ["year(ts)"], ["bucket(4, id)"], ["hour(ts)"]], ids=str)
def test_any_spec_is_left_as_it_is(warehouse: Warehouse, spec: list[str]) -> None:
    """The files of such a table partially match days; rows of other days are carried over."""
    warehouse.manager.create_namespace("public")
    warehouse.manager.create_table("public.events", pa.schema([("ts", pa.timestamp("us", "UTC")), ("id", pa.int64())]))
    if spec:
        warehouse.manager.evolve_partition_spec("public.events", add=spec)
    before, events = spec_of(warehouse), daily_events(warehouse)

    for key in ("2024-01-01", "2024-01-02"):
        warehouse.run(events, key)
    warehouse.manager.compact_table("public.events")
    warehouse.run(events, "2024-01-01")

    assert spec_of(warehouse) == before
    assert warehouse.rows("events", "id") == [(10,), (11,), (20,), (21,)]


@pytest.mark.lakes
def test_properties_of_others_are_kept_and_declared_ones_added(warehouse: Warehouse) -> None:
    warehouse.run(daily_events(warehouse), "2024-01-01")
    with warehouse.table("events").transaction() as transaction:
        transaction.set_properties({"owner": "finance", "comment": "theirs"})

    warehouse.run(daily_events(warehouse, properties={"owner": "sales", "contact": "sales@example.com"}), "2024-01-02")

    properties = warehouse.table("events").properties
    assert properties["comment"] == "theirs"
    assert properties["owner"] == "sales"
    assert properties["contact"] == "sales@example.com"
    assert warehouse.manager.config.default_table_properties.items() <= properties.items()


def test_rows_that_others_wrote_into_the_partition_are_replaced(warehouse: Warehouse) -> None:
    events = daily_events(warehouse)
    warehouse.run(events, "2024-01-01")
    theirs = pa.table({"ts": pa.array([datetime(2024, 1, 1, 6, tzinfo=UTC)]), "id": [99]})
    warehouse.manager.append("public.events", theirs)

    warehouse.run(events, "2024-01-01")

    assert warehouse.rows("events", "id") == [(10,), (11,)]


def test_a_column_that_others_added_is_filled_with_null(warehouse: Warehouse) -> None:
    events = daily_events(warehouse)
    warehouse.run(events, "2024-01-01")
    with warehouse.table("events").update_schema() as update:
        update.add_column("note", StringType())

    warehouse.run(events, "2024-01-02")

    assert warehouse.rows("events", "note") == [(None,)] * 4
