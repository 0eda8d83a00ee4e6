"""The commands of `dg`, in a project as create-dagster lays it out."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.component_project import ComponentProject

DG = Path(sys.executable).with_name("dg")
PREFIX = "floe_dagster_iceberg.components."
ORDERS = """
import dagster as dg
import pyarrow as pa


@dg.asset(key_prefix="bronze", io_manager_key="iceberg_io_manager")
def orders() -> pa.Table:
    return pa.table({"id": [1, 2]})
"""


@pytest.mark.slow
def test_a_project_is_scaffolded_checked_listed_and_launched(tmp_path: Path) -> None:
    project = ComponentProject.create(tmp_path / "shop")
    defs = project.root / "src" / "shop" / "defs"

    listed = dg(project, "list", "components", "--json")
    for name in ("IcebergLakehouseComponent", "IcebergMaintenanceComponent", "IcebergSparkSqlComponent"):
        assert PREFIX + name in listed
    for name, folder in (("IcebergLakehouseComponent", "lakehouse"), ("IcebergSparkSqlComponent", "silver")):
        dg(project, "scaffold", "defs", PREFIX + name, folder)
    (defs / "bronze.py").write_text(ORDERS)

    assert "successfully" in dg(project, "check", "defs")
    shown = dg(project, "list", "defs", "--json")
    assert "bronze/orders" in shown
    assert "silver/orders" in shown
    dg(project, "launch", "--assets", "bronze/orders")
    assert list((tmp_path / "floe").rglob("*.parquet"))

    project.write("lakehouse", "IcebergLakehouseComponent", "catalog_tpye: rest")
    failed = dg(project, "check", "yaml", fails=True)
    assert "lakehouse/defs.yaml:3" in failed
    assert "'catalog_tpye' was unexpected" in failed


def dg(project: ComponentProject, *arguments: str, fails: bool = False) -> str:
    """Run a command as a user does, and return what it prints."""
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(project.root.parent),
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        "NO_COLOR": "1",
        "PATH": f"{DG.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(project.root / "src"),
        "VIRTUAL_ENV": str(DG.parents[1]),
    }
    done = subprocess.run(
        [DG, *arguments], capture_output=True, text=True, check=False, cwd=project.root, env=environment, timeout=180
    )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr
