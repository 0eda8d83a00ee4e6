"""A process of its own that writes a table with raw PyIceberg or raw Spark, and knows the data version of its rows.

It does the operations whose names come in, one per line, and prints the table's data version after each.
"""

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.types import StringType
from support.lake import open_catalog

TABLE = "bronze.t"
OPERATIONS = ("append", "overwrite", "append", "compact", "evolve", "rollback", "append", "compact", "recreate")
_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"


class Writer(ABC):
    """Keeps the snapshots of main, and the data version that each should have."""

    _history: list[tuple[int | None, str]]

    def __init__(self) -> None:
        self._next = 0
        self.recreate()

    @abstractmethod
    def run(self, operation: str) -> None:
        """Do an operation; `self._next` is an id that no row has."""

    @abstractmethod
    def state(self) -> tuple[int | None, str]:
        """The current snapshot, and the table's UUID."""

    def do(self, operation: str) -> str:
        """Do an operation and return the data version of the rows after it."""
        self._next += 1
        if operation == "recreate":
            self.recreate()
            return self._history[-1][1]
        if operation == "rollback":
            # Behind the last change of rows.
            version = self._history[-1][1]
            self._history = [each for each in self._history if each[1] != version]
        self.run(operation)
        current, _ = self.state()
        match operation:
            case "append" | "overwrite":
                self._history.append((current, str(current)))
            case "compact":
                self._history.append((current, self._history[-1][1]))
        return self._history[-1][1]

    @property
    def rollback_target(self) -> int | None:
        return self._history[-1][0]

    def recreate(self) -> None:
        self.run("recreate")
        current, uuid = self.state()
        self._history = [(current, uuid)]


class PyIcebergWriter(Writer):
    """PyIceberg alone; it cannot compact, which our own table manager does in its place."""

    def __init__(self, folder: Path) -> None:
        self._catalog: Catalog = open_catalog(folder)
        super().__init__()

    def state(self) -> tuple[int | None, str]:
        metadata = self._catalog.load_table(TABLE).metadata
        return metadata.current_snapshot_id, str(metadata.table_uuid)

    def run(self, operation: str) -> None:
        if operation == "recreate":
            if self._catalog.table_exists(TABLE):
                self._catalog.drop_table(TABLE)
            self._catalog.create_table(TABLE, pa.schema([("id", pa.int64())]))
            return
        table, rows = self._catalog.load_table(TABLE), pa.table({"id": [self._next, self._next + 1]})
        match operation:
            case "append":
                table.append(rows)
            case "overwrite":
                table.overwrite(rows)
            case "evolve":
                with table.transaction() as transaction:
                    transaction.set_properties({"owner": f"someone-{self._next}"})
                    with transaction.update_schema() as schema:
                        schema.add_column(f"note_{self._next}", StringType())
            case "rollback":
                target = self.rollback_target
                assert target is not None
                table.manage_snapshots().rollback_to_snapshot(target).commit()
            case "compact":
                from floe_dagster_iceberg.table.manager import IcebergTableManager  # noqa: PLC0415 - see above

                IcebergTableManager(self._catalog).compact_table(TABLE)


class SparkWriter(Writer):
    """Spark SQL alone."""

    def __init__(self, folder: Path) -> None:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - the other process has none
        from support.spark_session import JARS, QUICK_START  # noqa: PLC0415

        catalog = "spark.sql.catalog.floe"
        settings = {
            "spark.jars.packages": ",".join((_RUNTIME, *JARS)),
            "spark.driver.extraJavaOptions": QUICK_START,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
            catalog: "org.apache.iceberg.spark.SparkCatalog",
            f"{catalog}.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            f"{catalog}.uri": f"jdbc:sqlite:{folder}/catalog.db?busy_timeout=60000",
            f"{catalog}.jdbc.schema-version": "V1",
            f"{catalog}.warehouse": f"file://{folder}/warehouse",
            f"{catalog}.cache-enabled": "false",
        }
        builder = SparkSession.builder.master("local[2]")
        for key, value in settings.items():
            builder = builder.config(key, value)
        self._session = builder.getOrCreate()
        super().__init__()

    def state(self) -> tuple[int | None, str]:
        from support.foreign_writers import java_table  # noqa: PLC0415 - it loads PySpark

        table = java_table(self._session, f"floe.{TABLE}")
        snapshot = table.currentSnapshot()
        return None if snapshot is None else int(snapshot.snapshotId()), str(table.uuid())

    def run(self, operation: str) -> None:
        table, number = f"floe.{TABLE}", self._next
        statements = {
            "append": [f"INSERT INTO {table} (id) VALUES ({number}), ({number + 1})"],  # noqa: S608 - a number
            "overwrite": [f"INSERT OVERWRITE {table} (id) VALUES ({number})"],  # noqa: S608
            "evolve": [
                f"ALTER TABLE {table} ADD COLUMN note_{number} STRING",
                f"ALTER TABLE {table} SET TBLPROPERTIES ('team' = 'someone-{number}')",
            ],
            "rollback": [f"CALL floe.system.rollback_to_snapshot('{TABLE}', {{target}})"],
            "compact": [
                f"CALL floe.system.rewrite_data_files(table => '{TABLE}', options => map('rewrite-all', 'true'))"
            ],
            "recreate": [f"DROP TABLE IF EXISTS {table}", f"CREATE TABLE {table} (id BIGINT)"],
        }
        for statement in statements[operation]:
            target = self.rollback_target if operation == "rollback" else None
            self._session.sql(statement.format(target=target))


class ForeignProcess:
    """The process, as a test uses it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def begin(self, operations: Sequence[str]) -> None:
        """Have operations done one after the other, without waiting for them."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{operation}\n" for operation in operations))
        self._process.stdin.flush()

    def next_version(self) -> str:
        """The data version after the next operation; waits for it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return str(json.loads(line)["version"])
        raise AssertionError("The writing process has ended")

    def do(self, operation: str) -> str:
        self.begin([operation])
        return self.next_version()


@contextmanager
def foreign_process(engine: str, folder: Path) -> Iterator[ForeignProcess]:
    """A process that writes the table 'bronze.t' of the SQLite lake in a folder; it creates it first."""
    command = [sys.executable, "-m", "support.foreign_process", engine, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    with (folder / "foreign.log").open("w") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    with process:
        try:
            yield ForeignProcess(process)
        finally:
            process.kill()


def main(engine: str, folder: str) -> None:
    writers: dict[str, Any] = {"pyiceberg": PyIcebergWriter, "spark": SparkWriter}
    writer: Writer = writers[engine](Path(folder))
    for line in sys.stdin:
        print(json.dumps({"version": writer.do(line.strip())}), flush=True)  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(*sys.argv[1:])
