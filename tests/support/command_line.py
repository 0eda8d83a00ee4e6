"""The command line as a person uses it, on a lake that was filled by real Dagster runs."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from click.testing import CliRunner, Result
from dagster import AssetExecutionContext, DailyPartitionsDefinition, asset, materialize
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from floe_dagster_iceberg.cli.app import main
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager

DAYS = ("2026-01-01", "2026-01-02", "2026-01-01")


@asset(
    key=["shop", "orders"], partitions_def=DailyPartitionsDefinition("2026-01-01"), metadata={"partition_expr": "day"}
)
def orders(context: AssetExecutionContext) -> pa.Table:
    return pa.table({"day": [date.fromisoformat(context.partition_key)] * 2, "id": [1, 2]})


@dataclass
class CommandLine:
    """A project's folder with artifacts, and `floe-iceberg` run in it."""

    folder: Path

    def __post_init__(self) -> None:
        self.write_artifacts()

    def write_artifacts(self, *, catalog: Mapping[str, Any] | None = None, **plugins: Any) -> None:
        """Artifacts that name this lake, or another catalog; further plugins as given."""
        uri, warehouse = f"sqlite:///{self.folder}/catalog.db", f"file://{self.folder}/warehouse"
        own = {"type": "sql", "config": {"uri": uri, "warehouse": warehouse}}
        content = {"metadata": {"product_name": "shop"}, "plugins": {"catalog": dict(catalog or own), **plugins}}
        self.artifacts.write_text(json.dumps(content))

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts.json"

    @property
    def iceberg(self) -> IcebergResource:
        return IcebergResource(
            catalog_uri=f"sqlite:///{self.folder}/catalog.db", warehouse=f"file://{self.folder}/warehouse"
        )

    @property
    def manager(self) -> IcebergTableManager:
        return self.iceberg.table_manager

    def table(self, name: str) -> Table:
        """The table as another client of the catalog sees it."""
        catalog = SqlCatalog("floe", uri=f"sqlite:///{self.folder}/catalog.db")
        try:
            return catalog.load_table(name)
        finally:
            catalog.close()

    def run(
        self, *arguments: str, confirmation: str | None = None, exit_code: int = 0, columns: int | None = None
    ) -> Result:
        """Run a command; its exit code must be as expected, and it must not end in a traceback."""
        environment = {"FLOE_ARTIFACTS": str(self.artifacts), "COLUMNS": None if columns is None else str(columns)}
        result = CliRunner().invoke(main, arguments, input=confirmation, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == exit_code, result.output
        return result

    def json(self, *arguments: str, exit_code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", exit_code=exit_code).stdout)

    def materialize_orders(self) -> list[str]:
        """Materialize three days, the last one again; returns the runs' ids."""
        resources = {"io_manager": ArrowIcebergIOManager(iceberg=self.iceberg)}
        return [materialize([orders], partition_key=day, resources=resources).run_id for day in DAYS]

    def fill(self, name: str, *, files: int, properties: Mapping[str, str] | None = None) -> None:
        """A table with so many files and snapshots."""
        self.manager.create_namespace(name.rpartition(".")[0], if_not_exists=True)
        self.manager.create_table(name, pa.schema([("id", pa.int64())]), properties=properties)
        for number in range(files):
            self.manager.append(name, pa.table({"id": [number]}))

    def lose_metadata(self, name: str) -> None:
        """Break a table: the catalog points at a metadata file that is not there."""
        database = sqlite3.connect(self.folder / "catalog.db")
        with database:
            database.execute(
                "UPDATE iceberg_tables SET metadata_location = metadata_location || '.gone' WHERE table_name = ?",
                [name.rpartition(".")[2]],
            )
        database.close()
