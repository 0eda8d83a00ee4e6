"""Import rules that neither ruff nor import-linter can say."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "floe_dagster_iceberg"
SOURCES = [*sorted(PACKAGE.rglob("*.py")), ROOT / "definitions.py", *sorted((ROOT / "examples").rglob("*.py"))]


def imported_names(path: Path) -> Iterator[str]:
    """Dotted names of everything that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def private_names(path: Path, library: str) -> list[str]:
    names = (name.split(".") for name in imported_names(path))
    return [".".join(parts) for parts in names if parts[0] == library and any(part.startswith("_") for part in parts)]


def test_one_source_file_imports_the_one_private_part_of_dagster_that_has_no_public_name() -> None:
    found = {path.relative_to(ROOT): private for path in SOURCES if (private := private_names(path, "dagster"))}

    # An audited asset needs the context of its output before it has one: docs/decisions/0030.
    assert found == {
        Path("floe_dagster_iceberg/run_identity.py"): ["dagster._core.execution.plan.outputs.StepOutputHandle"]
    }


def test_no_source_file_postpones_its_annotations() -> None:
    assert [path for path in SOURCES if "__future__.annotations" in imported_names(path)] == []


def modules_after_importing(name: str) -> set[str]:
    code = f"import sys, {name}; print(*{{module.partition('.')[0] for module in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.requirement("S2-FR-008")
def test_table_operations_load_pyiceberg_and_neither_spark_nor_dagster() -> None:
    loaded = modules_after_importing("floe_dagster_iceberg.table.manager")

    assert "pyiceberg" in loaded
    assert loaded.isdisjoint({"pyspark", "dagster"})


def test_models_and_errors_load_no_engine() -> None:
    loaded = modules_after_importing("floe_dagster_iceberg.models, floe_dagster_iceberg.errors")

    assert loaded.isdisjoint({"pyspark", "dagster", "pyarrow"})


def distributions_imported() -> set[str]:
    """The distributions that the package imports anywhere, even in a function; OpenTelemetry's share one namespace."""
    owners = packages_distributions()
    modules = {name.partition(".")[0] for path in PACKAGE.rglob("*.py") for name in imported_names(path)}
    modules -= {*sys.stdlib_module_names, PACKAGE.name, "opentelemetry"}
    return {canonicalize_name(owner) for module in modules for owner in owners[module]}


def distributions_declared(*lists: list[str]) -> set[str]:
    names = {canonicalize_name(Requirement(text).name) for requirements in lists for text in requirements}
    return {name for name in names if not name.startswith("opentelemetry")}


def test_dependencies_are_what_is_imported_and_no_more() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = distributions_declared(project["dependencies"])
    optional = distributions_declared(*project["optional-dependencies"].values())

    assert distributions_imported() - optional <= required
    assert required <= distributions_imported()


def import_lines(path: Path) -> int:
    found = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in found)


def test_at_most_eight_percent_of_the_package_are_imports() -> None:
    files = list(PACKAGE.rglob("*.py"))
    lines = sum(len(path.read_text().splitlines()) for path in files)

    assert sum(map(import_lines, files)) <= 0.08 * lines
