"""What `--json` prints is a contract: fields may join, none may leave or change its name."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
from pydantic import BaseModel, TypeAdapter
from support.command_line import CommandLine

from floe_dagster_iceberg.asset_settings import InputSettings
from floe_dagster_iceberg.cli import importing, reports
from floe_dagster_iceberg.cli.app import main

TABLE = "bronze.events"

FIELDS = {
    reports.DoctorReport: {"healthy", "checks"},
    reports.Check: {"name", "state", "message"},
    reports.TablesReport: {"catalog", "tables"},
    reports.TableEntry: {"table", "rows", "data_files", "total_bytes", "snapshots", "snapshot", "error"},
    reports.SnapshotEntry: {
        "snapshot_id",
        "parent_snapshot_id",
        "committed_at",
        "operation",
        "refs",
        "added_records",
        "deleted_records",
        "total_records",
        "added_files",
        "deleted_files",
        "run_id",
        "asset_key",
        "partition_key",
    },
    reports.InspectReport: {
        "table",
        "location",
        "format_version",
        "columns",
        "partitioning",
        "sort_order",
        "properties",
        "refs",
        "health",
        "faults",
        "policy",
        "warnings",
        "snapshots",
        "readers",
    },
    reports.ReaderEntry: {"table", "snapshot_id", "behind"},
    reports.PolicyEntry: {"name", "value", "raw", "source"},
    reports.Column: {"id", "name", "type", "required", "doc"},
    reports.PartitionEntry: {"name", "transform", "column"},
    reports.RefEntry: {"name", "type", "snapshot_id"},
    reports.BreachEntry: {"message", "grave", "remedy"},
    reports.MaintenanceReport: {"dry_run", "entries"},
    reports.MaintenanceEntry: {"table", "operation", "status", "state", "actionable", "note", "results", "policy"},
    reports.RollbackReport: {"table", "rolled_back", "target", "undone"},
    reports.JarsReport: {"folder", "jars"},
    reports.StarterReport: {"folder", "files", "next_commands"},
}
REPORTS = {
    value
    for value in vars(reports).values()
    if isinstance(value, type) and issubclass(value, BaseModel) and value.__module__ == reports.__name__
}


def test_every_report_is_part_of_the_contract() -> None:
    assert FIELDS.keys() == REPORTS


@pytest.mark.parametrize("report", FIELDS, ids=lambda report: report.__name__)
def test_no_field_leaves(report: type[BaseModel]) -> None:
    assert FIELDS[report] <= report.model_fields.keys()
    assert all(field.description for field in report.model_fields.values())


@pytest.fixture
def lake(tmp_path: Path) -> CommandLine:
    lake = CommandLine(tmp_path)
    lake.fill(TABLE, files=3)
    return lake


def snapshot_ids_in(document: Any, name: str = "") -> list[Any]:
    """Every snapshot id of a document, at any depth."""
    match document:
        case dict():
            return [found for key, value in document.items() for found in snapshot_ids_in(value, key)]
        case list():
            return [found for value in document for found in snapshot_ids_in(value, name)]
        case _:
            return [document] if "snapshot_id" in name and document is not None else []


@pytest.mark.parametrize("command", [["tables"], ["inspect", TABLE], ["plan"]], ids=lambda command: command[0])
def test_snapshot_ids_are_text(lake: CommandLine, command: list[str]) -> None:
    found = snapshot_ids_in(lake.json(*command))

    assert str(lake.table(TABLE).metadata.current_snapshot_id) in found
    assert all(isinstance(snapshot_id, str) for snapshot_id in found)


def models(base: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    """Every model of the package."""
    for model in base.__subclasses__():
        if model.__module__.startswith("floe_dagster_iceberg"):
            yield model
        yield from models(model)


def test_every_model_writes_snapshot_ids_as_text() -> None:
    ids = {
        f"{model.__name__}.{name}": TypeAdapter(Annotated[field.annotation, *field.metadata, name])
        for model in models()
        for name, field in model.model_fields.items()
        # Not what is given: requests to a catalog, which takes numbers, and settings.
        if "snapshot_id" in name and not model.__name__.startswith("_") and model is not InputSettings
    }

    assert importing.ImportReport in models()
    written = {name: json.dumps(adapter.json_schema(mode="serialization")) for name, adapter in ids.items()}
    assert [name for name, schema in written.items() if "integer" in schema] == []


def test_the_current_snapshot_has_its_branches_and_tags(lake: CommandLine) -> None:
    lake.table(TABLE).manage_snapshots().create_tag(lake.table(TABLE).metadata.current_snapshot_id, "v1").commit()

    assert [entry["snapshot"]["refs"] for entry in lake.json("tables")["tables"]] == [["main", "v1"]]


def test_policy_values_are_there_as_numbers_too(lake: CommandLine) -> None:
    policy = {entry["name"]: entry for entry in lake.json("inspect", TABLE)["policy"]}

    assert (policy["expiry.max_age"]["value"], policy["expiry.max_age"]["raw"]) == ("7 days", 604_800)
    assert policy["compaction.target_file_size_bytes"]["raw"] == 2**27
    assert policy["compaction.enabled"]["raw"] is True


def commands_of(group: click.Group) -> Iterator[click.Command]:
    for command in group.commands.values():
        yield from commands_of(command) if isinstance(command, click.Group) else [command]


def test_every_command_prints_json() -> None:
    assert [each.name for each in commands_of(main) if "as_json" not in {p.name for p in each.params}] == []


@pytest.mark.parametrize("arguments", [["--yes"], []], ids=["sure", "asked"])
def test_a_rollback_reports_where_the_table_is(lake: CommandLine, arguments: list[str]) -> None:
    first, *undone = (str(snapshot.snapshot_id) for snapshot in lake.table(TABLE).snapshots())

    ran = lake.run("rollback", TABLE, "--to", first, "--json", *arguments, confirmation="y\n")

    report = json.loads(ran.stdout)
    assert (report["table"], report["rolled_back"], report["target"]["snapshot_id"]) == (TABLE, True, first)
    assert [entry["snapshot_id"] for entry in report["undone"]] == undone[::-1]


def test_init_reports_the_files_and_what_to_do_next(lake: CommandLine, tmp_path: Path) -> None:
    report = lake.json("init", str(tmp_path / "shop"))

    assert all(Path(file).is_file() for file in report["files"])
    assert "floe-iceberg tables" in report["next_commands"]
