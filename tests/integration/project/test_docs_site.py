"""The documentation site as it is built: strictly, complete, and without another host."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mkdocstrings import Inventory

import floe_dagster_iceberg
from floe_dagster_iceberg import FloeStorageError

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = floe_dagster_iceberg.__name__


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def public_members(cls: type) -> set[str]:
    """Methods and properties that are ours; Dagster's and Pydantic's are theirs to document."""
    members = {name: getattr(value, "fget", value) for name, value in inspect.getmembers(cls) if name[0] != "_"}
    return {
        name
        for name, value in members.items()
        if (inspect.isfunction(value) or inspect.ismethod(value)) and value.__module__.startswith(PACKAGE)
    }


@pytest.mark.slow
def test_every_public_name_and_every_public_method_is_in_the_api_pages(site: Path) -> None:
    with (site / "objects.inv").open("rb") as file:
        documented = Inventory.parse_sphinx(file)
    names = [f"{PACKAGE}.{name}" for name in floe_dagster_iceberg.__all__]
    for name in floe_dagster_iceberg.__all__:
        value = getattr(floe_dagster_iceberg, name)
        # Errors share the members of their base class, which documents them.
        if inspect.isclass(value) and (value is FloeStorageError or not issubclass(value, FloeStorageError)):
            names += [f"{PACKAGE}.{name}.{member}" for member in public_members(value)]

    assert len(names) > 200
    assert [name for name in names if name not in documented] == []


@pytest.mark.slow
def test_pages_look_the_same_as_on_github_and_load_nothing_from_elsewhere(site: Path) -> None:
    pages = {str(page.relative_to(site)): page.read_text() for page in site.rglob("*.html")}
    body = {name: re.sub(r"<(pre|code)\b.*?</\1>", "", text, flags=re.DOTALL) for name, text in pages.items()}

    # Lists and tables that GitHub shows, but Python-Markdown takes for text.
    assert [name for name, text in body.items() if re.search(r"(<p>|\n)(- |\d\. |\|[ -])", text)] == []
    outside = r'<(?:script|img|iframe|source)[^>]+src="https?:|<link[^>]+href="https?:'
    assert [name for name, text in pages.items() if re.search(outside, text)] == []


@pytest.mark.slow
def test_files_that_pages_link_to_are_part_of_the_site(site: Path) -> None:
    shipped = {path.name for path in (site / "files" / "deploy").iterdir()}

    assert shipped >= {"Dockerfile", "artifacts.yaml", "values.yaml"}
    assert (site / "schemas" / "MaintenancePolicy.json").exists()
    assert "0.1.0" in (site / "changelog.html").read_text()
