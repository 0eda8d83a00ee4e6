"""No data value is in what maintenance leaves behind, on both engines, on sound tables and on corrupt ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import DagsterInstance
from opentelemetry import trace
from support.canaries import Canary, CapturedOutput, capture_output, provider_into
from support.maintenance_lake import NeglectedLake, run_asset
from support.spark_session import SMALL_MACHINE
from support.table_facts import to_path

from floe_dagster_iceberg.factory import create_iceberg_resources
from floe_dagster_iceberg.maintenance.settings import MAINTENANCE_ASSETS
from floe_dagster_iceberg.models import MaintenanceOperation

pytestmark = [pytest.mark.slow, pytest.mark.requirement("S2-FR-044")]


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CapturedOutput]:
    (tmp_path / "dagster").mkdir()
    with capture_output(tmp_path / "dagster") as outputs:
        monkeypatch.setattr(trace, "get_tracer", provider_into(outputs.spans).get_tracer)
        yield outputs


def fill(lake: NeglectedLake, table: str, canary: Canary) -> None:
    lake.manager.create_namespace("bronze", if_not_exists=True)
    rows = pa.table({"id": [canary.number, 2], "name": [canary.word, "b"]})
    lake.manager.create_table(table, rows.schema)
    for _ in range(6):
        lake.manager.append(table, rows)


def damage(lake: NeglectedLake, table: str) -> None:
    """Make the content of every data file unreadable, and leave it in its place."""
    for file in lake.table(table).inspect.files()["file_path"].to_pylist():
        path = to_path(file)
        path.write_bytes(b"PAR1" + path.read_bytes()[4:-40] + b"\0" * 40)


# Py4J leaves the sockets of threads that are done to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("engine", ["pyiceberg", "spark"])
def test_maintenance_reveals_no_value_of_the_rows(
    tmp_path: Path, outputs: CapturedOutput, engine: str, capfd: pytest.CaptureFixture[str]
) -> None:
    lake, canary = NeglectedLake(tmp_path), Canary()
    fill(lake, "bronze.sound", canary)
    fill(lake, "bronze.corrupt", canary)
    damage(lake, "bronze.corrupt")
    artifacts: dict[str, Any] = lake.artifacts()
    artifacts["plugins"]["compute"] = {"type": "spark", "config": {"master": "local[2]", "conf": SMALL_MACHINE}}
    bundle = create_iceberg_resources(artifacts)
    if engine == "spark":
        # Started outside of a run, so that the run leaves it to the tests that follow.
        assert bundle["pyspark"].spark_session is not None

    with DagsterInstance.local_temp(str(outputs.folder)) as instance:
        for asset in MAINTENANCE_ASSETS:
            config = {} if asset is MaintenanceOperation.TABLE_HEALTH else {"engine": engine}
            run_asset(bundle.definitions(), asset.value, config, instance=instance)

    outputs.others["output"] = "".join(capfd.readouterr())
    assert '"status": "error"' in outputs.places()["spans"]
    assert outputs.places_with(canary) == []
