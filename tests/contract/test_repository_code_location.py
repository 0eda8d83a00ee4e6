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
    run = validate(tmp_path)

    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.requirement("S0-F4")
def test_artifacts_without_a_catalog_leave_a_valid_workspace(tmp_path: Path) -> None:
    run = validate(tmp_path, FLOE_ARTIFACTS=str(ROOT / "tests/data/artifacts/floe_without_catalog.json"))

    assert run.returncode == 0, run.stdout + run.stderr
    assert "name no catalog" in run.stdout + run.stderr


def validate(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """What Dagster says of the workspace; nothing on the path, and so no Java."""
    command = [Path(sys.executable).with_name("dagster"), "definitions", "validate", "-w", "workspace.yaml"]
    without_java = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "PATH"}}
    ours = {"DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "yes", **environment}
    return subprocess.run(command, cwd=ROOT, env={**without_java, **ours}, capture_output=True, text=True, check=False)
