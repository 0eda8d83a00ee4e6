"""What a first mistake is answered with: the fact, and the remedy that helps."""

from datetime import date
from typing import Any

import pyarrow as pa
from dagster import HourlyPartitionsDefinition, asset
from support.io_results import failure_of
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings


def test_an_input_whose_asset_was_never_materialized(warehouse: Warehouse) -> None:
    @asset
    def orders() -> Any:
        return warehouse.frame({"id": [1]})

    @asset
    def report(orders: Any) -> Any:
        return orders

    result = warehouse.run([orders, report], selection=[report], raise_on_error=False)

    message = failure_of(result, "report")
    assert message.startswith("Table 'public.orders' not found in the catalog. Asset 'orders' was not materialized yet")
    assert "materialize it first" in message
    assert "auto_create_tables" not in message


def test_hourly_partitions_on_a_date_column(warehouse: Warehouse) -> None:
    @asset(
        partitions_def=HourlyPartitionsDefinition("2024-01-01-00:00"), metadata=iceberg_settings(partition_expr="day")
    )
    def orders() -> Any:
        return warehouse.frame({"day": [date(2024, 1, 1)]}, pa.schema([("day", pa.date32())]))

    result = warehouse.run(orders, "2024-01-01-01:00", raise_on_error=False)

    assert failure_of(result, "orders").startswith(
        "Partition column 'day' is a date, but several partitions start on the same day and would contain the same "
        "rows. Use a timestamp column, or daily partitions."
    )
    assert not warehouse.exists("orders")
