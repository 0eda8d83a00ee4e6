"""What the pages of docs/ show is what happens."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command_line import CommandLine

from floe_dagster_iceberg import errors
from floe_dagster_iceberg.artifacts import CompiledArtifacts
from floe_dagster_iceberg.cli.app import main

DOCS = Path(__file__).resolve().parents[3] / "docs"
DEPLOY = DOCS.with_name("deploy")
PAGES = ("quickstart.md", "schema-evolution.md", "time-travel.md", "migration.md", "troubleshooting.md")
# By every name that they have.
ERRORS = {
    name: error
    for name, error in vars(errors).items()
    if isinstance(error, type) and issubclass(error, errors.FloeStorageError)
}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def run_python(page: str, **names: Any) -> None:
    names["__name__"] = "docs"
    for number, block in enumerate(blocks(page, "python"), start=1):
        exec(compile(block, f"{page}, python block {number}", "exec"), names)  # noqa: S102 - the page is ours


@pytest.mark.requirement("S2-SC-001")
@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert blocks(page, "python")
    run_python(page)


def test_the_sample_artifacts_build_the_code_location_of_the_deployment_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOE_ARTIFACTS", "set by the page itself")
    artifacts_file = DEPLOY / "artifacts.yaml"

    run_python("deployment.md", artifacts_file=str(artifacts_file))

    artifacts = CompiledArtifacts.from_json_file(artifacts_file)
    assert artifacts.resource_presets.keys() == {"default", "spark", "maintenance"}
    assert artifacts.storage is not None


def test_the_deployment_page_speaks_of_every_file_of_deploy() -> None:
    named = set(re.findall(r"\]\(\.\./deploy/([\w.-]+)\)", (DOCS / "deployment.md").read_text()))

    assert named == {file.name for file in DEPLOY.iterdir()} - {"Dockerfile.dockerignore"}


def test_the_secrets_that_the_deployment_page_makes_are_those_that_pods_ask_for() -> None:
    made = {
        name: set(re.findall(r"--from-literal=([\w-]+)=", line))
        for line in "".join(blocks("deployment.md", "sh")).splitlines()
        for name in re.findall(r"create secret generic ([\w-]+)", line)
    }
    values = yaml.safe_load((DEPLOY / "values.yaml").read_text())
    [deployment] = values["dagster-user-deployments"]["deployments"]
    asked = {secret["name"] for secret in deployment["envSecrets"]} | {values["global"]["postgresqlSecretName"]}
    asked |= {volume["secret"]["secretName"] for volume in deployment["volumes"] if "secret" in volume}

    assert made.keys() == asked
    references = re.findall(r'"secret_ref": "([\w-]+)"', (DEPLOY / "artifacts.yaml").read_text())
    assert {name.upper().replace("-", "_") for name in references} == made["minio"]
    assert made["polaris"] == {"client-secret"}


def commands(page: str) -> Iterator[list[str]]:
    """Arguments of each call of `floe-iceberg` that a page shows."""
    for block in blocks(page, "sh"):
        for line in block.splitlines():
            if line.startswith("floe-iceberg "):
                yield [argument.strip("'") for argument in line.split()[1:]]


@pytest.mark.slow
def test_every_command_of_the_page_on_the_command_line_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lake = CommandLine(tmp_path)
    lake.materialize_orders()
    lake.fill("bronze.events", files=6)
    lake.manager.create_tag(
        "shop.orders", "before-sale", snapshot_id=lake.table("shop.orders").snapshots()[0].snapshot_id
    )

    shown = list(commands("command-line.md"))
    for arguments in shown:
        lake.run(*arguments)

    assert {arguments[0] for arguments in shown} == main.commands.keys() - {"init"}
    assert all(f"| `{name}" in (DOCS / "command-line.md").read_text() for name in main.commands)


@pytest.mark.requirement("S4-errors")
def test_every_error_has_an_entry_in_troubleshooting() -> None:
    headings = set(re.findall(r"^### (\w+)$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE))

    assert headings == {error.__name__ for error in ERRORS.values()}


def test_every_other_name_of_an_error_is_mentioned() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    others = {name for name, error in ERRORS.items() if name != error.__name__}

    assert others
    assert all(f"`{name}`" in page for name in others)


def test_links_between_pages_lead_somewhere() -> None:
    broken = [
        (page.name, target)
        for page in DOCS.glob("*.md")
        for target in re.findall(r"\]\(([\w./-]+\.md)\)", page.read_text())
        if not (DOCS / target).exists()
    ]

    assert broken == []


@pytest.mark.slow
@pytest.mark.requirement("S2-SC-001", "S2-SC-002")
def test_the_commands_of_the_quickstart_run_as_they_stand(tmp_path: Path) -> None:
    script = "set -e\n" + "".join(blocks("quickstart.md", "sh"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLOE_")}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "DAGSTER_DISABLE_TELEMETRY": "yes"}

    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "shop.revenue" in done.stdout
