"""The resource in Dagster's own processes: one per step, configured by nothing but its JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

CANARY = "canary-b7e6-secret"
LOCATION = """
import pyarrow as pa
from dagster import Definitions, EnvVar, MaterializeResult, asset, define_asset_job, multiprocess_executor
from floe_dagster_iceberg.resources import IcebergResource


@asset
def orders(iceberg: IcebergResource) -> MaterializeResult:
    iceberg.catalog.create_namespace_if_not_exists("public")
    iceberg.table_manager.create_table("public.orders", pa.schema([("id", pa.int64())]))
    return MaterializeResult(metadata={"resource": repr(iceberg), "plugin": repr(iceberg.catalog_plugin)})


@asset(deps=[orders])
def more_orders(iceberg: IcebergResource) -> None:
    iceberg.table_manager.append("public.orders", pa.table({"id": [1, 2, 3]}))


defs = Definitions(
    assets=[orders, more_orders],
    jobs=[define_asset_job("both", executor_def=multiprocess_executor)],
    resources={
        "iceberg": IcebergResource(
            catalog_uri=EnvVar("LAKE_URI"),
            warehouse=EnvVar("LAKE_WAREHOUSE"),
            storage_properties={"s3.secret-access-key": "${LAKE_SECRET}"},
        )
    },
)
"""


@pytest.mark.slow
@pytest.mark.requirement("S0-F2", "D2", "S2-FR-046")
def test_steps_in_processes_of_their_own_share_the_tables_and_hide_the_secrets(tmp_path: Path) -> None:
    (tmp_path / "location.py").write_text(LOCATION)
    (tmp_path / "home").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "job", "execute", "-f", "location.py", "-j", "both"],
        cwd=tmp_path,
        env={
            **os.environ,
            "DAGSTER_HOME": str(tmp_path / "home"),
            "LAKE_URI": f"sqlite:///{tmp_path}/catalog.db",
            "LAKE_WAREHOUSE": str(tmp_path / "warehouse"),
            "LAKE_SECRET": CANARY,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    catalog = SqlCatalog("floe", uri=f"sqlite:///{tmp_path}/catalog.db")
    assert catalog.load_table("public.orders").scan().to_arrow().num_rows == 3
    catalog.close()
    kept = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert json.dumps("resource").encode() in kept
    assert CANARY.encode() not in kept + done.stdout.encode() + done.stderr.encode()
