"""The demo's lakehouse, served by Dagster, in a real browser. `make e2e` runs these tests."""

import json
import os
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster_page import DagsterPage
from demo_folder import ROOT, DemoFolder
from playwright.sync_api import Browser, expect, sync_playwright
from support.processes import free_port, is_listening, running, wait_until

HERE = Path(__file__).parent
PATIENCE = 90_000
# Health is measured every minute, so that a test sees a tick; everything else is as the demo has it.
EVERY_MINUTE = {"table_health": {"cron": "* * * * *"}}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("e2e")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoFolder:
    """Two weeks of the demo, built once; $FLOE_E2E_FOLDER names one that is there already."""
    if given := os.environ.get("FLOE_E2E_FOLDER"):
        return DemoFolder(Path(given))
    folder = DemoFolder(tmp_path_factory.mktemp("demo"))
    folder.build()
    return folder


@pytest.fixture(scope="session")
def address(demo: DemoFolder) -> Iterator[str]:
    """The address of webserver and daemon, as `make ui` starts them."""
    artifacts = demo.path / "artifacts.json"
    orchestrator = {"type": "dagster", "config": {"maintenance": EVERY_MINUTE}}
    artifacts.write_text(json.dumps({"plugins": {"catalog": {"type": "sql"}, "orchestrator": orchestrator}}))
    port, dagster = free_port(), str(Path(sys.executable).with_name("dagster"))
    command = [dagster, "dev", "-w", str(ROOT / "workspace.yaml"), "-h", "127.0.0.1", "-p", str(port)]
    with running(command, demo.path / "ui.log", {**demo.environment, "FLOE_ARTIFACTS": str(artifacts)}):
        wait_until(lambda: is_listening(port), seconds=180, what="dagster dev")
        _skip_the_welcome(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium of the distribution; nothing is downloaded."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "Install Chromium, as in: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[DagsterPage]:
    # A machine with two cores is busy while a code location loads or a run starts.
    expect.set_options(timeout=PATIENCE)
    tab = browser.new_page(viewport={"width": 1400, "height": 860}, device_scale_factor=2)
    tab.set_default_timeout(PATIENCE)
    yield DagsterPage(tab, address)
    tab.close()


def _skip_the_welcome(address: str) -> None:
    """Keep the UI from asking each new instance to join a community."""
    body = json.dumps({"query": "mutation { setNuxSeen }"}).encode()
    request = urllib.request.Request(f"{address}/graphql", body, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
        assert json.load(response)["data"]["setNuxSeen"]
