"""A table in a format that PyIceberg cannot parse: nothing takes its place, and what is known of it is shown."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from support.command_line import CommandLine
from support.maintenance_lake import metadata_of, run_asset
from support.table_facts import to_path

from floe_dagster_iceberg.errors import TableAlreadyExistsError, UnsupportedMetadataError
from floe_dagster_iceberg.factory import create_iceberg_resources
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource, TableManagerSettings
from floe_dagster_iceberg.table.manager import IcebergTableManager

TABLE = "shop.orders"
ROWS = pa.table({"id": [1]})
USES: dict[str, Callable[[IcebergTableManager], object]] = {
    "load_table": lambda manager: manager.load_table(TABLE),
    "scan": lambda manager: manager.scan(TABLE),
    "append": lambda manager: manager.append(TABLE, ROWS),
    "create_table_if_not_exists": lambda manager: manager.create_table_if_not_exists(TABLE, ROWS.schema),
    "purge": lambda manager: manager.drop_table(TABLE, purge=True),
    "rollback": lambda manager: manager.rollback_to_snapshot(TABLE, 1),
}


@pytest.fixture
def lake(tmp_path: Path) -> CommandLine:
    """A lake of two tables, one of which a newer tool has upgraded."""
    lake = CommandLine(tmp_path)
    lake.materialize_orders()
    lake.fill("shop.events", files=1)
    location = lake.table(TABLE).metadata_location
    document = json.loads(to_path(location).read_text())
    newer = location.replace("/metadata/", "/metadata/00009-newer-")
    to_path(newer).write_text(json.dumps({**document, "format-version": 4, "new-part": [1]}))
    with closing(sqlite3.connect(tmp_path / "catalog.db")) as database, database:
        database.execute("UPDATE iceberg_tables SET metadata_location = ? WHERE table_name = 'orders'", [newer])
    return lake


def content(lake: CommandLine) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (lake.folder / "warehouse").rglob("*") if path.is_file()}


def test_every_use_says_so_and_changes_nothing(lake: CommandLine) -> None:
    before = content(lake)
    iceberg = IcebergResource(
        catalog_uri=f"sqlite:///{lake.folder}/catalog.db",
        warehouse=f"file://{lake.folder}/warehouse",
        manager=TableManagerSettings(stale_table_recovery_mode="repair"),  # type: ignore[arg-type]
    )

    @dg.asset(key=["shop", "orders"])
    def orders() -> pa.Table:
        return ROWS

    for use in USES.values():
        with pytest.raises(UnsupportedMetadataError, match="it has format version 4") as failure:
            use(iceberg.table_manager)
        assert failure.value.format_version == 4
    with pytest.raises(TableAlreadyExistsError):
        iceberg.table_manager.create_table(TABLE, ROWS.schema)
    io_manager = ArrowIcebergIOManager(iceberg=iceberg)
    assert not dg.materialize([orders], resources={"io_manager": io_manager}, raise_on_error=False).success

    assert content(lake) == before


def test_tables_and_inspect_show_what_the_metadata_file_says(lake: CommandLine) -> None:
    _, orders = lake.json("tables")["tables"]
    report = lake.json("inspect", TABLE, "--snapshots", "2")
    text = lake.run("inspect", TABLE).stdout

    assert (orders["table"], orders["rows"], orders["data_files"], orders["snapshots"]) == (TABLE, 4, 2, 3)
    assert orders["snapshot"]["partition_key"] == "2026-01-01"
    assert orders["error"] is None
    assert "format version 4" in orders["warning"]
    assert (report["format_version"], len(report["snapshots"]), report["health"]["records"]) == (4, 2, 4)
    assert [(column["name"], column["type"]) for column in report["columns"]] == [("day", "date"), ("id", "long")]
    assert [field["column"] for field in report["partitioning"]] == ["day"]
    assert [ref["name"] for ref in report["refs"]] == ["main"]
    assert "format version 4" in report["warnings"][0]
    assert "day" in text


def test_its_health_is_what_the_summary_says(lake: CommandLine) -> None:
    @dg.asset(key=["shop", "orders"])
    def orders() -> None: ...

    bundle = create_iceberg_resources(json.loads(lake.artifacts.read_text()), assets=[orders])
    result = run_asset(bundle.definitions(), "table_health")
    checks: Any = bundle.definitions()
    checked = checks.resolve_implicit_global_asset_job_def().execute_in_process(
        asset_selection=[dg.AssetKey(["shop", "orders"])], raise_on_error=False
    )

    # The row has what the summary says, and blanks for the rest.
    assert "| shop.orders | 4 | 2 |" in json.dumps(metadata_of(result, "table_health"), default=str)
    (check,) = checked.get_asset_check_evaluations()
    assert check.passed
    assert check.metadata["iceberg/snapshots"].value == 3
