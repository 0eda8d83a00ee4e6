"""Inputs as lazy frames: what an asset asks for is part of the plan, and both engines load what either wrote."""

import io
import re
from contextlib import redirect_stdout
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from dagster import (
    AssetExecutionContext,
    AssetIn,
    AssetsDefinition,
    DailyPartitionsDefinition,
    ExecuteInProcessResult,
    asset,
    materialize,
)
from pyspark.sql import DataFrame
from support.io_results import failure_of
from support.spark_lake import EVENTS, SparkLake

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.io_managers.managers import IcebergIOManager, SparkIcebergIOManager

DAYS = DailyPartitionsDefinition("2024-01-01", end_date="2024-01-04")
SCHEMA = pa.schema(
    [("day", pa.date32()), ("id", pa.int64()), ("place", pa.struct([("x", pa.int64()), ("y", pa.int64())]))]
)


@pytest.fixture
def lake(tmp_path: Path) -> SparkLake:
    return SparkLake.open(tmp_path)


def rows_of(day: str, *ids: int) -> pa.Table:
    rows = {"day": [date.fromisoformat(day)] * len(ids), "id": list(ids), "place": [{"x": 1, "y": 2}] * len(ids)}
    return pa.table(rows, SCHEMA)


def run(lake: SparkLake, *assets: AssetsDefinition, only_spark: bool = False, **kwargs: Any) -> ExecuteInProcessResult:
    kind = SparkIcebergIOManager if only_spark else IcebergIOManager
    return materialize(
        list(assets), resources={"io_manager": kind(iceberg=lake.iceberg, pyspark=lake.pyspark)}, **kwargs
    )


def plan_of(frame: DataFrame) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        frame.explain()
    return printed.getvalue()


def load(lake: SparkLake, annotation: Any = DataFrame, partition_key: str | None = None, **settings: Any) -> Any:
    """What an asset below the events is handed."""
    handed: list[Any] = []

    @asset(
        ins={"events": AssetIn(metadata=iceberg_settings(**settings) if settings else None)},
        partitions_def=DAYS if partition_key else None,
    )
    def below(events: annotation) -> None:  # type: ignore[valid-type]
        handed.append(events)

    @asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def events() -> None: ...

    run(lake, events, below, selection=[below], partition_key=partition_key)
    return handed[0]


@pytest.fixture
def three_days(lake: SparkLake) -> SparkLake:
    lake.create(SCHEMA)
    lake.manager.evolve_partition_spec(EVENTS, add=["day(day)"])
    for number, day in enumerate(DAYS.get_partition_keys()):
        lake.manager.append(EVENTS, rows_of(day, number))
    return lake


@pytest.mark.requirement("S2-US6.3", "S2-FR-036")
def test_the_partition_is_pushed_down(three_days: SparkLake) -> None:
    frame = load(three_days, partition_key="2024-01-02")

    assert [row["id"] for row in frame.collect()] == [1]
    filters = plan_of(frame).partition("filters=")[2].partition(", runtimeFilters")[0]
    assert set(filters.split(", ")) == {"day IS NOT NULL", "day >= 19724", "day < 19725"}


@pytest.mark.requirement("S3-8")
def test_columns_and_filter_are_pushed_down(lake: SparkLake) -> None:
    @asset
    def events() -> Any:
        return lake.frame(rows_of("2024-01-01", 1, 2))

    @asset(ins={"events": AssetIn(metadata=iceberg_settings(columns=["id", "place.y"], row_filter="id > 1"))})
    def below(events: DataFrame) -> None:
        assert [tuple(row) for row in events.collect()] == [(2, (2,))]
        scan = next(line for line in plan_of(events).splitlines() if "BatchScan" in line)
        assert "filters=id IS NOT NULL, id > 1" in scan
        assert re.findall(r"(\w+)#", scan.partition("]")[0]) == ["id", "place"]

    assert run(lake, events, below).success


def test_a_column_that_is_not_there_is_named(three_days: SparkLake) -> None:
    @asset(ins={"events": AssetIn(metadata={"columns": ["idd"]})})
    def below(events: DataFrame) -> None: ...

    @asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def events() -> None: ...

    result = run(three_days, events, below, selection=[below], raise_on_error=False)

    assert "Table 'public.events' has no column 'idd'" in failure_of(result, "below")


@pytest.mark.requirement("S2-FR-023", "S2-US4.2")
@pytest.mark.parametrize("version", ["snapshot_id", "as_of", "tag", "branch"])
def test_an_earlier_version_is_read_by_its_snapshot(three_days: SparkLake, version: str) -> None:
    first = three_days.table().metadata.snapshots[0]
    three_days.manager.create_tag(EVENTS, "first", first.snapshot_id)
    three_days.manager.create_branch(EVENTS, "begin", first.snapshot_id)
    asked = {
        "snapshot_id": first.snapshot_id,
        "as_of": datetime.fromtimestamp(first.timestamp_ms / 1000, UTC).isoformat(),
        "tag": "first",
        "branch": "begin",
    }

    frame = load(three_days, **{version: asked[version]})

    assert [row["id"] for row in frame.collect()] == [0]
    assert f"snapshotId={first.snapshot_id}" in plan_of(frame)


@pytest.mark.requirement("S2-US8.2", "D3")
@pytest.mark.parametrize(
    ("annotation", "ids"),
    [
        (pa.Table, lambda rows: rows["id"].to_pylist()),
        (pd.DataFrame, lambda rows: list(rows["id"])),
        (pl.DataFrame, lambda rows: rows["id"].to_list()),
        (DataFrame, lambda rows: [row["id"] for row in rows.collect()]),
    ],
)
def test_what_spark_wrote_is_loaded_as_anything_per_partition(lake: SparkLake, annotation: Any, ids: Any) -> None:
    seen: list[Any] = []

    @asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def events(context: AssetExecutionContext) -> DataFrame:
        return lake.frame(rows_of(context.partition_key, int(context.partition_key[-1])))

    @asset(partitions_def=DAYS)
    def below(events: annotation) -> None:  # type: ignore[valid-type]
        seen.extend(ids(events))

    for key in ("2024-01-01", "2024-01-02"):
        run(lake, events, below, only_spark=True, partition_key=key)

    assert seen == [1, 2]


@pytest.mark.requirement("S2-US8.2", "D3")
def test_what_arrow_wrote_is_loaded_as_a_frame_per_partition(lake: SparkLake) -> None:
    seen: list[int] = []

    @asset(partitions_def=DAYS, metadata={"partition_expr": "day"})
    def events(context: AssetExecutionContext) -> pa.Table:
        return rows_of(context.partition_key, int(context.partition_key[-1]))

    @asset(partitions_def=DAYS)
    def below(events: DataFrame) -> None:
        seen.extend(row["id"] for row in events.collect())

    for key in ("2024-01-01", "2024-01-02"):
        run(lake, events, below, partition_key=key)

    assert seen == [1, 2]


def test_an_input_without_annotation_is_a_frame_for_the_spark_manager(lake: SparkLake) -> None:
    @asset
    def events() -> Any:
        return lake.frame({"id": [1]})

    @asset
    def below(events: Any) -> None:
        assert isinstance(events, DataFrame)

    assert run(lake, events, below, only_spark=True).success


@pytest.mark.requirement("D3")
@pytest.mark.parametrize(
    "value", [[1], pd.DataFrame({"id": [1]}), pa.table({"id": [1]})], ids=lambda value: type(value).__name__
)
def test_other_types_are_refused_by_naming_the_one_that_fits(lake: SparkLake, value: Any) -> None:
    @asset
    def events() -> Any:
        return value

    result = run(lake, events, only_spark=True, raise_on_error=False)

    assert "which SparkIcebergIOManager cannot write to 'public.events'" in failure_of(result, "events")
    assert "Return one of: pyspark.sql.DataFrame." in failure_of(result, "events")


def test_an_annotation_that_no_engine_can_load_is_refused(lake: SparkLake) -> None:
    @asset
    def events() -> Any:
        return lake.frame({"id": [1]})

    @asset
    def below(events: int) -> None: ...

    result = run(lake, events, below, only_spark=True, raise_on_error=False)

    assert "Annotate it as one of: pyspark.sql.DataFrame, pyarrow.Table" in failure_of(result, "below")


@pytest.mark.requirement("S2-FR-027")
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_times_do_not_shift_between_the_engines(lake: SparkLake, zone: str) -> None:
    lake.session.conf.set("spark.sql.session.timeZone", zone)
    instant = datetime(2024, 3, 10, 6, 59, 59, 999999, tzinfo=UTC)
    wall_clock = datetime(2024, 3, 10, 2, 30)  # noqa: DTZ001 - a time that New York's clocks never showed

    @asset
    def events() -> Any:
        return lake.session.sql(
            "SELECT TIMESTAMP'2024-03-10 06:59:59.999999Z' AS at, TIMESTAMP_NTZ'2024-03-10 02:30:00' AS clock"
        )

    run(lake, events)

    assert {field.name: str(field.field_type) for field in lake.table().schema().fields} == {
        "at": "timestamptz",
        "clock": "timestamp",
    }
    assert lake.rows() == [(instant, wall_clock)]
    assert (
        lake.session.table("floe.public.events")
        .where("at = TIMESTAMP'2024-03-10 06:59:59.999999Z' AND clock = TIMESTAMP_NTZ'2024-03-10 02:30:00'")
        .count()
        == 1
    )
