"""A recompute without rows empties its partition and leaves the others."""

from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetsDefinition, DailyPartitionsDefinition, asset
from support.io_results import shown
from support.warehouse import Warehouse

pytestmark = pytest.mark.requirement("S2-FR-040", "S2-US8.4")

SCHEMA = pa.schema([("day", pa.date32()), ("amount", pa.int64())])


def days_asset(make: Callable[[], Any]) -> AssetsDefinition:
    @asset(partitions_def=DailyPartitionsDefinition("2024-01-01"), metadata={"partition_expr": "day"})
    def events() -> Any:
        return make()

    return events


@pytest.fixture
def filled(warehouse: Warehouse) -> Warehouse:
    for day in (1, 2):
        frame = warehouse.frame({"day": [date(2024, 1, day)], "amount": [day]}, SCHEMA)
        warehouse.run(days_asset(lambda frame=frame: frame), f"2024-01-0{day}")
    return warehouse


def test_its_rows_go_and_the_others_stay(filled: Warehouse) -> None:
    result = filled.run(days_asset(lambda: filled.frame(SCHEMA.empty_table())), "2024-01-02")

    assert filled.rows("events") == [(date(2024, 1, 1), 1)]
    assert shown(result, "events")["dagster/partition_row_count"] == 0
    assert shown(result, "events")["iceberg/operation"] == "delete"


def test_columns_without_a_type_do_no_harm(filled: Warehouse) -> None:
    filled.run(days_asset(lambda: filled.frame({"day": pa.nulls(0), "amount": pa.nulls(0)})), "2024-01-02")

    assert filled.rows("events") == [(date(2024, 1, 1), 1)]


def test_a_frame_without_columns_does_no_harm(filled: Warehouse) -> None:
    filled.run(days_asset(lambda: filled.frame({})), "2024-01-02")

    assert filled.rows("events") == [(date(2024, 1, 1), 1)]


def test_a_partition_that_was_empty_stays_empty(filled: Warehouse) -> None:
    filled.run(days_asset(lambda: filled.frame(SCHEMA.empty_table())), "2024-01-03")

    assert filled.rows("events") == [(date(2024, 1, 1), 1), (date(2024, 1, 2), 2)]


def test_the_first_run_may_be_empty(warehouse: Warehouse) -> None:
    warehouse.run(days_asset(lambda: warehouse.frame(SCHEMA.empty_table())), "2024-01-01")

    assert warehouse.rows("events") == []
    assert [field.name for field in warehouse.table("events").spec().fields] == ["day_day"]
