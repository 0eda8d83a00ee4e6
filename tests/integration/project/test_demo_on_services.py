"""`make demo LAKE=rest`: the demo, unchanged, on a REST catalog, S3 and PostgreSQL, by artifacts alone."""

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from support.on_lake import PREFIX, ServedLake, open_lake
from support.processes import printed_by
from support.servers.running import BUCKET

ROOT = Path(__file__).resolve().parents[3]
# The fewest days that have every step of the demo.
SINCE = "2013-12-22"
FLIGHTS = 8_705

pytestmark = [pytest.mark.slow, pytest.mark.requirement("S2-FR-011")]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLake]:
    with open_lake("rest", tmp_path_factory.mktemp("rest")) as lake:
        yield lake


@pytest.fixture(scope="module")
def printed(lake: ServedLake) -> str:
    """The demo's output; its working directory is no project."""
    ours = {"PYTHONPATH": str(ROOT), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    command = [sys.executable, "-m", "examples.demo", "--since", SINCE]
    return printed_by(command, cwd=lake.home, environment={**os.environ, **lake.environment, **ours})


@pytest.fixture
def catalog(lake: ServedLake, printed: str) -> Iterator[RestCatalog]:
    """The tables as a plain PyIceberg client sees them."""
    assert printed
    assert lake.rest_uri is not None
    storage = {
        "s3.endpoint": lake.s3.endpoint,
        "s3.access-key-id": lake.s3.access_key_id,
        "s3.secret-access-key": lake.s3.secret_access_key,
        "s3.region": lake.s3.region,
    }
    with closing(RestCatalog("other", uri=lake.rest_uri, **storage)) as catalog:
        yield catalog


def test_the_report_is_the_same_as_on_files(printed: str) -> None:
    assert f"{FLIGHTS:,} of {FLIGHTS:,} flights are in the right day of New York's calendar." in printed
    assert "The tag 'reviewed' still reads" in printed
    assert "The audit rejected 2013-12-31 with 300 departures and left main unchanged; all 776 were" in printed
    assert "In its second run, flights_per_hour read only the days of changed files:" in printed
    assert "12 runs. Next:" in printed


def test_the_catalogs_database_names_every_table_and_its_metadata_in_the_bucket(lake: ServedLake, printed: str) -> None:
    assert printed
    rows = lake.catalog.execute("SELECT table_namespace, table_name, metadata_location FROM iceberg_tables")

    assert {namespace for namespace, _, _ in rows} == {"bronze", "silver", "gold"}
    assert len(rows) == 13
    assert all(file.startswith(f"s3://{BUCKET}/{PREFIX}/") and lake.s3.path(file).is_file() for *_, file in rows)


def test_the_bucket_holds_the_rows_and_the_disk_of_the_run_none(lake: ServedLake, catalog: RestCatalog) -> None:
    flights = catalog.load_table("bronze.flights")
    files = flights.inspect.data_files()["file_path"].to_pylist()

    assert all(lake.s3.path(file).is_file() for file in files)
    assert flights.scan(selected_fields=("carrier",)).to_arrow().num_rows == FLIGHTS
    assert not list((lake.home / ".floe").rglob("*.parquet"))
    assert not list(lake.home.rglob("*.db"))


def test_dagster_keeps_its_runs_and_materializations_in_postgresql(lake: ServedLake, catalog: RestCatalog) -> None:
    runs = [status for (status,) in lake.dagster.execute("SELECT status FROM runs")]
    snapshot = catalog.load_table("silver.departures").current_snapshot()

    # The audit of the day that was cut off is a run that fails.
    assert sorted(runs) == ["FAILURE", *["SUCCESS"] * 17]
    [(materialized,)] = lake.dagster.execute("SELECT count(*) FROM asset_keys WHERE last_materialization IS NOT NULL")
    assert materialized >= 12
    assert snapshot is not None
    assert snapshot.summary is not None
