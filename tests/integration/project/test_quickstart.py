"""The quickstart, followed to the letter by someone who has nothing but a clone of the repository."""

import re
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog.sql import SqlCatalog
from support.docs_pages import DOCS, Shell, blocks_of, newcomers_variables
from support.processes import free_port, is_listening, running, wait_until

ROOT = DOCS.parent
PAGE = "quickstart.md"
RUNS = """{ runsOrError { ... on Runs { results {
    status assetSelection { path } tags { key value } assetCheckSelection { name }
} } } }"""
# The page is read in two halves, before and after the browser is opened.
UI = "dagster dev\n"


def runs_in_the_ui(shell: Shell, command: str) -> list[tuple[str, str, str | None]]:
    """What a server that the command starts shows as runs, oldest first: status, asset, partition."""
    port = free_port()
    # The commands take options from variables, so they can be run as the page has them.
    ports = {name: str(port) for name in ("DAGSTER_CLI_DEV_PORT", "DAGSTER_DG_DEV_PORT")}
    serve = ["/bin/sh", "-c", f"cd '{shell.folder}' && exec {command}"]
    with running(serve, shell.folder / "ui.log", {**shell.variables, **ports}):
        wait_until(lambda: is_listening(port), seconds=180, what=command)
        answer = requests.post(f"http://127.0.0.1:{port}/graphql", json={"query": RUNS}, timeout=60)
    return [shown(run) for run in reversed(answer.json()["data"]["runsOrError"]["results"])]


def shown(run: dict[str, Any]) -> tuple[str, str, str | None]:
    tags = {tag["key"]: tag["value"] for tag in run["tags"]}
    [asset] = run["assetSelection"]
    return run["status"], "/".join(asset["path"]), tags.get("dagster/partition")


@pytest.mark.slow
@pytest.mark.requirement("S2-SC-001", "S2-SC-002")
def test_followed_in_an_empty_environment_it_ends_in_a_ui_with_its_runs_and_in_tables(tmp_path: Path) -> None:
    shell = Shell(ROOT, newcomers_variables(tmp_path))
    done = [("SUCCESS", "orders", "2026-01-01"), ("SUCCESS", "orders", "2026-01-02"), ("SUCCESS", "revenue", None)]
    seen: dict[str, list[tuple[str, str, str | None]]] = {}

    printed = ""
    for block in blocks_of(PAGE):
        if block.title is not None:
            shell.write(block)
        elif block.code == UI:
            [newer] = re.findall(r"`(dg dev[^`]*)`", (DOCS / PAGE).read_text())
            seen = {command: runs_in_the_ui(shell, command) for command in (UI.strip(), newer)}
        elif block.language == "sh":
            printed = shell.run(block.code)

    assert seen == {"dagster dev": done, "dg dev -f definitions.py": done}
    assert "shop.costs" in printed
    project = tmp_path / "quickstart" / "shop"
    catalog = SqlCatalog("floe", uri=f"sqlite:///{project}/.floe/catalog.db")
    rows = {name: catalog.load_table(f"shop.{name}").scan().to_arrow().num_rows for name in ("orders", "costs")}
    assert rows == {"orders": 6, "costs": 6}
    # The wheel brought everything along: nothing of this repository's environment was used.
    assert (tmp_path / "quickstart" / ".venv" / "bin" / "dagster").exists()
