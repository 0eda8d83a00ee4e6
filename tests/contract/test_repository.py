"""What a fresh clone promises before anything is installed."""

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from floe_dagster_iceberg.plugins.registry import built_in
from scripts import check_changelog, fetch_spark_jars

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
# Name and version; a package may be there twice, for different versions of Python.
PINS = re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==([^ ;]+)", LOCK, re.MULTILINE)

# Put together here, so that this file does not hold what it looks for.
REGISTRY_HOSTS = (
    "pypi" + ".org",
    "python" + "hosted.org",
    "repo1" + ".maven",
    "repo" + ".maven",
    "deb" + ".debian.org",
)
MACHINE_PATHS = ("/" + "work/", "/" + "root/", "/" + "home/", "/" + "Users/")


def our_files() -> Iterator[Path]:
    """Every text that belongs to the repository; no need of git, a downloaded archive will do."""
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().split()} | {".git"}
    for top in ROOT.iterdir():
        for path in top.rglob("*") if top.is_dir() and top.name not in ignored else (top,):
            if path.is_file() and ignored.isdisjoint(path.relative_to(ROOT).parts):
                yield path


@pytest.mark.requirement("D1")
def test_the_tree_has_the_agreed_entries() -> None:
    entries = {path.name for path in ROOT.iterdir()}

    assert entries >= {
        *("pyproject.toml", "floe_dagster_iceberg", "definitions.py", "tests", "workspace.yaml", "README.md"),
        *("Makefile", "requirements.lock", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", ".ci", "examples"),
    }


@pytest.mark.requirement("S0-V")
def test_the_package_depends_on_what_it_is_built_from() -> None:
    named = {Requirement(line).name for line in PYPROJECT["project"]["dependencies"]}

    assert named >= {"dagster", "dagster-k8s", "dagster-pyspark", "pyspark"}
    assert named >= {"opentelemetry-api", "pyarrow", "pydantic", "pyiceberg", "structlog"}


def test_every_locked_package_has_hashes_and_no_address() -> None:
    entries = re.findall(r"^[a-z0-9].*?(?=^[a-z0-9]|\Z)", LOCK, re.MULTILINE | re.DOTALL)

    assert len(entries) == len(PINS)
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in LOCK


@pytest.mark.parametrize(
    "line",
    [
        *PYPROJECT["project"]["dependencies"],
        *PYPROJECT["dependency-groups"]["dev"],
        *(line for extra in ("pandas", "polars") for line in PYPROJECT["project"]["optional-dependencies"][extra]),
    ],
)
def test_the_lock_satisfies_what_pyproject_asks_for(line: str) -> None:
    requirement = Requirement(line)
    versions = [version for name, version in PINS if name == canonicalize_name(requirement.name)]

    assert versions, "Run `make lock`."
    assert all(version in requirement.specifier for version in versions), "Run `make lock`."


def test_no_file_names_a_package_registry_or_a_path_of_a_machine() -> None:
    offences = [
        (str(path.relative_to(ROOT)), word)
        for path in our_files()
        for word in (*REGISTRY_HOSTS, *MACHINE_PATHS)
        if word in path.read_text(errors="replace")
    ]

    assert offences == []


def test_the_entry_points_are_executable_and_parse() -> None:
    for shell, script in (("bash", ".ci/run"), ("sh", "scripts/setup.sh")):
        assert os.access(ROOT / script, os.X_OK)
        subprocess.run([shell, "-n", ROOT / script], check=True)


def test_make_alone_lists_every_target() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S607

    for target in ("setup", "demo", "ui", "test", "test-slow", "check", "format", "bench", "schemas", "lock", "clean"):
        assert f"  make {target} " in listed


@pytest.mark.parametrize(
    ("changelog", "complaint"),
    [
        ("# Changelog\n\n## [0.9.0] - 2026-01-31\n", "starts with 0.9.0, pyproject.toml has 1.0.0"),
        ("# Changelog\n\n## 1.0.0\n", "the first entry is '## 1.0.0'"),
        ("# Changelog\n", "the first entry is ''"),
    ],
)
def test_a_changelog_that_is_not_at_the_packages_version_is_refused(
    tmp_path: Path, changelog: str, complaint: str
) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.0.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(changelog)

    with pytest.raises(SystemExit, match=re.escape(complaint)):
        check_changelog.main(tmp_path)


def test_the_changelog_is_at_the_packages_version(capsys: pytest.CaptureFixture[str]) -> None:
    check_changelog.main()

    assert PYPROJECT["project"]["version"] in capsys.readouterr().out


def test_setup_fetches_the_jars_that_the_embedded_catalog_asks_for() -> None:
    embedded = built_in("catalog", "sql", {"uri": "sqlite:///catalog.db"})

    assert set(embedded.spark_packages()) < set(fetch_spark_jars.PACKAGES)
