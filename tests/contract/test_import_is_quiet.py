"""Loading a code location connects to nothing, writes nothing, starts nothing, and imports no engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What the public API of this package may bring along, before anything is used.
EXPENSIVE = ("pyspark", "pandas", "polars", "sqlalchemy", "requests", "pyarrow", "pyiceberg.table")

QUIET = """
import json, socket, subprocess, sys
import dagster

modules, expensive = json.loads(sys.argv[1])
happened = []

def watch(event, args):
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        happened.append(f"write {args[0]}")
    elif event in ("os.mkdir", "socket.connect", "socket.getaddrinfo", "subprocess.Popen"):
        happened.append(f"{event} {args[0]}")

sys.addaudithook(watch)
for module in modules:
    __import__(module)
loaded = [name for name in expensive if name in sys.modules]
print(json.dumps({"loaded": loaded, "happened": happened}))
"""


def load(folder: Path, *modules: str) -> dict[str, Any]:
    """Import modules in a fresh interpreter, after Dagster itself, and report what that did."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", QUIET, json.dumps([modules, EXPENSIVE])],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.requirement("D9", "S2-E1")
def test_importing_opens_no_connection_writes_no_file_and_loads_no_engine(tmp_path: Path) -> None:
    modules = [
        f"floe_dagster_iceberg{name}" for name in ("", ".resources", ".artifacts", ".plugins.registry", ".factory")
    ]

    assert load(tmp_path, *modules) == {"loaded": [], "happened": []}
    assert not list(tmp_path.iterdir())


@pytest.mark.requirement("D9", "S2-E1")
def test_a_location_with_a_broken_catalog_still_loads(tmp_path: Path) -> None:
    (tmp_path / "broken_location.py").write_text(
        "from dagster import Definitions\n"
        "from floe_dagster_iceberg.resources import IcebergResource\n"
        "iceberg = IcebergResource(catalog_type='polaris', catalog_uri='http://127.0.0.1:1', warehouse='w',\n"
        "                          client_id='a', client_secret='${NOT_SET_ANYWHERE}')\n"
        "defs = Definitions(resources={'iceberg': iceberg})\n"
        "defs.get_repository_def()\n"
    )
    assert load(tmp_path, "broken_location")["happened"] == []
