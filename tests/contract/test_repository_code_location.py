"""`definitions.py` as Dagster loads it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Runs inside the interpreter that loads the code location; `-B` keeps Python itself from writing.
# Dagster comes first: what its own import looks up about the machine is not ours to judge.
LOAD_UNDER_WATCH = """
import os, sys
import dagster

REACHES_OUT = {"socket.connect", "socket.getaddrinfo", "subprocess.Popen", "sqlite3.connect", "os.mkdir"}

def watch(event, arguments):
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if event in REACHES_OUT or (writes and arguments[0] != os.devnull):
        raise SystemExit(f"loading did {event}{arguments}")

sys.addaudithook(watch)
import definitions

assert definitions.defs.get_repository_def()
assert "pyspark" not in sys.modules, "loading imported pyspark"
"""


@pytest.mark.requirement("D9")
def test_loading_connects_to_nothing_starts_nothing_and_writes_nothing(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-B", "-c", LOAD_UNDER_WATCH],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.requirement("D1")
def test_dagster_finds_the_workspace_valid_without_java(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("dagster"), "definitions", "validate", "-w", "workspace.yaml"]
    # Nothing is on the path, and so no Java.
    environment = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "PATH"}}
    environment |= {"DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.requirement("S0-F4")
def test_the_code_location_loads_with_artifacts_that_name_no_catalog(tmp_path: Path) -> None:
    environment = {"FLOE_ARTIFACTS": str(ROOT / "tests/data/artifacts/floe_without_catalog.json")}
    run = subprocess.run(
        [sys.executable, "-c", "import definitions; assert definitions.defs.get_repository_def()"],
        cwd=ROOT,
        env={**os.environ, **environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "name no catalog" in run.stdout + run.stderr
