"""Many partitions in one run: one commit, exact rows."""

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetsDefinition,
    BackfillPolicy,
    DagsterInstance,
    DailyPartitionsDefinition,
    MultiPartitionsDefinition,
    StaticPartitionMapping,
    StaticPartitionsDefinition,
    asset,
)
from support.warehouse import Warehouse

pytestmark = pytest.mark.requirement("S2-FR-040", "S2-FR-022", "S3-3c")

FIRST = date(2023, 1, 1)
DAYS = DailyPartitionsDefinition("2023-01-01", end_date="2025-01-01")
REGIONS = StaticPartitionsDefinition(["ap", "eu", "us"])


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


def daily_events(warehouse: Warehouse, run: int = 0) -> AssetsDefinition:
    @asset(partitions_def=DAYS, backfill_policy=BackfillPolicy.single_run(), metadata={"partition_expr": "day"})
    def events(context: AssetExecutionContext) -> Any:
        days = [date.fromisoformat(key) for key in context.partition_keys]
        return warehouse.frame({"day": days, "run": [run] * len(days)})

    return events


def test_a_month_in_a_single_run_is_one_commit(warehouse: Warehouse, instance: DagsterInstance) -> None:
    warehouse.run(daily_events(warehouse), "2023-01-15", instance=instance)

    result = warehouse.run(daily_events(warehouse, run=1), key_range=("2023-01-01", "2023-01-31"), instance=instance)

    metadata = warehouse.table("events").metadata
    assert len(metadata.snapshot_log) == len(metadata.snapshots) == 2
    assert warehouse.rows("events") == sorted(((FIRST + timedelta(at), 1) for at in range(31)), key=repr)
    assert len(result.asset_materializations_for_node("events")) == 31


def test_days_outside_the_range_are_untouched(warehouse: Warehouse) -> None:
    warehouse.run(daily_events(warehouse), key_range=("2023-01-01", "2023-01-09"))

    warehouse.run(daily_events(warehouse, run=1), key_range=("2023-01-04", "2023-01-06"))

    assert [run for _, run in warehouse.rows("events")] == [0, 0, 0, 1, 1, 1, 0, 0, 0]


def test_a_range_of_two_dimensions_is_every_pair_in_it(warehouse: Warehouse) -> None:
    runs = iter(range(10))
    both = MultiPartitionsDefinition({"day": DAYS, "region": REGIONS})

    @asset(partitions_def=both, metadata={"partition_expr": {"day": "day", "region": "region"}})
    def events(context: AssetExecutionContext) -> Any:
        keys = [both.get_partition_key_from_str(key).keys_by_dimension for key in context.partition_keys]
        return warehouse.frame(
            {
                "day": [date.fromisoformat(key["day"]) for key in keys],
                "region": [key["region"] for key in keys],
                "run": [next(runs)] * len(keys),
            }
        )

    warehouse.run(events, key_range=("2023-01-01|ap", "2023-01-02|us"))
    warehouse.run(events, key_range=("2023-01-01|eu", "2023-01-02|eu"))

    rows = warehouse.rows("events", "region", "run")
    assert rows == [("ap", 0), ("ap", 0), ("eu", 1), ("eu", 1), ("us", 0), ("us", 0)]


def test_rows_between_two_chosen_keys_are_not_loaded(warehouse: Warehouse) -> None:
    """What a mapping picks need not be contiguous, and no bounding box is drawn around it."""
    loaded: list[Any] = []
    weekends = StaticPartitionsDefinition(["weekend", "workday"])
    days = StaticPartitionsDefinition(["fri", "sat", "sun", "thu"])
    by_kind = StaticPartitionMapping({"sat": "weekend", "sun": "weekend", "thu": "workday", "fri": "workday"})

    @asset(partitions_def=days, metadata={"partition_expr": "day"})
    def events(context: AssetExecutionContext) -> Any:
        return warehouse.frame({"day": list(context.partition_keys)})

    @asset(partitions_def=weekends, ins={"events": AssetIn(partition_mapping=by_kind)})
    def report(events: warehouse.frame_type) -> None:
        loaded.append(sorted(warehouse.to_arrow(events)["day"].to_pylist()))

    warehouse.run(events, key_range=("fri", "thu"))
    warehouse.run([events, report], "workday", selection=[report])

    assert loaded == [["fri", "thu"]]
