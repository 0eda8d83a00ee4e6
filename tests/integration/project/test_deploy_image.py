"""The image of deploy/Dockerfile: its own steps done here, and its pods' promise kept, a read-only root."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.dockerfile import Image, stages
from support.processes import printed_by
from support.read_only_root import USER, folder_for_all, in_read_only_root

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
SINCE = "2013-12-22"

pytestmark = [pytest.mark.slow, pytest.mark.requirement("D8")]


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The second stage, made of the first."""
    first, second = stages(DOCKERFILE)
    with folder_for_all() as folder:
        build, image = Image(folder / "build", ROOT), Image(folder / "image", ROOT)
        # For Spark on SQLite, which the demo below uses; bytecode would only take time.
        build.build(first, JARS_FOR="--for sqlite --for s3", UV_COMPILE_BYTECODE="0")
        image.build(second, other=build.root)
        yield image


@pytest.fixture
def scratch() -> Iterator[Path]:
    """The volume of a pod: the one place that can be written to."""
    with folder_for_all() as folder:
        (folder / "scratch").mkdir()
        yield folder / "scratch"


def run_in_pod(
    image: Image, scratch: Path, *command: str | Path, workdir: Path | None = None, **environment: str
) -> str:
    """Run as a pod of the image would, whose /scratch is a folder of this machine."""
    variables = {
        name: value.replace(str(image.inside("/scratch")), str(scratch)) for name, value in image.variables.items()
    }
    inside = in_read_only_root(command, writable=scratch, environment={**variables, **environment})
    return printed_by(inside, cwd=workdir or image.inside(""))


def test_the_image_holds_the_package_the_jars_and_the_sample(image: Image) -> None:
    jars = {jar.name for jar in image.inside("/opt/jars").iterdir()}

    assert any("iceberg-spark-runtime" in jar for jar in jars)
    assert any("iceberg-aws-bundle" in jar for jar in jars)
    assert image.inside("/app/definitions.py").is_file()
    assert image.inside("/opt/venv/bin/dagster").exists()
    assert image.user == str(USER)


def test_the_doctor_finds_the_image_in_order(image: Image, scratch: Path) -> None:
    report = json.loads(run_in_pod(image, scratch, "floe-iceberg", "doctor", "--json", FLOE_HOME=str(scratch / "floe")))

    assert report["healthy"] is True
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert (states["java"], states["jars"]) == ("ok", "ok")


def test_the_sample_runs_with_dagsters_own_commands(image: Image, scratch: Path) -> None:
    place = {"FLOE_HOME": str(scratch / "floe"), "DAGSTER_HOME": str(scratch)}
    orders = ["dagster", "asset", "materialize", "-f", "definitions.py", "--select", "orders"]

    run_in_pod(image, scratch, *orders, "--partition", "2026-01-01", **place)

    assert "public.orders" in run_in_pod(image, scratch, "floe-iceberg", "tables", **place)


def test_the_demo_needs_one_writable_folder_and_no_home(image: Image, scratch: Path) -> None:
    demo = [sys.executable, "-m", "examples.demo", "--since", SINCE]

    printed = run_in_pod(image, scratch, *demo, workdir=ROOT, FLOE_HOME=str(scratch / ".floe"))

    assert "8,705 of 8,705 flights are in the day that New York's calendar names." in printed
    # Spark's own folder is gone with it.
    assert {place.name for place in scratch.iterdir()} == {".floe", ".dagster_home"}
