"""Late rows and NULLs: an error, dropped or allowed, as the asset says, and counted."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from dagster import AssetsDefinition, DailyPartitionsDefinition, asset
from support.io_results import failure_of, shown
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-FR-040", "S2-FR-026", "S4-handle_output", "D4")

TODAY, YESTERDAY = date(2024, 1, 2), date(2024, 1, 1)
MIXED = [TODAY, YESTERDAY, None, TODAY]


def days_asset(warehouse: Warehouse, days: Sequence[date | None], **settings: Any) -> AssetsDefinition:
    @asset(
        partitions_def=DailyPartitionsDefinition("2024-01-01"),
        metadata=iceberg_settings(partition_expr="day", **settings),
    )
    def events() -> Any:
        return warehouse.frame({"day": days, "amount": list(range(len(days)))})

    return events


def test_they_are_an_error_unless_the_asset_says_otherwise(warehouse: Warehouse) -> None:
    warehouse.run(days_asset(warehouse, [TODAY]), "2024-01-02")
    before = warehouse.table("events").metadata_location

    result = warehouse.run(days_asset(warehouse, MIXED), "2024-01-02", raise_on_error=False)

    assert failure_of(result, "events") == (
        "2 rows for 'public.events' lie outside the partition being written (day from 2024-01-02 to before 2024-01-03 "
        "in UTC; 1 of them NULL there). Filter them in the asset, or set metadata "
        '{"iceberg/rows_outside_partition": "drop"} or "allow".'
    )
    assert warehouse.table("events").metadata_location == before


def test_dropped_rows_are_counted(warehouse: Warehouse) -> None:
    events = days_asset(warehouse, MIXED, rows_outside_partition="drop")

    result = warehouse.run(events, "2024-01-02")

    assert warehouse.rows("events") == [(TODAY, 0), (TODAY, 3)]
    assert shown(result, "events")["iceberg/rows_dropped"] == 2
    assert shown(result, "events")["dagster/partition_row_count"] == 2


def test_allowed_rows_are_written_and_counted(warehouse: Warehouse) -> None:
    events = days_asset(warehouse, MIXED, rows_outside_partition="allow")

    result = warehouse.run(events, "2024-01-02")

    assert len(warehouse.rows("events")) == 4
    assert "iceberg/rows_dropped" not in shown(result, "events")
    assert shown(result, "events")["iceberg/rows_outside_partition"] == 2
    assert shown(result, "events")["dagster/partition_row_count"] == 2


def test_a_late_row_does_not_replace_the_day_it_belongs_to(warehouse: Warehouse) -> None:
    warehouse.run(days_asset(warehouse, [YESTERDAY]), "2024-01-01")

    warehouse.run(days_asset(warehouse, [TODAY, YESTERDAY], rows_outside_partition="allow"), "2024-01-02")

    assert warehouse.rows("events") == [(YESTERDAY, 0), (YESTERDAY, 1), (TODAY, 0)]


def test_the_io_manager_may_say_it_for_all_assets(warehouse: Warehouse) -> None:
    lenient = warehouse.with_settings(rows_outside_partition="drop")

    result = lenient.run(days_asset(warehouse, MIXED), "2024-01-02")

    assert shown(result, "events")["iceberg/rows_dropped"] == 2


def test_the_rule_holds_for_appends_too(warehouse: Warehouse) -> None:
    events = days_asset(warehouse, [YESTERDAY], write_mode="append")

    assert not warehouse.run(events, "2024-01-02", raise_on_error=False).success
    assert not warehouse.exists("events")


def test_without_partitions_every_row_belongs(warehouse: Warehouse) -> None:
    @asset
    def events() -> Any:
        return warehouse.frame({"day": MIXED})

    result = warehouse.run(events)

    assert len(warehouse.rows("events")) == 4
    assert "iceberg/rows_outside_partition" not in shown(result, "events")
