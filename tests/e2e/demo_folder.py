"""A folder that the demo was run in, and what can be asked of its tables without the package."""

import os
import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from support.lake import open_catalog
from support.processes import printed_by

ROOT = Path(__file__).resolve().parents[2]
# Short enough to be built in a minute or two, long enough for every step of the demo.
SINCE = "2013-12-18"


@dataclass(frozen=True)
class DemoFolder:
    """The demo's working directory."""

    path: Path

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "FLOE_HOME": str(self.path / ".floe"),
            "DAGSTER_HOME": str(self.path / ".dagster_home"),
            "DAGSTER_DISABLE_TELEMETRY": "yes",
            "PYTHONPATH": str(ROOT),
        }

    def build(self) -> str:
        """Run the demo, and return what it printed."""
        command = [sys.executable, "-m", "examples.demo", "--since", SINCE]
        return printed_by(command, cwd=self.path, environment={**os.environ, **self.environment})

    def pointers(self, *namespaces: str) -> dict[tuple[str, str], str]:
        """The current metadata file of each table: unchanged means that nothing was committed."""
        with closing(sqlite3.connect(self.path / ".floe" / "catalog.db")) as catalog:
            rows = catalog.execute("select table_namespace, table_name, metadata_location from iceberg_tables")
            return {(namespace, name): file for namespace, name, file in rows if namespace in namespaces}

    def write_small_files(self, table: str, *, files: int) -> None:
        """A table as it looks after many small appends."""
        with closing(open_catalog(self.path / ".floe")) as catalog:
            catalog.create_namespace_if_not_exists(table.split(".", maxsplit=1)[0])
            rows = pa.table({"id": range(1_000)})
            for _ in range(files):
                catalog.create_table_if_not_exists(table, rows.schema).append(rows)

    def count_files(self, table: str) -> int:
        """Data files of a table's current snapshot."""
        with closing(open_catalog(self.path / ".floe")) as catalog:
            return int(catalog.load_table(table).inspect.data_files().num_rows)
