"""The sensor misses no change of rows and reports none twice, over restarts, expired snapshots and rollbacks."""

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.table import Table
from support.lake import Lake
from support.observed_lake import ObservedLake, rows

from floe_dagster_iceberg import build_table_change_sensor
from floe_dagster_iceberg.table.manager import IcebergTableManager

Evaluate = Callable[[str | None], Any]


@dg.asset
def report() -> None: ...


@pytest.fixture
def table(lake: Lake) -> Table:
    return lake.catalog.create_table("bronze.t", pa.schema([("id", pa.int64())]))


def evaluator(observed: ObservedLake, target: dg.AssetsDefinition = report, **settings: Any) -> Evaluate:
    sensor = build_table_change_sensor(observed.tables, target=[target], **settings)
    definitions = dg.Definitions(assets=[target], sensors=[sensor], resources={"iceberg": observed.iceberg})

    def evaluate(cursor: str | None) -> Any:
        with dg.build_sensor_context(
            observed.instance, cursor=cursor, definitions=definitions, resources={"iceberg": observed.iceberg}
        ) as context:
            result = sensor.evaluate_tick(context)
            # What the daemon does with them.
            for event in result.asset_events or ():
                observed.instance.report_runless_asset_event(event)
            return result

    return evaluate


@pytest.fixture
def evaluate(observed: ObservedLake) -> Evaluate:
    return evaluator(observed)


def requested(result: Any) -> list[str | None]:
    return [request.run_key for request in result.run_requests or ()]


def test_the_first_look_reports_and_requests_nothing(evaluate: Evaluate, observed: ObservedLake, table: Table) -> None:
    table.append(rows(1))
    result = evaluate(None)

    assert requested(result) == []
    assert observed.materialized() == [(None, str(table.metadata.current_snapshot_id))]


def test_each_change_requests_one_run(evaluate: Evaluate, table: Table) -> None:
    cursor = evaluate(None).cursor
    table.append(rows(1))
    second = evaluate(cursor)
    third = evaluate(second.cursor)

    (request,) = second.run_requests or ()
    assert request.tags["iceberg/snapshot_id"] == str(table.metadata.current_snapshot_id)
    assert requested(third) == []
    assert "No rows have changed" in str(third.skip_message)


def test_several_changes_between_two_looks_request_one_run_with_both_ends(evaluate: Evaluate, table: Table) -> None:
    table.append(rows(1))
    first = str(table.metadata.current_snapshot_id)
    cursor = evaluate(None).cursor
    table.append(rows(2))
    table.append(rows(3))

    (request,) = evaluate(cursor).run_requests or ()
    assert request.tags["iceberg/previous_snapshot_id"] == first
    assert request.tags["iceberg/snapshot_id"] == str(table.metadata.current_snapshot_id)


def test_an_evaluation_whose_cursor_was_lost_requests_the_same_run(evaluate: Evaluate, table: Table) -> None:
    cursor = evaluate(None).cursor
    table.append(rows(1))

    assert requested(evaluate(cursor)) == requested(evaluate(cursor)) != []


def test_it_reports_a_change_once_although_the_job_did(
    evaluate: Evaluate, observed: ObservedLake, table: Table
) -> None:
    cursor = evaluate(None).cursor
    table.append(rows(1))
    observed.observe()
    result = evaluate(cursor)

    assert len(requested(result)) == 1
    assert [version for _, version in observed.materialized()].count(str(table.metadata.current_snapshot_id)) == 1


def test_compaction_requests_nothing(evaluate: Evaluate, lake: Lake, table: Table) -> None:
    table.append(rows(1))
    table.append(rows(2))
    cursor = evaluate(None).cursor
    IcebergTableManager(lake.connect()).compact_table("bronze.t")

    assert requested(evaluate(cursor)) == []


def test_every_rollback_requests_a_run(evaluate: Evaluate, lake: Lake, table: Table) -> None:
    table.append(rows(1))
    first = table.metadata.current_snapshot_id
    cursor = evaluate(None).cursor
    table.append(rows(2))
    second = table.metadata.current_snapshot_id
    assert first is not None
    assert second is not None
    keys = []
    for snapshot in (None, first, second, first):
        if snapshot is not None:
            lake.table("bronze.t").manage_snapshots().set_current_snapshot(snapshot_id=snapshot).commit()
        result = evaluate(cursor)
        cursor, keys = result.cursor, [*keys, *requested(result)]

    assert len(set(keys)) == len(keys) == 4


def test_an_expired_cursor_is_reported_and_requests_a_run(
    evaluate: Evaluate, observed: ObservedLake, lake: Lake, table: Table
) -> None:
    table.append(rows(1))
    cursor = evaluate(None).cursor
    for number in (2, 3, 4):
        table.append(rows(number))
    IcebergTableManager(lake.connect()).expire_snapshots(
        "bronze.t", older_than=datetime.now(UTC) + timedelta(seconds=1), min_snapshots_to_keep=1
    )

    assert len(requested(evaluate(cursor))) == 1
    assert "has expired" in (observed.last().description or "")


def test_a_table_that_cannot_be_looked_at_keeps_its_place(evaluate: Evaluate, lake: Lake, table: Table) -> None:
    cursor = evaluate(None).cursor
    table.append(rows(1))
    lake.catalog.rename_table("bronze.t", "bronze.away")
    lost = evaluate(cursor)
    lake.catalog.rename_table("bronze.away", "bronze.t")

    assert "was not observed" in str(lost.skip_message)
    assert len(requested(evaluate(lost.cursor))) == 1


def test_changed_partitions_are_requested(observed: ObservedLake, lake: Lake) -> None:
    schema = pa.schema([("day", pa.date32())])
    table = lake.catalog.create_table("bronze.t", schema)
    days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
    observed.tables = [dg.AssetSpec(["bronze", "t"], partitions_def=days, metadata={"partition_expr": "day"})]

    @dg.asset(partitions_def=days)
    def daily_report() -> None: ...

    evaluate = evaluator(observed, daily_report)
    cursor = evaluate(None).cursor
    table.append(pa.table({"day": [date(2024, 1, 3), date(2024, 1, 4)]}, schema=schema))

    assert [request.partition_key for request in evaluate(cursor).run_requests or ()] == ["2024-01-03", "2024-01-04"]


def test_a_day_that_has_ended_is_requested_with_the_rows_that_came_before(observed: ObservedLake, lake: Lake) -> None:
    noon = datetime.now(UTC).replace(hour=12) - timedelta(days=1)
    days = dg.DailyPartitionsDefinition(noon - timedelta(days=9))
    observed.tables = [dg.AssetSpec(["bronze", "t"], partitions_def=days, metadata={"partition_expr": "day"})]

    @dg.asset(partitions_def=days)
    def daily_report() -> None: ...

    evaluate, schema = evaluator(observed, daily_report), pa.schema([("day", pa.date32())])
    lake.catalog.create_table("bronze.t", schema).append(pa.table({"day": [noon.date()]}, schema=schema))
    cursor = json.loads(evaluate(None).cursor)
    cursor["tables"]["bronze.t"]["state"]["observed_at"] = noon.isoformat()
    result = evaluate(json.dumps(cursor))

    assert [request.partition_key for request in result.run_requests or ()] == [noon.date().isoformat()]
    assert requested(evaluate(json.dumps(cursor))) == requested(result)
    assert requested(evaluate(result.cursor)) == []
    assert len(observed.materialized()) == 1


def test_partitions_that_cannot_be_found_keep_their_place(observed: ObservedLake, lake: Lake) -> None:
    schema, days = pa.schema([("day", pa.date32())]), dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
    first, other = (lake.catalog.create_table(f"bronze.{name}", schema) for name in ("first", "other"))
    observed.tables = [
        dg.AssetSpec(["bronze", name], partitions_def=days, metadata={"partition_expr": "day"})
        for name in ("first", "other")
    ]

    @dg.asset(partitions_def=days)
    def daily_report() -> None: ...

    evaluate = evaluator(observed, daily_report)
    cursor = evaluate(None).cursor
    for number, table in enumerate((first, other), start=1):
        table.append(pa.table({"day": [date(2024, 1, number)]}, schema=schema))
    manifests = Path(first.current_snapshot().manifest_list.removeprefix("file://"))  # type: ignore[union-attr]
    away = manifests.rename(manifests.with_suffix(".away"))
    lost = evaluate(cursor)
    away.rename(manifests)
    found = evaluate(lost.cursor)

    assert [request.partition_key for request in lost.run_requests or ()] == ["2024-01-02"]
    assert [request.partition_key for request in found.run_requests or ()] == ["2024-01-01"]


def test_a_cursor_that_makes_no_sense_is_a_first_look(evaluate: Evaluate, table: Table) -> None:
    table.append(rows(1))

    assert requested(evaluate("not a cursor")) == []
