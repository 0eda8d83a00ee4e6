"""`floe-iceberg doctor`: green where things work, a remedy where they do not, and nothing left behind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import CommandLine
from support.http_stub import RestStub, refused_url, running_stub
from support.servers.faults import Fault

CANARY = "canary-of-a-secret"
NO_SPARK = ("doctor", "--no-spark")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    # A folder without a code location.
    monkeypatch.chdir(tmp_path)
    return CommandLine(tmp_path)


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[RestStub]:
    with running_stub(tmp_path) as stub:
        stub.catalog.create_namespace("sales")
        yield stub


def rest(url: str, **config: Any) -> dict[str, Any]:
    bounds = {"connect_timeout_seconds": 0.5, "read_timeout_seconds": 1, "total_timeout_seconds": 3}
    return {"type": "rest", "config": {"uri": url, "warehouse": "w", "retry": {"max_attempts": 1}, **bounds, **config}}


def states(lake: CommandLine, *arguments: str, exit_code: int = 0) -> dict[str, tuple[str, str]]:
    report = lake.json(*(arguments or NO_SPARK), exit_code=exit_code)
    assert report["healthy"] is (exit_code == 0)
    return {check["name"]: (check["state"], check["message"]) for check in report["checks"]}


def test_where_all_is_well_everything_is_ok_and_nothing_is_left_behind(lake: CommandLine) -> None:
    lake.fill("bronze.events", files=1)
    before = {path for path in lake.folder.rglob("*") if path.is_file()}

    found = states(lake, "doctor")

    assert {name: state for name, (state, _) in found.items()} == dict.fromkeys(
        ("versions", "artifacts", "maintenance settings", "catalog", "storage", "permissions", "java", "jars"), "ok"
    )
    assert {path for path in lake.folder.rglob("*") if path.is_file()} == before
    assert [name for (name,) in lake.manager.catalog.list_namespaces()] == ["bronze"]


@pytest.mark.parametrize("config", [{}, {"uri": "sqlite:///place/catalog.db?timeout=5"}], ids=["embedded", "sqlite"])
def test_nothing_is_made_where_nothing_is_yet(
    lake: CommandLine, monkeypatch: pytest.MonkeyPatch, config: dict[str, str]
) -> None:
    monkeypatch.chdir(lake.folder)
    monkeypatch.setenv("FLOE_HOME", "place")
    lake.write_artifacts(catalog={"type": "sql", "config": config})

    found = states(lake)

    assert (found["catalog"][0], found["storage"][0]) == ("skipped", "skipped")
    assert "There is no catalog at" in lake.run("tables", exit_code=1).stderr
    assert list(lake.folder.iterdir()) == [lake.artifacts]


def test_a_catalog_that_does_not_answer_is_red_with_a_remedy(lake: CommandLine) -> None:
    with refused_url() as url:
        lake.write_artifacts(catalog=rest(url))
        state, message = states(lake, exit_code=1)["catalog"]

    assert state == "failed"
    assert f"is unreachable: {url} refused the connection. Check the catalog's URI" in message


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"maintenance": {"compaction": {"cron": "0 25 * * *"}}}, "cron '0 25 * * *', which is not valid"),
        ({"maintenance": {"expiry": {"max_age": "soon"}}}, "expiry.max_age (artifacts): Input should be a duration"),
        ({"maintenance": {"compaction": {"resources": "huge"}}}, "no resource preset 'huge'"),
        (
            {"resource_presets": {"small": {"memory": "1GB"}}},
            "memory: Input should be a Kubernetes quantity such as '500m' or '4Gi'",
        ),
        (
            {"executor": {"type": "k8s"}},
            "executor.type: Input should be 'in_process', 'multiprocess' or 'k8s_job_executor'",
        ),
        ({"executor": {"type": "multiprocess", "config": {"max_concurent": 3}}}, '"max_concurent" at path root:config'),
    ],
)
def test_what_would_keep_a_code_location_from_loading_is_red(
    lake: CommandLine, config: dict[str, Any], complaint: str
) -> None:
    lake.write_artifacts(orchestrator={"type": "dagster", "config": config})

    state, message = states(lake, exit_code=1)["maintenance settings"]

    assert state == "failed"
    assert complaint in message


def test_one_fault_is_reported_once(lake: CommandLine) -> None:
    lake.write_artifacts(catalog={"type": "sqk"})

    found = states(lake, "doctor", exit_code=1)

    assert [name for name, (state, _) in found.items() if state == "failed"] == ["catalog"]
    assert found["storage"] == ("skipped", "Same error as catalog.")


def test_a_warehouse_that_cannot_be_written_to_is_red(lake: CommandLine) -> None:
    lake.manager.create_namespace("bronze")
    (lake.folder / "warehouse").write_text("a file, and no folder")

    state, message = states(lake, exit_code=1)["storage"]

    assert state == "failed"
    assert "cannot be written to" in message


def test_a_catalog_that_allows_no_tables_is_red(lake: CommandLine, stub: RestStub) -> None:
    lake.write_artifacts(catalog=rest(stub.url))
    stub.fail("POST", "/tables", Fault(403))

    state, message = states(lake, exit_code=1)["permissions"]

    assert state == "failed"
    assert "Authentication failed" in message


def test_permissions_are_tried_without_making_a_table(lake: CommandLine, stub: RestStub) -> None:
    lake.write_artifacts(catalog=rest(stub.url))

    assert states(lake)["permissions"] == ("ok", "Tables can be created in namespace 'sales'.")
    assert stub.count("POST", "/tables") == 1
    assert stub.catalog.list_tables("sales") == []


@pytest.mark.parametrize("java_home", ["/nowhere", None])
def test_without_java_the_remedy_is_reported(
    lake: CommandLine, monkeypatch: pytest.MonkeyPatch, java_home: str | None
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if java_home is not None:
        monkeypatch.setenv("JAVA_HOME", java_home)

    state, message = states(lake, "doctor", exit_code=1)["java"]

    assert state == "failed"
    assert "Install a JDK 17 or 21" in message
    assert "java" not in states(lake)


def test_jars_of_another_spark_are_red(lake: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    (lake.folder / "iceberg-spark-runtime-3.5_2.12-1.9.0.jar").touch()
    monkeypatch.setenv("FLOE_SPARK_JARS", str(lake.folder))

    state, message = states(lake, "doctor", exit_code=1)["jars"]

    assert state == "failed"
    assert "holds no iceberg-spark-runtime-4.1_2.13" in message


def test_jars_that_are_still_to_be_fetched_are_a_warning(lake: CommandLine) -> None:
    conf = {"spark.jars.ivy": str(lake.folder / "ivy")}
    lake.write_artifacts(compute={"type": "spark", "config": {"conf": conf}})

    state, message = states(lake, "doctor")["jars"]

    assert state == "warning"
    assert "FLOE_SPARK_JARS" in message


def test_on_a_connect_server_java_is_not_needed_here(lake: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    lake.write_artifacts(compute={"type": "spark", "config": {"remote": f"sc://spark:15002/;token={CANARY}"}})

    found = states(lake, "doctor")

    assert (found["java"][0], found["jars"][0]) == ("skipped", "skipped")


def test_artifacts_that_cannot_be_read_are_red_and_nothing_else_is_tried(lake: CommandLine) -> None:
    lake.artifacts.write_text('{"plugins": {"catalog": 5}}')

    found = states(lake, exit_code=1)

    assert found["artifacts"][0] == "failed"
    assert "plugins.catalog" in found["artifacts"][1]
    assert found.keys() == {"versions", "artifacts", "catalog"}


def test_a_secret_that_is_missing_is_named(lake: CommandLine) -> None:
    lake.write_artifacts(catalog=rest("http://127.0.0.1:1", token={"secret_ref": "polaris-token"}))

    state, message = states(lake, exit_code=1)["catalog"]

    assert state == "failed"
    assert "Secret 'polaris-token' not found" in message


@pytest.mark.parametrize("arguments", [NO_SPARK, ("tables", "--debug"), ("inspect", "orders", "--debug")])
def test_no_secret_is_ever_shown(
    lake: CommandLine, stub: RestStub, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("POLARIS_TOKEN", CANARY)
    lake.write_artifacts(catalog=rest(stub.url, token="${POLARIS_TOKEN}"))
    stub.fail("GET", "/", *[Fault(401, body=f'{{"error": {{"message": "bad token {CANARY}"}}}}')] * 10)

    shown = lake.run(*arguments, exit_code=1).output

    assert "Authentication failed" in shown
    assert CANARY not in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("", ("ok", "The code location of workspace.yaml loads.")),
        ("import no_such_module\n", ("failed", "No module named 'no_such_module'")),
    ],
    ids=["loads", "does not load"],
)
def test_the_code_location_of_the_folder_is_loaded(
    lake: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, expected: tuple[str, str]
) -> None:
    project = tmp_path / "project"
    lake.run("init", str(project))
    definitions = project / "definitions.py"
    definitions.write_text(code + definitions.read_text())
    monkeypatch.chdir(project)

    state, message = states(lake, exit_code=int(expected[0] == "failed"))["code location"]

    assert state == expected[0]
    assert expected[1] in message
