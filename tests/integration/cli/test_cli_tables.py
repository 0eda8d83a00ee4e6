"""`floe-iceberg tables` and `inspect`: what they say is what the tables hold."""

from pathlib import Path

import pytest
from support.command_line import DAYS, CommandLine

CANARY = "canary-of-a-secret"


@pytest.fixture
def lake(tmp_path: Path) -> CommandLine:
    return CommandLine(tmp_path)


def test_tables_shows_sizes_and_the_last_writer(lake: CommandLine) -> None:
    *_, last = lake.materialize_orders()
    lake.fill("bronze.events", files=2)

    report = lake.json("tables")

    assert report["catalog"] == "floe"
    events, orders = report["tables"]
    assert (events["table"], events["rows"], events["data_files"], events["snapshots"]) == ("bronze.events", 2, 2, 2)
    assert events["total_bytes"] == sum(lake.table("bronze.events").inspect.files()["file_size_in_bytes"].to_pylist())
    assert (orders["rows"], orders["snapshot"]["run_id"], orders["snapshot"]["partition_key"]) == (4, last, DAYS[-1])


def test_tables_takes_a_glob(lake: CommandLine) -> None:
    lake.fill("bronze.events", files=0)
    lake.fill("silver.events", files=0)

    assert [entry["table"] for entry in lake.json("tables", "silver.*")["tables"]] == ["silver.events"]


def test_a_glob_that_matches_nothing_is_an_error_that_says_what_there_is(lake: CommandLine) -> None:
    lake.fill("bronze.events", files=0)

    message = lake.run("tables", "gold.*", exit_code=1).stderr

    assert "No table matches 'gold.*'." in message
    assert "namespaces are bronze" in message


def test_a_catalog_without_tables_is_no_error(lake: CommandLine) -> None:
    lake.manager.create_namespace("bronze")

    assert "has no tables yet" in lake.run("tables").stdout
    assert lake.json("tables")["tables"] == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("shop.order", "Did you mean 'shop.orders'?"),
        ("bronze.orders", "Did you mean 'shop.orders'?"),
        ("gold.metrics", "namespaces are shop."),
    ],
)
@pytest.mark.parametrize("command", [["inspect"], ["plan"], ["rollback", "--to", "1"]], ids=lambda words: words[0])
def test_a_table_that_is_not_there_may_have_been_meant_to_be_another(
    lake: CommandLine, command: list[str], name: str, hint: str
) -> None:
    lake.fill("shop.orders", files=0)

    message = lake.run(*command, name, exit_code=1).stderr

    assert f"Table '{name}' not found" in message
    assert hint in message


BAD_POLICY = {"type": "dagster", "config": {"maintenance": {"expiry": {"max_age": "soon"}}}}


def test_a_bad_policy_is_a_warning_to_who_only_looks(lake: CommandLine) -> None:
    lake.fill("shop.orders", files=1)
    lake.write_artifacts(orchestrator=BAD_POLICY)

    for command in (["tables"], ["inspect", "orders"]):
        seen = lake.run(*command)
        assert "shop.orders" in seen.stdout
        assert "expiry.max_age (artifacts): Input should be a duration such as '36h'" in seen.stderr
    [warning] = lake.json("inspect", "orders")["warnings"]
    assert "expiry.max_age (artifacts)" in warning


def test_a_bad_property_of_a_table_does_not_keep_one_from_looking_at_it(lake: CommandLine) -> None:
    lake.fill("shop.orders", files=1, properties={"floe.maintenance.expiry.max-aeg": "7d"})

    assert "Did you mean 'floe.maintenance.expiry.max-age'?" in lake.run("inspect", "orders").stderr


def test_inspect_shows_the_policy_and_its_sources(lake: CommandLine) -> None:
    maintenance = {"compaction": {"min_input_files": 7}}
    lake.write_artifacts(orchestrator={"type": "dagster", "config": {"maintenance": maintenance}})
    lake.fill(
        "shop.orders",
        files=1,
        properties={"floe.maintenance.orphans.grace": "36h", "history.expire.max-snapshot-age-ms": "2592000000"},
    )

    policy = {entry["name"]: (entry["value"], entry["source"]) for entry in lake.json("inspect", "orders")["policy"]}
    shown = " ".join(lake.run("inspect", "orders").stdout.split())

    assert policy["compaction.min_input_files"] == ("7", "artifacts")
    assert policy["orphans.grace"] == ("1 day 12 hours", "table property")
    assert policy["expiry.max_age"] == ("30 days", "Iceberg property")
    assert policy["compaction.target_file_size_bytes"] == ("128.0 MiB", "package default")
    assert "expiry.max_age 30 days Iceberg property" in shown


def test_a_table_that_cannot_be_read_does_not_hide_the_others(lake: CommandLine) -> None:
    lake.fill("bronze.broken", files=1)
    lake.fill("bronze.fine", files=1)
    lake.lose_metadata("bronze.broken")

    output = lake.run("tables", exit_code=1).stdout
    broken, fine = lake.json("tables", exit_code=1)["tables"]

    assert "unreadable" in output
    assert broken["error"]
    assert (fine["rows"], fine["error"]) == (1, None)


@pytest.mark.requirement("S2-US4.1")
def test_inspect_names_the_run_and_the_partition_that_made_each_snapshot(lake: CommandLine) -> None:
    runs = lake.materialize_orders()

    report = lake.json("inspect", "shop.orders")

    found = [(each["run_id"], each["partition_key"], each["asset_key"]) for each in report["snapshots"]]
    assert found == [(run, day, "shop/orders") for run, day in zip(reversed(runs), reversed(DAYS), strict=True)]
    ids = [str(snapshot.snapshot_id) for snapshot in lake.table("shop.orders").snapshots()]
    assert [each["snapshot_id"] for each in report["snapshots"]] == ids[::-1]
    assert report["snapshots"][0]["refs"] == ["main"]


def test_inspect_shows_schema_layout_and_health(lake: CommandLine) -> None:
    lake.materialize_orders()

    report = lake.json("inspect", "shop.orders", "--snapshots", "1")

    assert [(column["name"], column["type"]) for column in report["columns"]] == [("day", "date"), ("id", "long")]
    assert report["partitioning"] == [{"name": "day_day", "transform": "day", "column": "day"}]
    assert report["location"] == lake.table("shop.orders").location()
    assert (report["health"]["data_files"], report["health"]["snapshots"], len(report["snapshots"])) == (2, 3, 1)
    assert report["faults"] == []


def test_inspect_shows_what_is_wrong_and_its_remedy(lake: CommandLine) -> None:
    lake.fill("bronze.events", files=12, properties={"floe.maintenance.thresholds.min-table-bytes": "0"})

    [fault] = lake.json("inspect", "bronze.events")["faults"]

    assert (fault["grave"], fault["remedy"]) == (True, "compaction")
    assert "bad: small file share is 1" in lake.run("inspect", "bronze.events").stdout


def test_a_name_without_namespace_is_one_of_the_default_namespace(lake: CommandLine) -> None:
    lake.materialize_orders()

    assert lake.run("inspect", "orders").stdout.startswith("shop.orders")


def test_a_secret_in_the_properties_is_masked(lake: CommandLine) -> None:
    lake.fill("bronze.events", files=1, properties={"service.api-token": CANARY, "owner": "team"})

    shown = lake.run("inspect", "bronze.events").output + lake.run("inspect", "bronze.events", "--json").output

    assert CANARY not in shown
    assert "service.api-token = ***" in shown
    assert "owner = team" in shown


@pytest.mark.parametrize("columns", [200, 80, 50])
def test_nothing_is_wider_than_the_terminal_and_no_name_is_cut_off(lake: CommandLine, columns: int) -> None:
    lake.materialize_orders()
    name = "bronze.a_name_of_more_than_forty_characters"
    lake.fill(name, files=0)

    listed = lake.run("tables", columns=columns).stdout
    inspected = lake.run("inspect", "orders", columns=columns).stdout

    places = [line for line in inspected.splitlines() if "/warehouse/" not in line]
    assert max(map(len, [*listed.splitlines(), *places])) <= columns
    assert name in listed
    assert all(str(each.snapshot_id) in inspected for each in lake.table("shop.orders").snapshots())


def test_in_a_pipe_a_table_is_one_line_without_colours(lake: CommandLine) -> None:
    lake.fill(f"bronze.{'long_' * 20}name", files=1)

    heading, line = lake.run("tables").stdout.splitlines()

    assert heading.startswith("table")
    assert line.startswith("bronze.long_")
    assert "\x1b" not in line
    assert line == line.rstrip()


def test_looking_does_not_make_a_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = CommandLine(tmp_path)
    lake.write_artifacts(catalog={"type": "sql"})
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "nowhere"))

    result = lake.run("tables", exit_code=1)

    assert "There is no catalog at" in result.stderr
    assert "--artifacts" in result.stderr
    assert not (tmp_path / "nowhere").exists()


def test_an_error_is_a_sentence_and_with_debug_a_traceback(lake: CommandLine) -> None:
    lake.fill("bronze.events", files=0)

    plain = lake.run("inspect", "bronze.nothing", exit_code=1)
    debugged = lake.run("inspect", "bronze.nothing", "--debug", exit_code=1)

    assert plain.stdout == ""
    assert plain.stderr.splitlines() == [plain.stderr.strip()]
    assert plain.stderr.startswith("Error: Table 'bronze.nothing' not found in the catalog.")
    assert "Traceback (most recent call last)" in debugged.stderr
    assert "NoSuchTableError" in debugged.stderr


def test_artifacts_that_are_named_win_over_the_variable(lake: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = CommandLine(tmp_path / "other")
    other.fill("bronze.elsewhere", files=1)

    assert "bronze.elsewhere" in lake.run("tables", "--artifacts", str(other.artifacts)).stdout
    assert "cannot be read" in lake.run("tables", "--artifacts", "missing.json", exit_code=1).stderr


def test_inspect_shows_who_reads_a_table_incrementally_and_how_far_behind(lake: CommandLine) -> None:
    lake.fill("bronze.events", files=3)
    events = lake.table("bronze.events")
    first = events.metadata.snapshots[0].snapshot_id
    lake.fill("silver.copy", files=0)
    cursor = f"{events.metadata.table_uuid}/{first}"
    rows = events.scan(limit=1).to_arrow()
    lake.manager.append("silver.copy", rows, snapshot_properties={"floe.cursor.bronze.events": cursor})

    [reader] = lake.json("inspect", "bronze.events")["readers"]

    assert reader == {"table": "silver.copy", "snapshot_id": str(first), "behind": 2}
    assert f"silver.copy: has read up to {first}, 2 snapshots behind" in lake.run("inspect", "bronze.events").stdout
