"""The reference says everything: each public name, setting, key, command and variable, and what it means."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

import floe_dagster_iceberg
from floe_dagster_iceberg import models
from floe_dagster_iceberg.asset_settings import AssetSettings, InputSettings
from floe_dagster_iceberg.cli.app import main
from floe_dagster_iceberg.maintenance.policy import policy_fields, table_properties
from floe_dagster_iceberg.models import snapshot_properties
from floe_dagster_iceberg.plugins.registry import BUILT_INS
from scripts import docs_keys as keys
from scripts.docs_reference import PARTS, fill

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = {page.stem: fill(page.read_text()) for page in (DOCS / "reference").glob("*.md") if page.stem != "index"}
SETTINGS = AssetSettings.metadata_keys() | InputSettings.metadata_keys()
METADATA = {
    *keys.MATERIALIZATION,
    *keys.AUDIT,
    *keys.ENVIRONMENT_JOBS,
    *keys.FAILURE,
    *keys.MAINTENANCE,
    *keys.HEALTH,
    *keys.OBSERVATION,
    *keys.TAGS,
}


def first_column(page: str) -> set[str]:
    return set(re.findall(r"^\| `([^`]+)`", GENERATED[page], re.MULTILINE))


def texts_in_the_package() -> Iterator[str]:
    """Every text in the code; of an f-string, its pattern."""
    for path in (ROOT / "floe_dagster_iceberg").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


TEXTS = set(texts_in_the_package())


def test_every_public_name_is_on_one_page_of_the_api() -> None:
    pages = [page.read_text() for page in (DOCS / "api").glob("*.md")]
    named = [name for page in pages for name in re.findall(r"^::: floe_dagster_iceberg\.(\w+)$", page, re.MULTILINE)]

    assert sorted(named) == floe_dagster_iceberg.__all__


def test_every_generated_part_is_on_one_page() -> None:
    pages = [page.read_text() for page in (DOCS / "reference").glob("*.md")]
    shown = [name for page in pages for name in re.findall(r"^<!-- generated: ([\w ]+) -->$", page, re.MULTILINE)]

    assert sorted(shown) == sorted(PARTS)


def test_every_setting_of_an_asset_or_input_is_listed() -> None:
    assert first_column("asset-settings") == SETTINGS


def test_every_field_of_a_policy_and_every_table_property_is_listed() -> None:
    listed = first_column("maintenance-policy")
    # Two limits are one row.
    fields = {re.sub(r"\.(warn|error)$", "", name) for name in policy_fields()}

    assert fields <= listed
    assert set(table_properties().values()) <= listed
    assert {guardrail.value for guardrail in models.Guardrail} <= listed


def test_every_setting_of_every_catalog_and_storage_is_listed() -> None:
    page = GENERATED["artifacts"]
    for plugins in BUILT_INS.values():
        for name, plugin in plugins.items():
            section = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
            assert set(re.findall(r"^\| `(\w+)`", section, re.MULTILINE)) == plugin.config_type.model_fields.keys()


def test_every_command_and_option_is_listed() -> None:
    page = GENERATED["commands"]
    groups = {name: command.commands for name, command in main.commands.items() if isinstance(command, click.Group)}
    of_groups = {f"{group} {name}": command for group, own in groups.items() for name, command in own.items()}
    for name, command in {**main.commands, **of_groups}.items():
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        flags = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("-")}
        assert flags <= set(re.findall(r"`(--?[a-z-]+)`", section))


@pytest.mark.parametrize("page", GENERATED)
def test_everything_that_is_listed_is_described(page: str) -> None:
    rows = re.findall(r"^\| `.*\|$", GENERATED[page], re.MULTILINE)

    assert rows or page == "schemas"
    assert [row for row in rows if not re.split(r"(?<!\\)\|", row)[-2].strip()] == []


def test_metadata_keys_are_those_in_the_code() -> None:
    written = {text for text in TEXTS if re.fullmatch(r"iceberg/[\w*]+", text)} - SETTINGS - keys.TAGS.keys()
    patterns = [re.escape(text).replace(r"\*", r"\w+") for text in written if "*" in text]
    plain = {text for text in written if "*" not in text and not text.endswith("_")}
    # Totals of a measure are written with a suffix.
    totals = {f"{key}_{when}" for key in plain for when in ("before", "after")}

    assert plain <= METADATA
    undocumented = {key for key in METADATA if key.startswith("iceberg/")} - plain - totals - SETTINGS
    assert [key for key in undocumented if not any(re.fullmatch(pattern, key) for pattern in patterns)] == []
    for status in models.MaintenanceStatus:
        assert f"iceberg/tables_{status}" in METADATA


def test_snapshot_properties_are_those_in_the_code() -> None:
    constants = {value for name, value in vars(snapshot_properties).items() if name.isupper()}
    templates = {
        snapshot_properties.CURSOR,
        snapshot_properties.MAINTENANCE_PREFIX,
        snapshot_properties.LAST_MAINTENANCE,
    }
    of_cursors = {snapshot_properties.CURSOR.format(table="<table>")}

    assert keys.SNAPSHOT.keys() == (constants - templates) | of_cursors


def test_environment_variables_are_those_in_the_code() -> None:
    read = {text for text in TEXTS if re.fullmatch(r"FLOE_[A-Z_]+", text)} - {"FLOE_SECRET_"}

    assert {name for name in keys.ENVIRONMENT if "<" not in name} == read


def test_the_page_on_compatibility_has_the_bounds_of_the_package() -> None:
    page = (DOCS / "compatibility.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["pandas"]]
    asked += project["optional-dependencies"]["polars"]
    bounds = {re.split(r"[\[<>=]", line)[0]: re.sub(r"^[\w-]+(\[.*\])?", "", line) for line in asked}

    assert f"| Python | `{project['requires-python']}` |" in page
    names = {"Dagster": "dagster", "PyIceberg": "pyiceberg", "PyArrow": "pyarrow", "PySpark": "pyspark"}
    for shown, name in {**names, "pandas, extra": "pandas", "polars, extra": "polars"}.items():
        assert f"| {shown} | `{bounds[name]}` |" in page


def test_the_comparison_is_with_the_version_that_benchmarks_run() -> None:
    [version] = re.findall(
        r"^dagster-iceberg==(\S+)$", (ROOT / "benchmarks/peer/requirements.in").read_text(), re.MULTILINE
    )

    for page in ("comparison.md", "migration.md"):
        assert f"dagster-iceberg {version}" in (DOCS / page).read_text().replace("version ", "dagster-iceberg ")


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    navigation = yaml.safe_load(re.sub(r"!!python/\S+", "", text))["nav"]
    listed = set(re.findall(r"[\w/-]+\.md", str(navigation)))
    written = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md") if page.parent.name != "decisions"}

    assert listed == written
