"""Tables of every format version and feature, as raw Spark makes them, and what each operation does to them.

The outcomes that are expected are the tables of docs/engines.md themselves, so that the page says what was seen.
"""

import re
import shutil
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import dagster as dg
import pyarrow as pa
from pyspark.sql import DataFrame
from support.docs_pages import DOCS
from support.foreign_writers import add_column, delete_by_equality
from support.maintenance_tables import DAY, EAGER, later, make_older
from support.spark_lake import SparkLake

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.errors import FloeStorageError
from floe_dagster_iceberg.io_managers.managers import IcebergIOManager
from floe_dagster_iceberg.maintenance.operations import TableMaintenance
from floe_dagster_iceberg.models import (
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenanceStatus,
    PlanReason,
    TableIdentifier,
)
from floe_dagster_iceberg.table.manager import IcebergTableManager

Engine = Literal["Arrow", "Spark"]
Rows = set[tuple[Any, ...]]
ENGINES: Final[tuple[Engine, ...]] = ("Arrow", "Spark")
DONE: Final = "✓"
BY_SPARK: Final = "→"
BLOCKED: Final = "✗⁴"
REFUSED: Final = {"EngineCapabilityError": "✗¹", "ValidationError": "✗²", "NoSuchTableError": "✗³"}
NAMESPACE: Final = "matrix"
MERGE_ON_READ: Final = {"write.delete.mode": "merge-on-read"}
_INSERT: Final = "INSERT INTO {t} (id, region) SELECT /*+ COALESCE(1) */ * FROM VALUES "
# Each in one file that holds rows of both regions.
_FILES: Final = ("(1L, 'eu'), (2L, 'us')", "(3L, 'eu'), (4L, 'us')", "(5L, 'us'), (6L, 'eu')")
LIVE: Final[Rows] = {(1, "eu"), (2, "us"), (3, "eu"), (4, "us"), (5, "us")}


@dataclass(frozen=True)
class Feature:
    """A kind of table: its columns beside `id` and `region`, its properties, and what is done to it at last."""

    versions: tuple[int, ...]
    columns: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ("DELETE FROM {t} WHERE id = 6",)
    finish: Callable[[SparkLake, TableIdentifier], None] = lambda _lake, _table: None


def _equality_delete(lake: SparkLake, table: TableIdentifier) -> None:
    delete_by_equality(lake.session, lake.iceberg.catalog.load_table(table.as_tuple), "id", 6)


def _add_default(lake: SparkLake, table: TableIdentifier) -> None:
    add_column(lake.session, f"floe.{table}", "size", "int", 9)


def _add_nanoseconds(lake: SparkLake, table: TableIdentifier) -> None:
    add_column(lake.session, f"floe.{table}", "at", "timestamp_ns")


FEATURES: Final[dict[str, Feature]] = {
    "none of these": Feature((1, 2, 3)),
    "position deletes": Feature((2,), properties=MERGE_ON_READ),
    "position deletes, upgraded table": Feature(
        (3,),
        properties={**MERGE_ON_READ, "format-version": "2"},
        after=("DELETE FROM {t} WHERE id = 6", "ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '3')"),
    ),
    "deletion vectors": Feature((3,), properties=MERGE_ON_READ),
    "equality deletes": Feature((2, 3), after=(), finish=_equality_delete),
    "`variant` column": Feature(
        (3,), "v VARIANT", after=("DELETE FROM {t} WHERE id = 6", "UPDATE {t} SET v = parse_json('[1]') WHERE id = 1")
    ),
    "column default": Feature((3,), finish=_add_default),
    "nanosecond timestamps": Feature((3,), finish=_add_nanoseconds),
    "Avro files": Feature((1, 2, 3), properties={"write.format.default": "avro"}),
    "ORC files": Feature((1, 2, 3), properties={"write.format.default": "orc"}),
    "odd column names": Feature((1, 2, 3), "`a.b c'd``e\"☃` STRING"),
    "odd table name": Feature((1, 2, 3)),
    "dropped partition column": Feature(
        (1, 2, 3),
        "a INT",
        before=("ALTER TABLE {t} ADD PARTITION FIELD a",),
        after=(
            "ALTER TABLE {t} DROP PARTITION FIELD a",
            "ALTER TABLE {t} DROP COLUMN a",
            # The first file stays in the old partition; what is left of the others gets manifests of the new spec.
            "DELETE FROM {t} WHERE id = 6",
            "DELETE FROM {t} WHERE id = 4",
            "INSERT INTO {t} VALUES (4L, 'us')",
            "DELETE FROM {t} WHERE id = 5",
            "INSERT INTO {t} VALUES (5L, 'us')",
        ),
    ),
    "view": Feature((0,)),
}
OPERATIONS: Final = {
    "compaction": MaintenanceOperation.COMPACTION,
    "expiry": MaintenanceOperation.SNAPSHOT_EXPIRY,
    "manifests": MaintenanceOperation.MANIFESTS,
    "orphans": MaintenanceOperation.ORPHAN_FILES,
}
WRITES: Final[dict[str, tuple[pa.Table, Rows]]] = {
    "append": (pa.table({"id": [10], "region": ["eu"]}), LIVE | {(10, "eu")}),
    "replace": (pa.table({"id": [11], "region": ["eu"]}), {row for row in LIVE if row[1] != "eu"} | {(11, "eu")}),
    "upsert": (
        pa.table({"id": [1, 12], "region": ["asia", "asia"]}),
        {row for row in LIVE if row[0] != 1} | {(1, "asia"), (12, "asia")},
    ),
    "new column": (pa.table({"id": [13], "region": ["eu"], "note": ["x"]}), LIVE | {(13, "eu")}),
}
ODD_NAMES: Final = {"note": "n.o t'e`\"☂"}
READS: Final = ("read", "health")
UNREADABLE_BY_PYICEBERG: Final = ("equality deletes", "`variant` column", "Avro files")
CHANGE_NO_METADATA: Final = (*READS, "orphans")
COLUMNS: Final = ("read", *WRITES, "delete", *OPERATIONS, "health")


@dataclass(frozen=True)
class Case:
    """A table of the matrix."""

    feature: str
    version: int

    @property
    def identifier(self) -> TableIdentifier:
        name = re.sub(r"\W+", "_", f"{self.feature} {self.version}").strip("_")
        return TableIdentifier.from_tuple(
            (NAMESPACE, f"o.d d`{self.version}" if self.feature == "odd table name" else name)
        )

    @property
    def in_spark(self) -> str:
        name = self.identifier.as_tuple[-1].replace("`", "``")
        return f"floe.{NAMESPACE}.`{name}`"

    def __str__(self) -> str:
        return f"{self.feature}, version {self.version}" if self.version else self.feature


CASES: Final = [Case(name, version) for name, feature in FEATURES.items() for version in feature.versions]


class MatrixLake:
    """A lake with the tables of the matrix, each of which can be restored to what it was when it was made."""

    def __init__(self, folder: Path) -> None:
        self.lake = SparkLake.open(folder)
        self._pristine, self._locations = folder / "pristine", dict[Case, str]()
        self._rows = dict[Case, list[tuple[int, str, int | None]]]()
        self.lake.manager.create_namespace(NAMESPACE)

    def make(self, case: Case) -> None:
        if case in self._locations:
            return
        if case.feature == "view":
            self.make(Case("none of these", 2))
            source = Case("none of these", 2).in_spark
            self.sql(f"CREATE VIEW {case.in_spark} AS SELECT id, region FROM {source}")  # noqa: S608 - constants
        else:
            self._make_table(case)
        self._locations[case], self._rows[case] = self.location(case), self.rows(case)
        assert sorted(row[:2] for row in self._rows[case]) == sorted(LIVE)
        if case.version:
            shutil.copytree(self._folder(case), self._pristine / str(case))

    def _make_table(self, case: Case) -> None:
        feature, table = FEATURES[case.feature], case.in_spark
        properties = {"format-version": str(case.version), **feature.properties}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        columns = ", ".join(filter(None, ("id BIGINT, region STRING", feature.columns)))
        self.sql(f"CREATE TABLE {table} ({columns}) TBLPROPERTIES ({listed})")
        for statement in (*feature.before, *(_INSERT + rows for rows in _FILES), *feature.after):
            self.sql(statement.format(t=table))
        feature.finish(self.lake, case.identifier)
        orphan = self._folder(case) / "data" / "left-behind.parquet"
        orphan.write_bytes(b"nothing")
        make_older(orphan, 30 * DAY)

    def _folder(self, case: Case) -> Path:
        table = self.lake.manager.catalog.load_table(case.identifier.as_tuple)
        return Path("/" + table.location().removeprefix("file:").lstrip("/"))

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.lake.session.sql(statement).collect()]

    def rows(self, case: Case) -> list[tuple[int, str, int | None]]:
        """Id, region and row id of all rows as raw Spark reads them, or PyIceberg where Spark cannot load the table."""
        if case.feature == "nanosecond timestamps":
            return [(*row, None) for row in self.rows_by_pyiceberg(case)]
        row_id = "_row_id" if case.version == 3 else "NULL"
        return self.sql(f"SELECT id, region, {row_id} FROM {case.in_spark}")  # type: ignore[return-value]  # noqa: S608

    def rows_by_pyiceberg(self, case: Case) -> list[tuple[int, str]]:
        """Id and region of all rows as PyIceberg's own scan reads them."""
        table = self.lake.iceberg.catalog.load_table(case.identifier.as_tuple)
        found = table.scan(selected_fields=("id", "region")).to_arrow().to_pylist()
        return [(row["id"], row["region"]) for row in found]

    def rows_at_first(self, case: Case) -> list[tuple[int, str, int | None]]:
        """The rows when the table was made."""
        return self._rows[case]

    def location(self, case: Case) -> str:
        return self._execute(
            "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?", case.identifier.as_tuple[-1]
        )

    def restore(self, case: Case) -> None:
        """Undo what was done to a table; a view is never changed."""
        if not case.version:
            return
        folder = self._folder(case)
        self._execute(
            "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = NULL WHERE table_name = ?",
            self._locations[case],
            case.identifier.as_tuple[-1],
        )
        shutil.rmtree(folder)
        shutil.copytree(self._pristine / str(case), folder)

    def _execute(self, statement: str, *values: str) -> str:
        with closing(sqlite3.connect(self.lake.folder / "catalog.db", timeout=60)) as database:
            found = database.execute(statement, values).fetchone()
            database.commit()
        return str(found[0]) if found else ""


class Operations:
    """The operations of the matrix on one table, by one engine, with or without a Spark to hand work to."""

    def __init__(self, lake: SparkLake, case: Case, engine: Engine, *, has_spark: bool) -> None:
        self._lake, self._case, self._engine, self._has_spark = lake, case, engine, has_spark

    def run(self, column: str) -> str:
        """What an operation ends with: done, done by Spark, or the name of an error."""
        try:
            match column:
                case _ if column in OPERATIONS:
                    return self._maintain(OPERATIONS[column])
                case "health":
                    assert TableMaintenance(self._manager).health(self._case.identifier, EAGER).data_files
                    return DONE
                case "delete":
                    assert self._manager.delete(self._case.identifier, "id = 2") is not None
                    return DONE
                case "read":
                    return self._read()
                case _:
                    return self._write(column)
        except FloeStorageError as error:
            return REFUSED[type(error).__name__]

    @property
    def _manager(self) -> IcebergTableManager:
        return self._lake.pyspark.table_manager if self._has_spark else self._lake.manager

    def _frame(self, rows: pa.Table) -> pa.Table | DataFrame:
        return self._lake.frame(rows) if self._engine == "Spark" else rows

    def _write(self, column: str) -> str:
        settings: dict[str, Any] = {"write_mode": "append"}
        partitions = None
        if column == "replace":
            settings, partitions = {"partition_expr": "region"}, dg.StaticPartitionsDefinition(["eu", "us"])
        elif column == "upsert":
            settings = {"upsert_keys": "id"}

        namespace, name = self._case.identifier.as_tuple

        @dg.asset(
            name="written",
            partitions_def=partitions,
            metadata=iceberg_settings(table=name, schema=namespace, **settings),
        )
        def written() -> Any:
            rows = WRITES[column][0]
            if self._case.feature == "odd column names":
                rows = rows.rename_columns([ODD_NAMES.get(name, name) for name in rows.column_names])
            return self._frame(rows)

        return self._materialize([written], "written", "eu" if partitions else None)

    def _read(self) -> str:
        namespace, name = self._case.identifier.as_tuple
        source = dg.AssetSpec("source", metadata=iceberg_settings(table=name, schema=namespace))
        loaded: Rows = set()
        inputs = {"source": dg.AssetIn(metadata={"columns": ["id", "region"]})}

        @dg.asset(ins=inputs)
        def by_arrow(source: pa.Table) -> None:
            loaded.update(tuple(row.values()) for row in source.to_pylist())

        @dg.asset(ins=inputs)
        def by_spark(source: DataFrame) -> None:
            loaded.update(tuple(row) for row in source.collect())

        reader = by_spark if self._engine == "Spark" else by_arrow
        outcome = self._materialize([source, reader], reader.op.name, None)
        assert outcome != DONE or loaded == LIVE, loaded
        return outcome

    def _materialize(self, assets: list[Any], node: str, key: str | None) -> str:
        spark = {"pyspark": self._lake.pyspark} if self._has_spark or self._engine == "Spark" else {}
        manager = IcebergIOManager(iceberg=self._lake.iceberg, **spark)  # type: ignore[arg-type]
        result = dg.materialize(assets, partition_key=key, resources={"io_manager": manager}, raise_on_error=False)
        if result.success:
            return DONE
        data = result.failure_data_for_node(node)
        assert data is not None
        assert data.user_failure_data is not None, data.error
        return REFUSED[str(data.user_failure_data.metadata["iceberg/error"].value)]

    def _maintain(self, operation: MaintenanceOperation) -> str:
        engine = MaintenanceEngine.SPARK if self._engine == "Spark" else MaintenanceEngine.PYICEBERG
        if self._engine == "Arrow" and self._has_spark:
            engine = MaintenanceEngine.AUTO
        when = later(30 * DAY) if operation is MaintenanceOperation.SNAPSHOT_EXPIRY else later(0 * DAY)
        maintenance = TableMaintenance(
            self._lake.pyspark.table_manager, spark=lambda: self._lake.session, clock=lambda: when
        )
        policy = EAGER.model_copy(update={"engine": engine})
        if maintenance.plan(operation, self._case.identifier, policy).reason is PlanReason.BLOCKED:
            return BLOCKED
        result = maintenance.execute(operation, self._case.identifier, policy)
        assert result.status is MaintenanceStatus.DONE, result
        return DONE


def outcome(matrix: MatrixLake, case: Case, engine: Engine, column: str) -> str:
    """What an operation of an engine does to a table of the matrix, checked against the table, which is restored."""
    location, what = matrix.location(case), f"{column} by {engine}"
    try:
        seen = Operations(matrix.lake, case, engine, has_spark=engine == "Spark").run(column)
        if seen != DONE and engine == "Arrow":
            assert matrix.location(case) == location, f"{what} was refused and changed the table"
            by_spark = Operations(matrix.lake, case, engine, has_spark=True).run(column)
            seen = BY_SPARK if by_spark == DONE else by_spark
        is_done = seen in (DONE, BY_SPARK)
        assert (matrix.location(case) != location) == (is_done and column not in CHANGE_NO_METADATA), what
        if is_done and column not in READS:
            _check_rows(matrix, case, _rows_after(column), what)
    finally:
        matrix.restore(case)
    return seen


def _check_rows(matrix: MatrixLake, case: Case, expected: Rows, what: str) -> None:
    """Check rows by Spark and PyIceberg, and that those which were there before have the ids that they had."""
    rows = matrix.rows(case)
    assert sorted(row[:2] for row in rows) == sorted(expected), what
    if case.feature not in UNREADABLE_BY_PYICEBERG:
        assert sorted(matrix.rows_by_pyiceberg(case)) == sorted(expected), f"{what}, read by PyIceberg"
    # Rows of an upgraded table get their ids with the first commit after it.
    kept = {number: row_id for number, _, row_id in matrix.rows_at_first(case) if row_id is not None}
    assert all(kept.get(number, row_id) == row_id for number, _, row_id in rows), what


def _rows_after(column: str) -> Rows:
    if column == "delete":
        return LIVE - {(2, "us")}
    return WRITES[column][1] if column in WRITES else LIVE


def documented(engine: Engine) -> dict[Case, dict[str, str]]:
    """The cells of an engine's table in docs/engines.md."""
    section = (DOCS / "engines.md").read_text().partition(f"\n### {engine}\n")[2].partition("\n#")[0]
    head, _, *rows = [_cells(line) for line in section.splitlines() if line.startswith("|")]
    return {
        Case(name, int(version or 0)): dict(zip(head[2:], cells, strict=True))
        for name, versions, *cells in rows
        for version in versions.split(", ")
    }


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]
