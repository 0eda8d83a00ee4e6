"""`floe-iceberg plan` and `maintain`: nothing happens without --execute, and then what the assets would do."""

import hashlib
import shlex
from pathlib import Path

import pytest
from support.command_line import CommandLine


@pytest.fixture
def lake(tmp_path: Path) -> CommandLine:
    lake = CommandLine(tmp_path)
    lake.fill("bronze.events", files=6)
    lake.fill("bronze.quiet", files=1)
    return lake


def fingerprint(lake: CommandLine) -> dict[str, str]:
    files = (path for path in (lake.folder / "warehouse").rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def data_files(lake: CommandLine, name: str) -> int:
    return len(lake.table(name).inspect.files())


@pytest.mark.parametrize("command", [["plan"], ["maintain", "*", "-o", "compaction", "-o", "snapshot_expiry"]])
def test_without_execute_nothing_changes(lake: CommandLine, command: list[str]) -> None:
    before = fingerprint(lake)

    output = lake.run(*command).stdout

    assert fingerprint(lake) == before
    assert "Rewrite 6 files of 1 partition into" in output
    assert output.rstrip().endswith("floe-iceberg maintain '*' --operation compaction --execute")


def test_a_plan_ends_with_the_command_that_does_it(lake: CommandLine) -> None:
    artifacts = ["--artifacts", str(lake.artifacts)]

    *_, command = lake.run("plan", "bronze.*", "--engine", "pyiceberg", *artifacts).stdout.splitlines()
    program, *words = shlex.split(command)

    assert program == "floe-iceberg"
    assert words == [
        "maintain",
        "bronze.*",
        "--operation",
        "compaction",
        "--engine",
        "pyiceberg",
        *artifacts,
        "--execute",
    ]
    lake.run(*words)
    assert data_files(lake, "bronze.events") == 1


def test_a_plan_names_the_files_and_the_reason(lake: CommandLine) -> None:
    report = lake.json("plan", "bronze.events", "-o", "compaction")

    [entry] = report["entries"]
    [result] = entry["results"]
    assert (report["dry_run"], entry["actionable"], entry["status"]) == (True, True, "planned")
    assert result["plan"]["reason"] == "recommended"
    assert sorted(result["plan"]["files"]) == sorted(
        lake.table("bronze.events").inspect.files()["file_path"].to_pylist()
    )


def test_a_plan_covers_every_operation_and_is_brief_about_what_is_fine(lake: CommandLine) -> None:
    operations = [entry["operation"] for entry in lake.json("plan", "bronze.events")["entries"]]
    brief, full = lake.run("plan").stdout, lake.run("plan", "--all").stdout

    assert operations == ["compaction", "snapshot_expiry", "manifests", "orphan_files"]
    assert "bronze.quiet" not in brief
    assert "--all lists the reasons" in brief
    assert full.count("nothing to do") == 7


def test_execute_does_it_and_loses_no_row(lake: CommandLine) -> None:
    report = lake.json("maintain", "bronze.*", "--operation", "compaction", "--execute")

    assert [(entry["table"], entry["status"]) for entry in report["entries"]] == [
        ("bronze.events", "done"),
        ("bronze.quiet", "skipped"),
    ]
    assert data_files(lake, "bronze.events") == 1
    assert sorted(lake.table("bronze.events").scan().to_arrow()["id"].to_pylist()) == [0, 1, 2, 3, 4, 5]


def test_the_policy_is_that_of_the_artifacts(lake: CommandLine) -> None:
    maintenance = {"compaction": {"min_input_files": 7}}
    lake.write_artifacts(orchestrator={"type": "dagster", "config": {"maintenance": maintenance}})

    lake.run("maintain", "bronze.events", "-o", "compaction", "--execute")

    assert data_files(lake, "bronze.events") == 6


def test_a_guardrail_that_stops_an_operation_is_reported(lake: CommandLine) -> None:
    lake.fill("bronze.kept", files=3, properties={"gc.enabled": "false"})

    output = lake.run("maintain", "bronze.kept", "-o", "snapshot_expiry", "--execute").stdout

    assert "blocked" in output
    assert "gc_disabled" in output
    assert len(lake.table("bronze.kept").snapshots()) == 3


def test_a_table_that_fails_does_not_stop_the_others(lake: CommandLine) -> None:
    lake.fill("bronze.broken", files=1)
    lake.lose_metadata("bronze.broken")

    output = lake.run("maintain", "bronze.*", "-o", "compaction", "--execute", exit_code=1).stdout

    assert "failed" in output
    assert data_files(lake, "bronze.events") == 1


def test_a_table_that_is_named_must_be_there(lake: CommandLine) -> None:
    assert "'bronze.nothing' not found" in lake.run("plan", "bronze.nothing", exit_code=1).stderr
    assert "No table matches 'nothing.*'" in lake.run("plan", "nothing.*", exit_code=1).stderr


def test_an_unknown_operation_is_refused_with_the_known_ones(lake: CommandLine) -> None:
    refused = lake.run("maintain", "bronze.events", "-o", "compact", exit_code=2).stderr

    assert "snapshot_expiry" in refused


def test_a_setting_of_the_artifacts_that_is_wrong_is_reported(lake: CommandLine) -> None:
    lake.write_artifacts(orchestrator={"type": "dagster", "config": {"maintenance": {"compaction": {"cron": 5}}}})

    assert "maintenance.compaction.cron: Input should be a valid string" in lake.run("plan", exit_code=1).stderr


def test_what_is_wrong_with_the_policy_is_reported_before_the_catalog_is_asked(lake: CommandLine) -> None:
    bad = {"type": "dagster", "config": {"maintenance": {"engine": "sparc"}}}
    lake.write_artifacts(catalog={"type": "rest", "config": {"uri": "http://127.0.0.1:1"}}, orchestrator=bad)

    assert "engine (artifacts): Input should be 'auto'" in lake.run("plan", exit_code=1).stderr


def test_the_plan_of_one_table_shows_what_the_policy_decided(lake: CommandLine) -> None:
    lake.fill("bronze.kept", files=1, properties={"floe.maintenance.expiry.max-age": "30d"})

    output = " ".join(lake.run("plan", "bronze.kept").stdout.split())
    entries = lake.json("plan", "bronze.kept", "-o", "snapshot_expiry")["entries"]

    assert "expiry.max_age 30 days table property" in output
    assert {"name": "expiry.max_age", "value": "30 days", "source": "table property"} in entries[0]["policy"]


def test_a_table_that_is_named_and_broken_is_reported_as_failed(lake: CommandLine) -> None:
    lake.lose_metadata("bronze.quiet")

    [entry] = lake.json("maintain", "bronze.quiet", "-o", "compaction", "--execute", exit_code=1)["entries"]

    assert (entry["status"], entry["note"].partition(":")[0]) == ("failed", "StaleTableMetadataError")
