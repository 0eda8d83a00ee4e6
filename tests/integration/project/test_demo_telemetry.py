"""The demo's own runs, watched by a collector: both engines, steps in processes of their own, from end to end."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from support.otlp_receiver import ReceivedSpan, Receiver
from support.spark_session import SMALL_MACHINE

ROOT = Path(__file__).resolve().parents[3]
DAY = "2013-03-10"


def prepare(folder: Path, endpoint: str) -> dict[str, str]:
    """The environment in which Dagster finds the demo's code location, watched."""
    home, file = folder / "dagster", folder / "artifacts.json"
    home.mkdir()
    catalog = {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    resource = {"service_name": "demo", "deployment_environment": "dev"}
    artifacts: dict[str, Any] = {
        "metadata": {"product_name": "flights", "product_version": "1.0.0"},
        "plugins": {
            "catalog": {"type": "sql", "config": {"catalog_name": "floe", **catalog}},
            "compute": {"type": "spark", "config": {"master": "local[2]", "conf": SMALL_MACHINE}},
        },
        "observability": {"telemetry": {"otlp_endpoint": endpoint, "resource_attributes": resource}},
    }
    file.write_text(json.dumps(artifacts))
    return {"FLOE_ARTIFACTS": str(file), "DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "yes"}


def dagster(folder: Path, variables: dict[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("dagster"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
    )
    assert done.returncode == 0, done.stderr


def children(spans: list[ReceivedSpan], name: str) -> set[str]:
    parents = {span.span_id for span in spans if span.name == name}
    return {span.name for span in spans if span.parent_id in parents}


@pytest.mark.slow
@pytest.mark.requirement("S2-US7.2", "S3-5", "S2-SC-007")
def test_the_demo_sends_what_it_does_to_a_collector(tmp_path: Path) -> None:
    days = 'key:"bronze/flights" or key:"bronze/weather" or key:"bronze/planes" or key:"silver/departures"'
    with Receiver.start() as receiver:
        variables = prepare(tmp_path, receiver.endpoint)
        dagster(tmp_path, variables, "job", "execute", "-m", "definitions", "-j", "reference_data")
        dagster(tmp_path, variables, "asset", "materialize", "-m", "definitions", "--select", days, "--partition", DAY)
        dagster(
            tmp_path, variables, "job", "execute", "-m", "definitions", "-j", "iceberg_maintenance_table_health_job"
        )
    spans, metrics = receiver.spans(), receiver.metrics()

    stored = [span for span in spans if span.name == "iceberg.handle_output"]
    by_asset = {span.attributes["dagster.asset_key"]: span for span in stored}
    assert by_asset.keys() == {
        *(f"bronze/{name}" for name in ("airlines", "airports", "planes", "flights", "weather")),
        "silver/departures",
    }
    assert {by_asset[key].attributes["engine"] for key in ("bronze/flights", "silver/departures")} == {"arrow", "spark"}
    assert by_asset["silver/departures"].attributes["dagster.partition_key"] == DAY
    assert {span.status for span in spans} == {1}
    assert "iceberg.commit" in children(spans, "iceberg.handle_output")
    assert {span.resource["service.name"] for span in spans} == {"demo"}
    assert {span.resource["floe.product.name"] for span in spans} == {"flights"}

    assert metrics["iceberg.records.written"][0] == "sum"
    assert metrics["iceberg.operation.duration"][0] == "histogram"
    assert metrics["iceberg.table.data_files"][0] == "gauge"
    assert {"table.identifier": "silver.departures"} in metrics["iceberg.table.data_files"][1]

    catalog = SqlCatalog("floe", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    snapshot = catalog.load_table("silver.departures").current_snapshot()
    catalog.close()
    assert snapshot is not None
    assert snapshot.summary is not None
    written = by_asset["silver/departures"]
    # The rows of an audited asset are written before its output is handled.
    [audited] = [span for span in spans if span.name == "iceberg.write_for_audit"]
    assert audited.trace_id == snapshot.summary["floe.trace-id"]
    assert written.attributes["snapshot.id"] == snapshot.snapshot_id
    assert written.attributes["dagster.run_id"] == snapshot.summary["dagster.run-id"]
