"""The sensor that runs an asset until it has read all changes of its input."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from support.lake import Lake
from support.observed_lake import rows

from floe_dagster_iceberg import ArrowIcebergIOManager, build_catch_up_sensor, iceberg_settings
from floe_dagster_iceberg.errors import ValidationError


@dg.asset(key=["bronze", "t"])
def source() -> None:
    """Written by a client of PyIceberg."""


@dg.asset(
    ins={"t": dg.AssetIn(["bronze", "t"], metadata=iceberg_settings(changes="appends", changes_limit=1))},
    metadata=iceberg_settings(write_mode="append"),
)
def copy(t: pa.Table) -> pa.Table:
    return t


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def test_runs_are_requested_until_nothing_is_left(lake: Lake, instance: dg.DagsterInstance) -> None:
    table = lake.catalog.create_table("bronze.t", rows().schema)
    table.append(rows(1))
    sensor = build_catch_up_sensor([copy])
    io_manager = ArrowIcebergIOManager(iceberg=lake.place.iceberg())
    definitions = dg.Definitions(assets=[source, copy], sensors=[sensor], resources={"io_manager": io_manager})

    def evaluate() -> list[dg.RunRequest]:
        with dg.build_sensor_context(instance, definitions=definitions) as context:
            return list(sensor.evaluate_tick(context).run_requests or ())

    def run() -> Any:
        return dg.materialize([source, copy], selection=[copy], instance=instance, resources={"io_manager": io_manager})

    assert evaluate() == []
    run()
    for number in (2, 3, 4):
        table.append(rows(number))
    run()
    keys = []
    while requests := evaluate():
        assert [request.run_key for request in evaluate()] == [request.run_key for request in requests]
        (request,) = requests
        assert request.asset_selection == [copy.key]
        keys.append(request.run_key)
        run()

    assert len(keys) == len(set(keys)) == 2
    assert sorted(lake.catalog.load_table("public.copy").scan().to_arrow()["id"].to_pylist()) == [1, 2, 3, 4]


def test_it_needs_assets() -> None:
    with pytest.raises(ValidationError, match="no assets to run"):
        build_catch_up_sensor([])
