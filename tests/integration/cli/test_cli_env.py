"""`floe-iceberg env`: what a preview has written, put onto main or removed."""

from pathlib import Path

import pyarrow as pa
import pytest
from dagster import asset, materialize
from support.command_line import CommandLine

from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource


@pytest.fixture
def project(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def write(project: CommandLine, table: str, *values: int, environment: str | None = None) -> None:
    @asset(key=["shop", table])
    def rows() -> pa.Table:
        return pa.table({"id": list(values)})

    of_project = project.iceberg
    iceberg = IcebergResource(
        catalog_uri=of_project.catalog_uri, warehouse=of_project.warehouse, environment=environment
    )
    materialize([rows], resources={"io_manager": ArrowIcebergIOManager(iceberg=iceberg)})


def ids(project: CommandLine, table: str) -> list[int]:
    return sorted(project.manager.scan(f"shop.{table}")["id"].to_pylist())


@pytest.fixture
def preview(project: CommandLine) -> CommandLine:
    for table in ("orders", "items", "returns"):
        write(project, table, 1)
    for table in ("orders", "items"):
        write(project, table, 2, 3, environment="feature/prices")
    write(project, "orders", 4)
    return project


def test_environments_are_listed(preview: CommandLine) -> None:
    report = preview.json("env", "list")

    (found,) = report["environments"]
    assert found["name"].startswith("feature-prices-")
    assert found["tables"] == ["shop.items", "shop.orders"]
    assert found["name"] in preview.run("env", "list").stdout


def test_a_catalog_without_environments_says_so(project: CommandLine) -> None:
    write(project, "orders", 1)

    assert "There are no environments." in project.run("env", "list").stdout


def test_diff_shows_what_differs_from_main(preview: CommandLine) -> None:
    report = preview.json("env", "diff", "feature/prices")

    items, orders = report["tables"]
    assert (items["table"], items["rows_added"], items["rows_removed"], items["main_commits"]) == (
        "shop.items",
        2,
        0,
        0,
    )
    assert (orders["rows_in_main"], orders["rows_in_environment"], orders["rows_added"]) == (2, 3, 2)
    assert (orders["rows_removed"], orders["commits"], orders["main_commits"]) == (1, 1, 1)
    assert "shop.orders" in preview.run("env", "diff", "feature/prices").stdout


def test_publish_moves_main_of_all_tables_and_replays(preview: CommandLine) -> None:
    report = preview.json("env", "publish", "feature/prices", "--yes")

    assert report["atomic"] is True
    assert {each["table"]: each["replayed"] for each in report["tables"]} == {"shop.items": False, "shop.orders": True}
    assert (ids(preview, "items"), ids(preview, "orders"), ids(preview, "returns")) == ([1, 2, 3], [1, 2, 3, 4], [1])
    assert preview.json("env", "list") == {"environments": []}


def test_drop_leaves_no_reference(preview: CommandLine) -> None:
    write(preview, "ideas", 1, environment="feature/prices")

    result = preview.run("env", "drop", "feature/prices", "--yes")

    assert "Dropped environment" in result.stdout
    assert "shop.ideas was created by it and is empty." in result.stdout
    for table in ("orders", "items", "ideas"):
        assert set(preview.manager.load_table(f"shop.{table}").metadata.refs) == {"main"}
    assert (ids(preview, "items"), ids(preview, "orders")) == ([1], [1, 4])


@pytest.mark.parametrize("command", ["publish", "drop"])
def test_nothing_happens_without_confirmation(preview: CommandLine, command: str) -> None:
    before = preview.manager.load_table("shop.orders").metadata_location

    preview.run("env", command, "feature/prices", confirmation="n\n", exit_code=1)

    assert preview.manager.load_table("shop.orders").metadata_location == before


def test_an_unknown_environment_is_an_error_that_names_the_known_ones(preview: CommandLine) -> None:
    result = preview.run("env", "diff", "pr-99", exit_code=1)

    assert "No table has environment 'pr-99'. Environments are feature-prices-" in " ".join(result.stderr.split())
