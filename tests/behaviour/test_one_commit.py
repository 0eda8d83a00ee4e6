"""One materialization is one move of the table from one state to the next, whatever happened in it.

What an engine needs for that, besides the move, is counted too: versions of the table, and snapshots.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from dagster import AssetsDefinition, DailyPartitionsDefinition, asset
from support.warehouse import Warehouse

from floe_dagster_iceberg.asset_settings import iceberg_settings

pytestmark = [pytest.mark.requirement("S2-FR-022", "S2-US5.1"), pytest.mark.lakes]

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def daily_events(warehouse: Warehouse, rows: pa.Table, **settings: Any) -> AssetsDefinition:
    @asset(
        partitions_def=DailyPartitionsDefinition("2024-01-01"),
        metadata=iceberg_settings(partition_expr="ts", **settings),
    )
    def events() -> Any:
        return warehouse.frame(rows)

    return events


def rows_at(*timestamps: datetime, **columns: list[Any]) -> pa.Table:
    return pa.table({"ts": pa.array(timestamps, pa.timestamp("us", "UTC")), **columns})


def moves(warehouse: Warehouse) -> int:
    """How often readers of the table saw it change."""
    return len(warehouse.table("events").metadata.snapshot_log)


def versions(warehouse: Warehouse) -> tuple[int, int]:
    metadata = warehouse.table("events").metadata
    return len(metadata.metadata_log) + 1, len(metadata.snapshots)


def test_creating_the_table_and_filling_it(warehouse: Warehouse) -> None:
    warehouse.run(daily_events(warehouse, rows_at(NOON), properties={"owner": "sales"}), "2024-01-01")

    assert moves(warehouse) == 1
    assert versions(warehouse) == {"arrow": (1, 1), "spark": (2, 1)}[warehouse.engine]


def test_replacing_a_partition(warehouse: Warehouse) -> None:
    for _ in range(2):
        warehouse.run(daily_events(warehouse, rows_at(NOON)), "2024-01-01")

    assert moves(warehouse) == 2
    assert versions(warehouse) == {"arrow": (2, 2), "spark": (3, 2)}[warehouse.engine]


def test_replacing_rows_of_files_that_partially_match_the_partition(warehouse: Warehouse) -> None:
    both_days = rows_at(NOON, NOON + timedelta(days=1))
    settings: Any = {"partition_spec": [], "rows_outside_partition": "allow"}
    warehouse.run(daily_events(warehouse, both_days, **settings), "2024-01-01")

    warehouse.run(daily_events(warehouse, rows_at(NOON - timedelta(hours=1))), "2024-01-01")

    assert moves(warehouse) == 2
    assert versions(warehouse) == {"arrow": (2, 2), "spark": (6, 3)}[warehouse.engine]
    assert warehouse.rows("events") == [(NOON - timedelta(hours=1),), (NOON + timedelta(days=1),)]


def test_changing_the_schema_and_properties_along_with_the_rows(warehouse: Warehouse) -> None:
    warehouse.run(daily_events(warehouse, rows_at(NOON, id=pa.array([1], pa.int32()))), "2024-01-01")

    changed = rows_at(NOON, id=pa.array([2**40]), name=["a"])
    warehouse.run(daily_events(warehouse, changed, properties={"owner": "sales"}), "2024-01-01")

    assert moves(warehouse) == 2
    assert versions(warehouse) == {"arrow": (2, 2), "spark": (4, 2)}[warehouse.engine]
    assert warehouse.rows("events", "id", "name") == [(2**40, "a")]
    assert warehouse.table("events").properties["owner"] == "sales"


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_appending_and_merging(warehouse: Warehouse, mode: str) -> None:
    keys = {"upsert_keys": "id"} if mode == "upsert" else {}
    for name in ("a", "b"):
        rows = rows_at(NOON, id=[1], name=[name])
        warehouse.run(daily_events(warehouse, rows, write_mode=mode, **keys), "2024-01-01")

    assert moves(warehouse) == 2
    assert versions(warehouse) == {"arrow": (2, 2), "spark": (3, 2)}[warehouse.engine]


def test_a_refused_write_is_no_version(warehouse: Warehouse) -> None:
    warehouse.run(daily_events(warehouse, rows_at(NOON)), "2024-01-01")
    before = versions(warehouse)

    late = rows_at(NOON - timedelta(days=1), name=["a"])
    result = warehouse.run(daily_events(warehouse, late, properties={"a": "b"}), "2024-01-01", raise_on_error=False)

    assert not result.success
    assert versions(warehouse) == before
    assert len(warehouse.table("events").schemas()) == 1


@pytest.mark.requirement("S2-FR-027")
def test_a_reader_keeps_the_version_it_began_with(warehouse: Warehouse) -> None:
    warehouse.run(daily_events(warehouse, rows_at(NOON)), "2024-01-01")
    scan = warehouse.table("events").scan()

    warehouse.run(daily_events(warehouse, rows_at(NOON, NOON)), "2024-01-01")

    assert scan.to_arrow().num_rows == 1
    assert len(warehouse.rows("events")) == 2


@pytest.mark.requirement("S2-FR-027")
def test_an_input_keeps_the_version_it_began_with(warehouse: Warehouse) -> None:
    found: list[int] = []
    source = daily_events(warehouse, rows_at(NOON))
    warehouse.run(source, "2024-01-01")

    @asset(partitions_def=source.partitions_def)
    def report(events: warehouse.frame_type) -> None:
        warehouse.manager.append("public.events", rows_at(NOON))
        found.append(warehouse.to_arrow(events).num_rows)

    warehouse.run([source, report], "2024-01-01", selection=[report])

    assert found == [1]


def test_a_merge_commit_merges_manifests_once_there_are_as_many_as_the_table_says(warehouse: Warehouse) -> None:
    counts = []
    for _ in range(4):
        settings: Any = {
            "write_mode": "append",
            "commit_strategy": "merge_commit",
            "properties": {"commit.manifest.min-count-to-merge": 4},
        }
        warehouse.run(daily_events(warehouse, rows_at(NOON), **settings), "2024-01-01")
        counts.append(len(warehouse.table("events").inspect.manifests()))

    assert counts == [1, 2, 3, 1]
