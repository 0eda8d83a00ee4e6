"""`floe-iceberg init`: a project that loads and runs as it was written, and overwrites nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dagster import materialize

from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.cli.app import main


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the starter in it, as the working directory."""
    monkeypatch.delenv("FLOE_HOME")
    folder = tmp_path / "new" / "shop"
    assert CliRunner().invoke(main, ["init", str(folder)]).exit_code == 0
    monkeypatch.chdir(folder)
    return folder


def load(project: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "starter"}
    exec(compile((project / "definitions.py").read_text(), "definitions.py", "exec"), names)  # noqa: S102
    return names


def test_it_writes_a_project_and_nothing_else(project: Path) -> None:
    written = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}

    assert written == {"definitions.py", "workspace.yaml", ".floe/compiled_artifacts.json", ".floe/.gitignore"}


def test_the_artifacts_are_found_and_maintain_the_tables(project: Path) -> None:
    artifacts = CompiledArtifacts.from_environment()

    assert artifacts is not None
    assert artifacts == CompiledArtifacts.from_json_file(project / ".floe" / "compiled_artifacts.json")
    assert artifacts.maintenance.keys() >= {"compaction", "expiry"}
    schedules = {schedule.name for schedule in load(project)["defs"].schedules}
    assert "iceberg_maintenance_compaction_schedule" in schedules


@pytest.mark.requirement("S2-SC-008", "S0-F3")
def test_its_assets_run_without_java(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    names = load(project)
    resources = dict(names["iceberg"])

    for day in ("2026-01-01", "2026-01-02", "2026-01-01"):
        assert materialize([names["orders"]], partition_key=day, resources=resources).success
    both = [names["orders"], names["revenue"]]
    assert materialize(both, selection=[names["revenue"]], resources=resources).success

    tables = resources["iceberg"].table_manager
    assert tables.scan("shop.orders").num_rows == 6
    assert tables.scan("shop.revenue").num_rows == 2
    assert "shop.revenue" in CliRunner().invoke(main, ["tables"]).stdout


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_dagster_finds_it_valid(project: Path, tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("dagster"), "definitions", "validate"]
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    run = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr


def test_it_overwrites_nothing_and_then_writes_nothing(project: Path) -> None:
    (project / "definitions.py").unlink()
    (project / "workspace.yaml").write_text("mine")

    result = CliRunner().invoke(main, ["init", "."])

    assert result.exit_code == 1
    assert "workspace.yaml" in result.stderr
    assert (project / "workspace.yaml").read_text() == "mine"
    assert not (project / "definitions.py").exists()


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    result = CliRunner().invoke(main, ["init", str(tmp_path / "file" / "shop")])

    assert result.exit_code == 1
    assert "is not writable" in result.stderr
