"""What an input loads when the partitions of two assets are not the same."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from dagster import (
    AllPartitionMapping,
    AssetExecutionContext,
    AssetIn,
    AssetsDefinition,
    DailyPartitionsDefinition,
    LastPartitionMapping,
    MultiPartitionsDefinition,
    MultiToSingleDimensionPartitionMapping,
    PartitionMapping,
    StaticPartitionsDefinition,
    TableColumn,
    TableSchema,
    TimeWindowPartitionMapping,
    WeeklyPartitionsDefinition,
    asset,
)
from support.io_results import failure_of
from support.table_facts import to_path
from support.warehouse import Warehouse

pytestmark = pytest.mark.requirement("S2-FR-039", "S2-US8.2", "S4-load_input")

DAYS = DailyPartitionsDefinition("2024-01-01", end_date="2024-01-15")
THE_DAY_BEFORE = TimeWindowPartitionMapping(start_offset=-1, end_offset=-1)


@pytest.fixture
def days(warehouse: Warehouse) -> AssetsDefinition:
    """Fourteen days of one row each."""

    @asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def days(context: AssetExecutionContext) -> Any:
        return warehouse.frame({"day": [date.fromisoformat(key) for key in context.partition_keys]})

    warehouse.run(days, key_range=("2024-01-01", "2024-01-14"))
    return days


def load(
    warehouse: Warehouse, days: AssetsDefinition, mapping: PartitionMapping | None, key: str | None, by: Any
) -> Sequence[int]:
    loaded: list[int] = []

    @asset(partitions_def=by, ins={"days": AssetIn(partition_mapping=mapping)})
    def report(days: warehouse.frame_type) -> None:
        loaded.extend(sorted(day.day for day in warehouse.to_arrow(days)["day"].to_pylist()))

    warehouse.run([days, report], key, selection=[report])
    return loaded


def test_the_same_partition(warehouse: Warehouse, days: AssetsDefinition) -> None:
    assert load(warehouse, days, None, "2024-01-03", DAYS) == [3]


@pytest.mark.lakes
@pytest.mark.requirement("S2-US6.3", "S2-FR-036")
def test_files_of_other_partitions_are_not_opened(warehouse: Warehouse, days: AssetsDefinition) -> None:
    for file in warehouse.table("days").inspect.files().to_pylist():
        if file["partition"]["day_day"] != date(2024, 1, 3):
            to_path(file["file_path"]).unlink()

    assert load(warehouse, days, None, "2024-01-03", DAYS) == [3]


def test_the_partition_before(warehouse: Warehouse, days: AssetsDefinition) -> None:
    assert load(warehouse, days, THE_DAY_BEFORE, "2024-01-03", DAYS) == [2]


def test_the_last_three_partitions(warehouse: Warehouse, days: AssetsDefinition) -> None:
    assert load(warehouse, days, TimeWindowPartitionMapping(start_offset=-2), "2024-01-09", DAYS) == [7, 8, 9]


def test_the_last_partition(warehouse: Warehouse, days: AssetsDefinition) -> None:
    assert load(warehouse, days, LastPartitionMapping(), "2024-01-03", DAYS) == [14]


def test_all_partitions(warehouse: Warehouse, days: AssetsDefinition) -> None:
    assert load(warehouse, days, AllPartitionMapping(), "2024-01-03", DAYS) == list(range(1, 15))


def test_all_partitions_for_an_asset_without_partitions(warehouse: Warehouse, days: AssetsDefinition) -> None:
    assert load(warehouse, days, None, None, None) == list(range(1, 15))


def test_the_days_of_a_week(warehouse: Warehouse, days: AssetsDefinition) -> None:
    assert load(warehouse, days, None, "2024-01-07", WeeklyPartitionsDefinition("2024-01-07")) == list(range(7, 14))


def test_one_day_for_every_pair_that_has_it(warehouse: Warehouse, days: AssetsDefinition) -> None:
    both = MultiPartitionsDefinition({"day": DAYS, "region": StaticPartitionsDefinition(["eu", "us"])})

    assert load(warehouse, days, None, "2024-01-05|eu", both) == [5]


def test_every_pair_that_has_a_day(warehouse: Warehouse) -> None:
    loaded: list[Any] = []
    both = MultiPartitionsDefinition({"day": DAYS, "region": StaticPartitionsDefinition(["eu", "us"])})

    @asset(partitions_def=both, metadata={"partition_expr": {"day": "day", "region": "region"}})
    def pairs(context: AssetExecutionContext) -> Any:
        keys = context.partition_key.keys_by_dimension
        return warehouse.frame({"day": [date.fromisoformat(keys["day"])], "region": [keys["region"]]})

    @asset(partitions_def=DAYS, ins={"pairs": AssetIn(partition_mapping=MultiToSingleDimensionPartitionMapping())})
    def report(pairs: warehouse.frame_type) -> None:
        loaded.extend(sorted(warehouse.to_arrow(pairs)["region"].to_pylist()))

    for key in ("2024-01-01|eu", "2024-01-02|eu", "2024-01-02|us"):
        warehouse.run(pairs, key)
    warehouse.run([pairs, report], "2024-01-02", selection=[report])

    assert loaded == ["eu", "us"]


def running_total(warehouse: Warehouse, seen: list[list[str]], **metadata: Any) -> AssetsDefinition:
    @asset(
        partitions_def=DAYS,
        metadata={"partition_expr": "day", **metadata},
        ins={"total": AssetIn(partition_mapping=THE_DAY_BEFORE)},
    )
    def total(context: AssetExecutionContext, total: warehouse.frame_type) -> Any:
        earlier = warehouse.to_arrow(total)
        seen.append(earlier.column_names)
        before = earlier["total"][0].as_py() if earlier.num_rows else 0
        return warehouse.frame({"day": [date.fromisoformat(context.partition_key)], "total": [before + 1]})

    return total


def test_an_asset_reads_its_own_earlier_partition(warehouse: Warehouse) -> None:
    seen: list[list[str]] = []
    total = running_total(warehouse, seen)

    for key in ("2024-01-01", "2024-01-02", "2024-01-03", "2024-01-01"):
        warehouse.run(total, key)

    assert [number for _, number in warehouse.rows("total")] == [1, 2, 3]
    assert seen == [[], ["day", "total"], ["day", "total"], ["day", "total"]]


def test_before_its_table_exists_it_reads_the_columns_that_it_declares(warehouse: Warehouse) -> None:
    seen: list[list[str]] = []
    columns = TableSchema(columns=[TableColumn("day", "date"), TableColumn("total", "long")])

    warehouse.run(running_total(warehouse, seen, **{"dagster/column_schema": columns}), "2024-01-02")

    assert seen == [["day", "total"]]


def test_a_table_that_another_asset_should_have_made_is_missed(warehouse: Warehouse) -> None:
    @asset
    def source() -> Any:
        return None

    @asset
    def report(source: warehouse.frame_type) -> None:
        del source

    result = warehouse.run([source, report], raise_on_error=False)

    assert "Table 'public.source' not found" in failure_of(result, "report")
