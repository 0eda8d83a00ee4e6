"""A table that another tool writes, in the Dagster UI: partitions, figures, writer and time travel."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
from dagster_page import DagsterPage
from playwright.sync_api import Browser
from support.processes import free_port, is_listening, running, wait_until

from floe_dagster_iceberg import IcebergResource

LOCATION = """
import dagster as dg
from floe_dagster_iceberg import IcebergResource, build_iceberg_observations

days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-15")
events = dg.AssetSpec(
    ["landing", "events"],
    description="Clicks of the shop, written by Flink.",
    partitions_def=days,
    metadata={{"partition_expr": "day"}},
    group_name="landing",
)
iceberg = IcebergResource(catalog_uri={uri!r}, warehouse={warehouse!r})


@dg.asset(deps=[events], group_name="marts", automation_condition=dg.AutomationCondition.eager())
def visits(): ...


defs = dg.Definitions.merge(
    build_iceberg_observations([events, "landing.customers"], iceberg=iceberg), dg.Definitions(assets=[visits])
)
"""


def rows(*days: int) -> pa.Table:
    return pa.table({"day": [date(2026, 1, day) for day in days], "user": [f"u{day}" for day in days]})


@pytest.fixture
def observed_address(tmp_path: Path) -> Iterator[str]:
    """A code location whose table another tool wrote, observed twice, and its UI."""
    uri, warehouse = f"sqlite:///{tmp_path}/catalog.db", f"file://{tmp_path}/warehouse"
    home, location, port = tmp_path / "dagster", tmp_path / "location.py", free_port()
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\nnux:\n  enabled: false\n")
    location.write_text(LOCATION.format(uri=uri, warehouse=warehouse))
    tables = IcebergResource(catalog_uri=uri, warehouse=warehouse).table_manager
    tables.create_namespace("landing")
    tables.create_table("landing.events", rows(1).schema)
    tables.create_table("landing.customers", pa.schema([("id", pa.int64())]))
    by_flink = {"engine-name": "flink", "engine-version": "2.0.0", "flink.job-id": "shop-clicks"}
    scripts, environment = Path(sys.executable).parent, {**os.environ, "DAGSTER_HOME": str(home)}
    # In a process of its own: Playwright's event loop keeps Dagster from starting one in this.
    observe = [str(scripts / "dagster"), "job", "execute", "-f", str(location), "-j", "iceberg_observations_job"]
    for days in ((1, 2, 3, 4, 5, 6), (6, 7, 8)):
        tables.append("landing.events", rows(*days), snapshot_properties=by_flink)
        subprocess.run(observe, check=True, capture_output=True, env=environment)
    webserver = [str(scripts / "dagster-webserver"), "-f", str(location), "-h", "127.0.0.1", "-p", str(port)]
    with running(webserver, tmp_path / "ui.log", {"DAGSTER_HOME": str(home)}):
        wait_until(lambda: is_listening(port), seconds=120, what="the webserver")
        yield f"http://127.0.0.1:{port}"


def test_an_observed_table_shows_its_partitions_figures_and_writer(browser: Browser, observed_address: str) -> None:
    tab = browser.new_page(viewport={"width": 1500, "height": 950})
    page = DagsterPage(tab, observed_address)
    page.open("/assets/landing/events?view=events")
    page.sees("iceberg/writer")
    page.sees("flink 2.0.0 shop-clicks")
    page.sees("iceberg/time_travel")
    page.take_picture("observed")
    tab.close()
