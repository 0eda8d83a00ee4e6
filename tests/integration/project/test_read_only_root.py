"""What pods of deploy/Dockerfile rely on: jars fetched beforehand, one writable folder, a read-only root, no home."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import printed_by
from support.read_only_root import folder_for_all, in_read_only_root

ROOT = Path(__file__).resolve().parents[3]
COMMANDS = Path(sys.executable).parent
SINCE = "2013-12-22"

pytestmark = [pytest.mark.slow, pytest.mark.requirement("D8")]


@pytest.fixture(scope="module")
def jars() -> Iterator[Path]:
    """Spark's jars as the Dockerfile fetches them."""
    with folder_for_all() as folder:
        printed_by([COMMANDS / "floe-iceberg", "jars", folder / "jars", "--for", "sqlite", "--for", "s3"], cwd=folder)
        yield folder / "jars"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The volume of a pod: the one place that can be written to."""
    with folder_for_all() as folder:
        (folder / "scratch").mkdir()
        yield folder / "scratch"


def run_in_pod(jars: Path, scratch: Path, *command: str | Path) -> str:
    """Run with the variables of the Dockerfile, whose /scratch is a folder of this machine."""
    variables = dict.fromkeys(("FLOE_SPARK_SCRATCH", "HOME", "TMPDIR"), str(scratch)) | {
        "FLOE_HOME": str(scratch / ".floe"),
        "FLOE_SPARK_JARS": str(jars),
        "PYTHONDONTWRITEBYTECODE": "1",
        "DAGSTER_DISABLE_TELEMETRY": "yes",
    }
    return printed_by(in_read_only_root(command, writable=scratch, environment=variables), cwd=ROOT)


def test_the_jars_hold_iceberg_and_what_the_storage_needs(jars: Path) -> None:
    names = [jar.name for jar in jars.iterdir()]

    assert any("iceberg-spark-runtime" in name for name in names)
    assert any("iceberg-aws-bundle" in name for name in names)


def test_the_doctor_finds_everything_in_order(jars: Path, scratch: Path) -> None:
    report = json.loads(run_in_pod(jars, scratch, COMMANDS / "floe-iceberg", "doctor", "--json"))

    assert report["healthy"] is True
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert (states["java"], states["jars"]) == ("ok", "ok")


def test_the_demo_needs_one_writable_folder_and_no_home(jars: Path, scratch: Path) -> None:
    printed = run_in_pod(jars, scratch, sys.executable, "-m", "examples.demo", "--since", SINCE)

    assert "8,705 of 8,705 flights are in the right day of New York's calendar." in printed
    # Spark's own folder is gone with it.
    assert {place.name for place in scratch.iterdir()} == {".floe", ".dagster_home"}
