"""The wheel as users get it: built, installed into an empty environment, and used there."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
# The build backend is one of our own locked packages, so that no build fetches another one.
BUILD = ["build", "--wheel", "--no-build-isolation", "--python", sys.executable]


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    # Neither this environment's packages nor its settings are to help.
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "FLOE_"))}
    done = subprocess.run(command, cwd=cwd, env={**own, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(BIN / "uv", *BUILD, "--out-dir", folder, ROOT, cwd=ROOT)
    [built] = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_its_types_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert "floe_dagster_iceberg/py.typed" in names
    assert {f"floe_dagster_iceberg/cli/starter/{name}" for name in ("definitions.py", "compiled_artifacts.json")} <= {
        *names
    }
    assert {name.partition("/")[0] for name in names} == {
        "floe_dagster_iceberg",
        "floe_dagster_iceberg-0.1.0.dist-info",
    }
    assert not [name for name in names if "test" in name or name.endswith(".pyc")]


@pytest.mark.slow
@pytest.mark.requirement("D1", "S2-SC-002")
def test_in_an_empty_environment_init_gives_a_project_that_dagster_finds_valid(wheel: Path, tmp_path: Path) -> None:
    environment, project = tmp_path / "venv", tmp_path / "shop"
    run(BIN / "uv", "venv", "--quiet", "--python", sys.executable, environment, cwd=tmp_path)
    # The versions that we test with; what only our tools need is a constraint and stays out.
    locked = ["--constraint", ROOT / "requirements.lock"]
    run(
        BIN / "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        environment / "bin" / "python",
        *locked,
        wheel,
        cwd=tmp_path,
    )
    settings = {"DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "yes"}

    run(environment / "bin" / "floe-iceberg", "init", project, cwd=tmp_path)
    run(environment / "bin" / "dagster", "definitions", "validate", cwd=project, **settings)
    materialize = ["asset", "materialize", "-f", "definitions.py", "--select", "orders", "--partition", "2026-01-01"]
    run(environment / "bin" / "dagster", *materialize, cwd=project, **settings)

    assert "shop.orders" in run(environment / "bin" / "floe-iceberg", "tables", cwd=project)
    assert "0.1.0" in run(environment / "bin" / "floe-iceberg", "--version", cwd=project)
