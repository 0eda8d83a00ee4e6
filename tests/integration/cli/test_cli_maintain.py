"""`floe-iceberg plan` and `maintain`: nothing happens without --execute, and then what the assets would do."""

import hashlib
import shlex
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
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

    assert operations == ["retention", "compaction", "snapshot_expiry", "manifests", "orphan_files"]
    assert "bronze.quiet" not in brief
    assert "Nothing to do for the other 9: 10 operations on 2 tables checked; --all lists the reasons." in brief
    assert full.count("nothing to do") == 9


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
    [age] = [entry for entry in entries[0]["policy"] if entry["name"] == "expiry.max_age"]
    assert (age["value"], age["raw"], age["source"]) == ("30 days", 30 * 86_400, "table property")


def test_a_table_that_is_named_and_broken_is_reported_as_failed(lake: CommandLine) -> None:
    lake.lose_metadata("bronze.quiet")

    [entry] = lake.json("maintain", "bronze.quiet", "-o", "compaction", "--execute", exit_code=1)["entries"]

    assert (entry["status"], entry["note"].partition(":")[0]) == ("failed", "StaleTableMetadataError")


def fill_odd(lake: CommandLine) -> None:
    """Tables of names that this package would not choose, by PyIceberg alone."""
    with closing(SqlCatalog("floe", uri=f"sqlite:///{lake.folder}/catalog.db")) as catalog:
        for name in (("o dd", "t"), ("bronze", "v1.0"), ("br[1]", "all*")):
            catalog.create_namespace_if_not_exists(name[:-1])
            rows, location = pa.table({"id": [1]}), f"file://{lake.folder}/warehouse/{'/'.join(name)}"
            table = catalog.create_table(name, rows.schema, location=location)
            for _ in range(8):
                table.append(rows)


def test_tables_of_other_names_are_listed_inspected_planned_and_maintained(lake: CommandLine) -> None:
    fill_odd(lake)
    names = {"o dd.t": ["o dd.t", "`o dd`.t", "o d?.*"], "bronze.`v1.0`": ["bronze.`v1.0`", "bronze.v*"]}
    names["br[1].all*"] = ["`br[1]`.`all*`", "`br[1]`.*", "br[1].all*"]

    assert names.keys() <= {entry["table"] for entry in lake.json("tables")["tables"]}
    assert names.keys() <= {entry["table"] for entry in lake.json("plan", "-o", "orphan_files")["entries"]}
    for name, spellings in names.items():
        assert lake.json("inspect", spellings[0])["table"] == name
        for spelling in spellings:
            [entry] = lake.json("tables", spelling)["tables"]
            [planned] = lake.json("plan", spelling, "-o", "compaction")["entries"]
            assert (entry["table"], planned["table"], planned["actionable"]) == (name, name, True)
        command = lake.run("plan", spellings[-1], "-o", "compaction").stdout.strip().splitlines()[-1]
        lake.run(*shlex.split(command)[1:])
        assert lake.json("inspect", spellings[0])["health"]["data_files"] == 1


IN_PYTHON = """
import dagster as dg

from floe_dagster_iceberg import ExpiryPolicy, IcebergResource, MaintenancePolicy, build_maintenance_definitions

policy = MaintenancePolicy(expiry=ExpiryPolicy(min_snapshots_to_keep=3))
iceberg = IcebergResource(catalog_uri=dg.EnvVar("SHOP_CATALOG"), warehouse="file://{folder}/warehouse")
defs = dg.Definitions.merge(dg.Definitions(resources={{"iceberg": iceberg}}), build_maintenance_definitions(policy))
"""


@pytest.fixture
def shop_module(lake: CommandLine, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module whose catalog is the lake, and which gives a policy."""
    (lake.folder / "shop_code.py").write_text(IN_PYTHON.format(folder=lake.folder))
    monkeypatch.chdir(lake.folder)
    monkeypatch.setenv("SHOP_CATALOG", f"sqlite:///{lake.folder}/catalog.db")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "shop_code", raising=False)
    return "shop_code"


def test_a_policy_given_in_python_counts(lake: CommandLine, shop_module: str) -> None:
    lake.fill("bronze.named", files=1)
    lake.artifacts.unlink()

    shown = lake.json("inspect", "bronze.named", "-m", shop_module)

    [keep] = [entry for entry in shown["policy"] if entry["name"] == "expiry.min_snapshots_to_keep"]
    assert (keep["raw"], keep["source"]) == (3, "code")


def test_the_command_that_does_it_names_the_module(lake: CommandLine, shop_module: str) -> None:
    lake.fill("bronze.small", files=12)

    assert f"--module {shop_module} --execute" in lake.run("plan", "bronze.small", "-m", shop_module).stdout


def test_doctor_checks_the_module(lake: CommandLine, shop_module: str) -> None:
    checks = {check["name"]: check for check in lake.json("doctor", "--no-spark", "-m", shop_module)["checks"]}

    assert checks["code location"]["message"] == "Module 'shop_code' loads: 6 assets."
    assert {check["state"] for check in checks.values()} == {"ok"}


def test_a_module_that_cannot_be_imported_is_reported(lake: CommandLine) -> None:
    message = lake.run("tables", "-m", "no_such_code", exit_code=1).output

    assert "Module 'no_such_code' cannot be imported" in message


def test_a_dry_run_says_where_there_is_nothing_to_do(lake: CommandLine) -> None:
    lake.fill("bronze.fine", files=1)

    entries = lake.json("plan", "bronze.fine")["entries"]

    assert {(entry["state"], entry["status"], entry["actionable"]) for entry in entries} == {
        ("nothing to do", "skipped", False)
    }
