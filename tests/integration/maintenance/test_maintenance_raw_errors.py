"""An error that this package does not know, on one table: that table fails, and the others get their turn."""

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from dagster import AssetCheckSeverity, AssetSelection, Definitions, asset, materialize
from support.command_line import CommandLine
from support.faulty_io import FAULTY_IO, failing
from support.maintenance_lake import NeglectedLake, metadata_of, run_asset
from support.maintenance_tables import EAGER

from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.maintenance.definitions import build_maintenance_definitions
from floe_dagster_iceberg.maintenance.health_checks import build_health_checks
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import MaintenanceBudget, MaintenanceOperation, MaintenanceStatus

ASSETS = ["table_health", "compaction", "snapshot_expiry", "manifests", "orphan_files"]
SECRET = "token=canary-of-a-secret"


class UnforeseenError(Exception):
    """Of a library that is not known here."""


@pytest.fixture
def neglected(tmp_path: Path) -> NeglectedLake:
    lake = NeglectedLake(tmp_path)
    for table in ("bronze.a", "bronze.m", "bronze.z"):
        lake.fill(table, files=3, properties=FAULTY_IO if table == "bronze.m" else None)
    return lake


def spoil(lake: CommandLine, name: str) -> None:
    """Let PyIceberg fail on a table as it is loaded: its FileIO is a class that does not exist."""
    location = lake.table(name).metadata_location
    path = Path(location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    metadata["properties"]["py-io-impl"] = "nowhere.NoFileIO"
    # Another file: the process remembers those that it has read.
    path.with_name(f"9{path.name}").write_text(json.dumps(metadata))
    with closing(sqlite3.connect(lake.folder / "catalog.db")) as database, database:
        database.execute(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE metadata_location = ?",
            [location.replace(path.name, f"9{path.name}"), location],
        )


@pytest.mark.parametrize("name", ASSETS)
def test_an_unknown_error_is_the_failure_of_its_table(neglected: NeglectedLake, name: str) -> None:
    policy = EAGER.model_copy(update={"budget": MaintenanceBudget(max_rewrite_bytes=10**9)})
    definitions = Definitions.merge(
        Definitions(resources={"iceberg": neglected.iceberg}), build_maintenance_definitions(policy)
    )

    with failing("*/bronze/m/*.avro", lambda: UnforeseenError(f"a line with {SECRET}\nand more"), at="read"):
        run = run_asset(definitions, name)

    metadata = metadata_of(run, name)
    assert metadata["iceberg/tables_failed"] == 1
    lines = metadata["iceberg/health" if name == "table_health" else "iceberg/results"].splitlines()[2:]
    assert sorted(line.split(" | ")[0] for line in lines) == ["| bronze.a", "| bronze.m", "| bronze.z"]
    [failed] = [line for line in lines if "UnforeseenError: a line with token=***" in line]
    assert failed.startswith("| bronze.m |")
    assert "canary" not in str(metadata)
    [check] = run.get_asset_check_evaluations()
    assert not check.passed


def test_a_table_that_cannot_even_be_loaded_is_one_failure(tmp_path: Path) -> None:
    lake = CommandLine(tmp_path)
    for table in ("bronze.a", "bronze.m", "bronze.z"):
        lake.fill(table, files=3)
    spoil(lake, "bronze.m")

    tables = lake.json("tables", exit_code=1)["tables"]
    plans = lake.json("plan", exit_code=1)["entries"]
    done = lake.json("maintain", "*", "-o", "compaction", "-o", "orphan_files", "--execute", exit_code=1)["entries"]

    assert [(each["table"], bool(each["error"])) for each in tables] == [
        ("bronze.a", False),
        ("bronze.m", True),
        ("bronze.z", False),
    ]
    for entries in (plans, done):
        assert {each["table"] for each in entries if each["status"] == "failed"} == {"bronze.m"}
        assert {each["table"] for each in entries} == {"bronze.a", "bronze.m", "bronze.z"}
    assert all(re.match(r"\w+Error: ", each["note"]) for each in done if each["status"] == "failed")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_run(neglected: NeglectedLake, interrupt: Callable[[], BaseException]) -> None:
    maintenance = TableMaintenance(neglected.manager)
    with failing("*/bronze/m/*.avro", interrupt, at="read"), pytest.raises(interrupt):  # type: ignore[arg-type]
        maintenance.execute(MaintenanceOperation.COMPACTION, "bronze.m", EAGER)
    assert maintenance.execute(MaintenanceOperation.COMPACTION, "bronze.a", EAGER).status is MaintenanceStatus.DONE


def test_a_health_check_reports_an_unknown_error_as_a_warning(neglected: NeglectedLake) -> None:
    @asset(key=["bronze", "m"])
    def orders() -> pa.Table:
        return pa.table({"id": [1]})

    resources = {"io_manager": ArrowIcebergIOManager(iceberg=neglected.iceberg), "iceberg": neglected.iceberg}
    assert materialize([orders], resources=resources).success
    with failing("*/bronze/m/*.avro", UnforeseenError, at="read"):
        run = materialize(
            [orders, *build_health_checks([orders], EAGER)],
            resources=resources,
            selection=AssetSelection.checks_for_assets(orders),
        )

    [check] = run.get_asset_check_evaluations()
    assert (check.passed, check.severity, check.description) == (False, AssetCheckSeverity.WARN, "UnforeseenError")
