"""A lake of its own for a test, and the Spark engine to fill it with, without a Dagster run around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from support.spark_session import spark_resource, to_frame

from floe_dagster_iceberg.models import TableIdentifier, WriteMode
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS, KeySet, PartitionSlice
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource, TableManagerSettings
from floe_dagster_iceberg.spark.exactly_once import write_once
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult

EVENTS = TableIdentifier.from_string("public.events")


def keyed(column: str, *keys: str) -> PartitionSlice:
    """The rows whose column is one of these."""
    return PartitionSlice(any_of=((KeySet(column=column, keys=keys),),))


@dataclass
class SparkLake:
    """An empty catalog and a Spark session that knows it."""

    folder: Path
    iceberg: IcebergResource
    pyspark: IcebergSparkResource
    _keys: count = field(default_factory=count)  # type: ignore[type-arg]

    @classmethod
    def open(cls, folder: Path, *, remote: str | None = None) -> "SparkLake":
        """A lake in a folder, through the Spark of all tests or a Connect server."""
        iceberg = IcebergResource(
            catalog_uri=f"sqlite:///{folder}/catalog.db",
            warehouse=f"file://{folder}/warehouse",
            manager=TableManagerSettings(retry_base_delay_seconds=0.1),
        )
        pyspark = IcebergSparkResource(iceberg=iceberg, remote=remote) if remote else spark_resource(iceberg)
        return cls(folder, iceberg, pyspark)

    @property
    def session(self) -> SparkSession:
        return self.pyspark.spark_session

    @property
    def manager(self) -> IcebergTableManager:
        return self.iceberg.table_manager

    def frame(self, columns: Mapping[str, Sequence[Any]] | pa.Table, schema: pa.Schema | None = None) -> DataFrame:
        return to_frame(self.session, columns, schema)

    def write(
        self,
        frame: DataFrame,
        *,
        rows: PartitionSlice = ALL_ROWS,
        rows_outside: Any = "error",
        mode: WriteMode = WriteMode.OVERWRITE,
        **write: Any,
    ) -> TableWriteResult:
        """Put a frame into a table, as new work unless an idempotency key says otherwise."""
        write = {"table": EVENTS, "idempotency_key": f"work-{next(self._keys)}", **write}
        scope = RowScope(rows, rows_outside=rows_outside)
        budget = CommitBudget.from_config(self.manager.config)
        return write_once(self.manager.catalog, frame, TableWrite(mode=mode, scope=scope, **write), budget)

    def create(self, schema: pa.Schema, rows: pa.Table | None = None, **table: Any) -> Table:
        """The events table, made by the table manager."""
        self.manager.create_namespace("public", if_not_exists=True)
        created = self.manager.create_table(EVENTS, schema, **table)
        if rows is not None:
            self.manager.append(EVENTS, rows)
        return created

    def table(self) -> Table:
        return self.iceberg.catalog.load_table(EVENTS.as_tuple)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """All rows of the events, sorted, as PyIceberg reads them."""
        found = self.table().scan(selected_fields=columns or ("*",)).to_arrow()
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)

    def files(self) -> set[str]:
        """Names of the data files on disk, committed or not."""
        return {path.name for path in (self.folder / "warehouse").rglob("*.parquet")}
