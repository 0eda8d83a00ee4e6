"""One materialization is one new version of the table with one snapshot, whatever happened in it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetsDefinition, DailyPartitionsDefinition, asset
from services.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = pytest.mark.requirement("S2-FR-022", "S2-US5.1")

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def daily_events(warehouse: Warehouse, rows: pa.Table, **settings: Any) -> AssetsDefinition:
    @asset(
        partitions_def=DailyPartitionsDefinition("2024-01-01"),
        metadata=iceberg_settings(partition_expr="ts", **settings),
    )
    def events() -> Any:
        return warehouse.frame(rows)

    return events


def rows_at(*moments: datetime, **columns: list[Any]) -> pa.Table:
    return pa.table({"ts": pa.array(moments, pa.timestamp("us", "UTC")), **columns})


def versions(warehouse: Warehouse) -> tuple[int, int]:
    metadata = warehouse.table("events").metadata
    return len(metadata.metadata_log) + 1, len(metadata.snapshots)


def test_creating_the_table_and_filling_it(warehouse: Warehouse) -> None:
    warehouse.run(daily_events(warehouse, rows_at(NOON), properties={"owner": "sales"}), "2024-01-01")

    assert versions(warehouse) == (1, 1)


def test_replacing_a_partition(warehouse: Warehouse) -> None:
    for _ in range(2):
        warehouse.run(daily_events(warehouse, rows_at(NOON)), "2024-01-01")

    assert versions(warehouse) == (2, 2)


def test_replacing_rows_of_files_that_straddle_the_partition(warehouse: Warehouse) -> None:
    both_days = rows_at(NOON, NOON + timedelta(days=1))
    settings: Any = {"partition_spec": [], "rows_outside_partition": "allow"}
    warehouse.run(daily_events(warehouse, both_days, **settings), "2024-01-01")

    warehouse.run(daily_events(warehouse, rows_at(NOON - timedelta(hours=1))), "2024-01-01")

    assert versions(warehouse) == (2, 2)
    assert warehouse.rows("events") == [(NOON - timedelta(hours=1),), (NOON + timedelta(days=1),)]


def test_changing_the_schema_and_properties_along_with_the_rows(warehouse: Warehouse) -> None:
    warehouse.run(daily_events(warehouse, rows_at(NOON, id=pa.array([1], pa.int32()))), "2024-01-01")

    changed = rows_at(NOON, id=pa.array([2**40]), name=["a"])
    warehouse.run(daily_events(warehouse, changed, properties={"owner": "sales"}), "2024-01-01")

    assert versions(warehouse) == (2, 2)
    assert warehouse.rows("events", "id", "name") == [(2**40, "a")]
    assert warehouse.table("events").properties["owner"] == "sales"


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_appending_and_merging(warehouse: Warehouse, mode: str) -> None:
    keys = {"upsert_keys": "id"} if mode == "upsert" else {}
    for name in ("a", "b"):
        rows = rows_at(NOON, id=[1], name=[name])
        warehouse.run(daily_events(warehouse, rows, write_mode=mode, **keys), "2024-01-01")

    assert versions(warehouse) == (2, 2)


def test_a_refused_write_is_no_version(warehouse: Warehouse) -> None:
    warehouse.run(daily_events(warehouse, rows_at(NOON)), "2024-01-01")

    late = rows_at(NOON - timedelta(days=1), name=["a"])
    result = warehouse.run(daily_events(warehouse, late, properties={"a": "b"}), "2024-01-01", raise_on_error=False)

    assert not result.success
    assert versions(warehouse) == (1, 1)
    assert len(warehouse.table("events").schemas()) == 1


@pytest.mark.requirement("S2-FR-027")
def test_a_reader_keeps_the_version_it_began_with(warehouse: Warehouse) -> None:
    warehouse.run(daily_events(warehouse, rows_at(NOON)), "2024-01-01")
    scan = warehouse.table("events").scan()

    warehouse.run(daily_events(warehouse, rows_at(NOON, NOON)), "2024-01-01")

    assert scan.to_arrow().num_rows == 1
    assert len(warehouse.rows("events")) == 2


def test_a_merge_commit_folds_manifests_and_a_fast_append_does_not(warehouse: Warehouse) -> None:
    counts = []
    for strategy in ("fast_append", "fast_append", "fast_append", "merge_commit"):
        settings: Any = {"write_mode": "append", "commit_strategy": strategy}
        warehouse.run(daily_events(warehouse, rows_at(NOON), **settings), "2024-01-01")
        counts.append(len(warehouse.table("events").inspect.manifests()))

    assert counts == [1, 2, 3, 1]
