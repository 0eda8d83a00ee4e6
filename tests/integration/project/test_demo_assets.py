"""The demo's own promises that need no Spark: New York's days, and what is left out on purpose."""

import ast
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples import bronze, gold, silver
from examples.calendar import Calendar
from examples.raw_data import load_raw
from floe_dagster_iceberg import create_iceberg_resources


@pytest.fixture
def iceberg() -> Mapping[str, Any]:
    return create_iceberg_resources(assets=[bronze.flights])


def rows_named(month: int, day: int) -> pa.Table:
    """Flights of a day by the columns of the raw file, which know no time zone."""
    return load_raw("flights").filter((pc.field("month") == month) & (pc.field("day") == day))


@pytest.mark.parametrize(("month", "day"), [(3, 9), (3, 10), (11, 2), (11, 3), (12, 31)])
def test_a_day_of_the_demo_holds_the_flights_that_the_raw_file_names(
    iceberg: Mapping[str, Any], month: int, day: int
) -> None:
    key = f"2013-{month:02}-{day:02}"

    dg.materialize([bronze.flights], partition_key=key, resources=dict(iceberg))

    stored = iceberg["iceberg"].table_manager.scan("bronze.flights")
    assert stored.num_rows == rows_named(month, day).num_rows
    assert bronze.count_in_another_day(stored) == 0


def test_a_note_is_a_new_column_and_other_days_stay(iceberg: Mapping[str, Any]) -> None:
    config = {"ops": {"bronze__flights": {"config": {"note": "snow"}}}}
    dg.materialize([bronze.flights], partition_key="2013-02-07", resources=dict(iceberg))
    dg.materialize([bronze.flights], partition_key="2013-02-08", resources=dict(iceberg), run_config=config)

    stored = iceberg["iceberg"].table_manager.scan("bronze.flights")

    assert stored.column("note").null_count == rows_named(2, 7).num_rows
    assert stored.filter(stored.column("note").is_valid()).num_rows == rows_named(2, 8).num_rows


def test_flights_per_hour_reads_only_the_days_of_files_that_changed() -> None:
    assets = [bronze.flights, gold.flights_per_hour]
    iceberg = create_iceberg_resources(assets=assets)
    read = []
    for day in ("2013-01-15", "2013-03-09", "2013-03-10"):
        dg.materialize([bronze.flights], partition_key=day, resources=dict(iceberg))
        run = dg.materialize(assets, selection=[gold.flights_per_hour], resources=dict(iceberg))
        metadata = run.asset_materializations_for_node("gold__flights_per_hour")[0].metadata
        read.append((metadata[gold.DAYS_READ].value, metadata[gold.FLIGHTS_READ].value))
    tables = iceberg["iceberg"].table_manager

    assert read == [(1, rows_named(month, day).num_rows) for month, day in ((1, 15), (3, 9), (3, 10))]
    assert pc.sum(tables.scan("gold.flights_per_hour")["flights"]).as_py() == tables.scan("bronze.flights").num_rows


def test_a_file_that_was_cut_off_is_loaded_as_far_as_it_goes(iceberg: Mapping[str, Any]) -> None:
    config = {"ops": {"bronze__flights": {"config": {"cut_off_after": 300}}}}

    dg.materialize([bronze.flights], partition_key="2013-12-31", resources=dict(iceberg), run_config=config)

    assert iceberg["iceberg"].table_manager.scan("bronze.flights").num_rows == 300


@pytest.mark.requirement("S2-SC-008")
@pytest.mark.parametrize("layer", [bronze, silver, gold])
def test_an_asset_of_the_demo_knows_data_and_no_storage(layer: ModuleType) -> None:
    nodes = list(ast.walk(ast.parse(inspect.getsource(layer))))
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    named += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]

    known = {"dagster", "examples", "floe_dagster_iceberg", "functools", "pyarrow", "pydantic", "pyspark", "typing"}
    assert {name.partition(".")[0] for name in named} <= known
    # Of this package, what declares an asset.
    ours = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "floe_dagster_iceberg"]
    declaring = {"AuditedTable", "audited_asset", "iceberg_settings", "not_null", "unique"}
    assert {alias.name for node in ours for alias in node.names} <= declaring


def test_the_check_finds_a_flight_in_another_day() -> None:
    flights = rows_named(3, 10).slice(0, 2)
    moved = flights.set_column(flights.schema.get_field_index("day"), "day", pa.array([10, 11]))

    assert bronze.count_in_another_day(moved) == 1


def test_the_calendar_has_every_day_once() -> None:
    assert list(Calendar.since("2013-01-01").days) == bronze.NEW_YORK_DAYS.get_partition_keys()


def test_a_calendar_of_too_few_days_says_where_to_begin() -> None:
    with pytest.raises(SystemExit, match="Use 2013-12-22 or earlier"):
        Calendar.since("2013-12-25")
