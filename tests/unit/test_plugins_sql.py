"""The SQL catalog on a real SQLite file, alone and with other processes."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy
from pyiceberg.exceptions import CommitStateUnknownException

from floe_dagster_iceberg.errors import (
    CatalogConnectionError,
    EngineCapabilityError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from floe_dagster_iceberg.plugins.protocols import CatalogPlugin
from floe_dagster_iceberg.plugins.registry import open_catalog_plugin

PROCESSES = 8
SCHEMA = pa.schema([("id", pa.int64())])


def sqlite(folder: Path) -> CatalogPlugin:
    return open_catalog_plugin("sql", {"uri": f"sqlite:///{folder}/db/c.db", "warehouse": f"file://{folder}/w"})


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[CatalogPlugin]:
    plugin = sqlite(tmp_path)
    yield plugin
    plugin.shutdown()


@pytest.mark.requirement("S0-P2", "S0-F1")
def test_namespaces_and_tables_are_created_listed_and_dropped(plugin: CatalogPlugin, tmp_path: Path) -> None:
    plugin.create_namespace("bronze.raw")
    plugin.create_table("bronze.raw.events", SCHEMA)
    assert plugin.list_namespaces() == ["bronze"]
    assert plugin.list_namespaces("bronze") == ["bronze.raw"]
    assert plugin.list_tables("bronze.raw") == ["bronze.raw.events"]
    plugin.drop_table("bronze.raw.events")
    plugin.delete_namespace("bronze.raw")
    assert plugin.list_namespaces() == []
    assert list(tmp_path.glob("w/**/*.metadata.json"))


@pytest.mark.requirement("S0-P2")
def test_purging_a_table_deletes_its_files(plugin: CatalogPlugin, tmp_path: Path) -> None:
    plugin.create_namespace("bronze")
    plugin.create_table("bronze.events", SCHEMA)
    plugin.drop_table("bronze.events", purge=True)
    assert not list(tmp_path.glob("w/**/*.metadata.json"))


def test_a_table_that_may_share_its_files_is_not_purged(plugin: CatalogPlugin, tmp_path: Path) -> None:
    plugin.create_namespace("bronze")
    plugin.create_table("bronze.events", SCHEMA, properties={"gc.enabled": "false"})  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match=r"gc\.enabled"):
        plugin.drop_table("bronze.events", purge=True)
    assert plugin.list_tables("bronze") == ["bronze.events"]
    assert list(tmp_path.glob("w/**/*.metadata.json"))


@pytest.mark.requirement("S0-X1..6")
def test_what_cannot_be_done_is_reported_in_our_errors(plugin: CatalogPlugin) -> None:
    plugin.create_namespace("bronze")
    plugin.create_table("bronze.events", SCHEMA)
    with pytest.raises(TableAlreadyExistsError, match=r"bronze\.events"):
        plugin.create_table("bronze.events", SCHEMA)
    with pytest.raises(NoSuchNamespaceError, match="silver"):
        plugin.create_table("silver.events", SCHEMA)
    with pytest.raises(NoSuchTableError, match=r"bronze\.nothing"):
        plugin.drop_table("bronze.nothing")
    with pytest.raises(ValidationError, match="still holds tables"):
        plugin.delete_namespace("bronze")
    with pytest.raises(ValidationError, match="already exists"):
        plugin.create_namespace("bronze")
    with pytest.raises(EngineCapabilityError, match="vends no credentials"):
        plugin.vend_credentials("bronze.events", ["READ"])


@pytest.mark.requirement("S0-P4")
def test_health_distinguishes_a_working_catalog_from_a_broken_one(plugin: CatalogPlugin) -> None:
    assert plugin.health_check().state == "healthy"
    broken = open_catalog_plugin("sql", {"uri": "postgresql://u:pw-canary@127.0.0.1:1/d", "connect_timeout_seconds": 1})
    status = broken.health_check()
    assert (status.state, status.details["error"]) == ("unhealthy", "CatalogConnectionError")
    assert "pw-canary" not in status.message


def test_a_database_that_cannot_be_opened_is_a_connection_error(tmp_path: Path) -> None:
    (tmp_path / "c.db").mkdir()
    plugin = open_catalog_plugin("sql", {"uri": f"sqlite:///{tmp_path}/c.db"})
    with pytest.raises(CatalogConnectionError, match="unable to open database file"):
        plugin.connect({})


def test_a_relative_path_is_made_absolute_for_both_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plugin: Any = open_catalog_plugin("sql", {"uri": "sqlite:///c.db", "warehouse": "file:///w"})
    assert plugin.pyiceberg_properties()["uri"] == f"sqlite:///{tmp_path}/c.db?timeout=60"
    assert plugin.spark_properties()["uri"] == f"jdbc:sqlite:{tmp_path}/c.db"


def test_a_connection_that_breaks_during_a_commit_leaves_the_outcome_unknown(plugin: CatalogPlugin) -> None:
    catalog = plugin.connect({})
    catalog.create_namespace("bronze")
    table = catalog.create_table("bronze.events", SCHEMA)
    sqlalchemy.event.listen(catalog.engine, "before_cursor_execute", _fail_updates, retval=True)
    sqlalchemy.event.listen(catalog.engine, "handle_error", _as_disconnect)
    with pytest.raises(CommitStateUnknownException), table.transaction() as transaction:
        transaction.set_properties(owner="sales")


def _fail_updates(_c: Any, _k: Any, statement: str, parameters: Any, _x: Any, _m: Any) -> tuple[str, Any]:
    broken = statement.startswith("UPDATE iceberg_tables")
    return ("UPDATE no_such_table SET a = 1", ()) if broken else (statement, parameters)


def _as_disconnect(context: Any) -> None:
    context.is_disconnect = True


@pytest.fixture
def overtaken(tmp_path: Path) -> Iterator[list[str]]:
    """Another process that runs the listed statements just before ours."""
    statements: list[str] = []

    def overtake(_c: Any, _k: Any, statement: str, parameters: Any, _x: Any, _m: Any) -> None:
        for wanted in statements:
            if statement.strip().startswith(wanted):
                statements.remove(wanted)
                with closing(sqlite3.connect(tmp_path / "db" / "c.db")) as other, other:
                    other.execute(statement, parameters)

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", overtake)
    yield statements
    sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", overtake)


def test_tables_that_another_process_creates_meanwhile_are_used(plugin: CatalogPlugin, overtaken: list[str]) -> None:
    overtaken += ["CREATE TABLE iceberg_tables", "CREATE TABLE iceberg_namespace_properties"]
    plugin.create_namespace("bronze")
    assert plugin.list_namespaces() == ["bronze"]
    assert overtaken == []


def test_a_namespace_that_another_process_creates_meanwhile_exists(plugin: CatalogPlugin, overtaken: list[str]) -> None:
    catalog = plugin.connect({})
    overtaken.append("INSERT INTO iceberg_namespace_properties")
    catalog.create_namespace_if_not_exists("bronze")
    assert overtaken == []


# Each process waits for the end of its input, so that all of them begin at the same time.
WORKER = """
import sys
import floe_dagster_iceberg._pyiceberg.sql_catalog
from floe_dagster_iceberg.plugins.registry import open_catalog_plugin

folder, number = sys.argv[1:]
plugin = open_catalog_plugin("sql", {"uri": f"sqlite:///{folder}/db/c.db", "warehouse": f"file://{folder}/w"})
print("ready", flush=True)
sys.stdin.readline()
catalog = plugin.connect({})
catalog.create_namespace_if_not_exists("shared")
for turn in range(5):
    catalog.update_namespace_properties("shared", updates={f"writer-{number}": str(turn)})
"""


@pytest.mark.slow
@pytest.mark.requirement("S2-FR-009")
def test_many_processes_may_create_and_use_one_catalog_at_once(plugin: CatalogPlugin, tmp_path: Path) -> None:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WORKER, str(tmp_path), str(number)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(PROCESSES)
        ]
        assert [worker.stdout and worker.stdout.readline() for worker in workers] == ["ready\n"] * PROCESSES
        for worker in workers:
            worker.stdin and worker.stdin.close()
        errors = [worker.stderr and worker.stderr.read() for worker in workers]
    assert [(worker.returncode, text) for worker, text in zip(workers, errors, strict=True)] == [(0, "")] * PROCESSES
    written = plugin.connect({}).load_namespace_properties("shared")
    assert {f"writer-{n}": "4" for n in range(PROCESSES)}.items() <= written.items()
