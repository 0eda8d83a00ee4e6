"""An empty lake and one engine to fill it with: what behaviour tests are written against."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import pyarrow as pa
from dagster import AssetsDefinition, DagsterInstance, ExecuteInProcessResult, asset, materialize
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast
from support.place import Place
from support.spark_session import spark_resource, to_frame

from floe_dagster_iceberg.asset_settings import iceberg_settings
from floe_dagster_iceberg.io_managers.managers import (
    ArrowIcebergIOManager,
    IcebergIOManager,
    IcebergIOManagerBase,
    SparkIcebergIOManager,
)
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table.manager import IcebergTableManager

Columns = Mapping[str, Sequence[Any]]


@dataclass
class Warehouse(ABC):
    """An empty lake and one engine to fill it with."""

    engine: ClassVar[str]
    frame_type: ClassVar[type]
    """What inputs are annotated with to get a frame of the engine's own kind."""
    accepted_types: ClassVar[str]
    """What assets may return."""

    iceberg: IcebergResource
    io_manager: IcebergIOManagerBase
    instance: DagsterInstance

    @classmethod
    @abstractmethod
    def open(cls, place: Place, instance: DagsterInstance) -> Self:
        """An empty lake."""

    @abstractmethod
    def frame(self, columns: Columns | pa.Table, schema: pa.Schema | None = None) -> Any:
        """A frame of the engine's own kind."""

    @abstractmethod
    def broken_frame(self, columns: Columns) -> Any:
        """A frame that turns out to be broken once these rows of it are out."""

    @abstractmethod
    def overtaken_frame(self, columns: Columns, table: str, others: Columns) -> Any:
        """A frame of which the rows come out after another client has appended some to the table."""

    @abstractmethod
    def to_arrow(self, frame: Any) -> pa.Table:
        """The rows of a frame that the engine loaded."""

    @property
    def resources(self) -> Mapping[str, Any]:
        return {"io_manager": self.io_manager}

    @property
    def manager(self) -> IcebergTableManager:
        return self.iceberg.table_manager

    def with_settings(self, **settings: Any) -> Self:
        """The same lake through an IO manager with other settings."""
        own = {
            name: value
            for name in ("pyspark", "format_version")
            if (value := getattr(self.io_manager, name, None)) is not None
        }
        return replace(self, io_manager=type(self.io_manager)(**{"iceberg": self.iceberg, **own, **settings}))

    def in_environment(self, name: str) -> Self:
        """The same lake as a preview of this name has it."""
        settings = {field: getattr(self.iceberg, field) for field in type(self.iceberg).model_fields}
        iceberg = type(self.iceberg)(**{**settings, "environment": name})
        return replace(self.with_settings(iceberg=iceberg), iceberg=iceberg)

    def run(
        self,
        assets: AssetsDefinition | Sequence[AssetsDefinition],
        partition_key: str | None = None,
        *,
        key_range: tuple[str, str] | None = None,
        instance: DagsterInstance | None = None,
        **kwargs: Any,
    ) -> ExecuteInProcessResult:
        """Materialize assets for one partition, a range of them in one run, or none."""
        tags = dict(kwargs.pop("tags", {}))
        if key_range is not None:
            tags |= {
                "dagster/asset_partition_range_start": key_range[0],
                "dagster/asset_partition_range_end": key_range[1],
            }
        return materialize(
            [assets] if isinstance(assets, AssetsDefinition) else list(assets),
            partition_key=partition_key,
            resources=self.resources,
            instance=instance or self.instance,
            tags=tags,
            **kwargs,
        )

    def table(self, name: str) -> Table:
        """The table as a plain PyIceberg client sees it."""
        return self.iceberg.catalog.load_table(name if "." in name else f"public.{name}")

    def exists(self, name: str) -> bool:
        return bool(self.iceberg.catalog.table_exists(name if "." in name else f"public.{name}"))

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """All rows, sorted."""
        found = self.table(name).scan(selected_fields=columns or ("*",)).to_arrow()
        return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


class ArrowWarehouse(Warehouse):
    """Arrow tables through PyIceberg."""

    engine = "arrow"
    frame_type = pa.Table
    accepted_types = (
        "pyarrow.Table, pyarrow.RecordBatch, pyarrow.RecordBatchReader, pandas.DataFrame, "
        "polars.DataFrame, polars.LazyFrame"
    )

    @classmethod
    def open(cls, place: Place, instance: DagsterInstance) -> Self:
        iceberg = place.iceberg()
        return cls(iceberg, ArrowIcebergIOManager(iceberg=iceberg), instance)

    def frame(self, columns: Columns | pa.Table, schema: pa.Schema | None = None) -> pa.Table:
        return columns if isinstance(columns, pa.Table) else pa.table(dict(columns), schema=schema)

    def broken_frame(self, columns: Columns) -> pa.RecordBatchReader:
        rows = self.frame(columns)

        def batches() -> Any:
            yield from rows.to_batches()
            raise RuntimeError("the source broke off")

        return pa.RecordBatchReader.from_batches(rows.schema, batches())

    def overtaken_frame(self, columns: Columns, table: str, others: Columns) -> pa.RecordBatchReader:
        rows = self.frame(columns)

        def batches() -> Any:
            self.manager.append(f"public.{table}", self.frame(others))
            yield from rows.to_batches()

        return pa.RecordBatchReader.from_batches(rows.schema, batches())

    def to_arrow(self, frame: pa.Table) -> pa.Table:
        return frame


class SparkWarehouse(Warehouse):
    """DataFrames through Spark, in sessions of one application."""

    engine = "spark"
    frame_type = DataFrame
    accepted_types = "pyspark.sql.DataFrame"

    @classmethod
    def open(cls, place: Place, instance: DagsterInstance) -> Self:
        iceberg = place.iceberg()
        io_manager = SparkIcebergIOManager(iceberg=iceberg, pyspark=spark_resource(iceberg))
        return cls(iceberg, io_manager, instance)

    def frame(self, columns: Columns | pa.Table, schema: pa.Schema | None = None) -> DataFrame:
        return to_frame(self._session, columns, schema)

    def broken_frame(self, columns: Columns) -> DataFrame:
        first, *others = columns
        # Two tasks: by the time that the second one fails, the first has written its file.
        tasks = self._session.range(0, 2, numPartitions=2).toDF("floe_task")
        late = "raise_error(reflect('java.lang.Thread', 'sleep', 1000L))"
        rows = tasks.crossJoin(broadcast(self.frame(columns)))
        return rows.selectExpr(f"if(floe_task = 1, {late}, `{first}`) AS `{first}`", *others)

    def overtaken_frame(self, columns: Columns, table: str, others: Columns) -> DataFrame:
        rows, more = self.frame(columns), pa.table(dict(others))
        name, properties = self.table(table).name(), {"type": "sql", **self.iceberg.catalog.properties}

        def append_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            # In a process of Spark's own.
            load_catalog("floe", **properties).load_table(name).append(more)
            yield from batches

        return rows.mapInArrow(append_first, rows.schema)

    def to_arrow(self, frame: DataFrame) -> pa.Table:
        return frame.toArrow()

    @property
    def _session(self) -> SparkSession:
        assert isinstance(self.io_manager, SparkIcebergIOManager | IcebergIOManager)
        assert self.io_manager.pyspark is not None
        return self.io_manager.pyspark.spark_session


def _format_3(place: Place, instance: DagsterInstance) -> tuple[IcebergResource, IcebergIOManager, DagsterInstance]:
    iceberg = place.iceberg()
    return iceberg, IcebergIOManager(iceberg=iceberg, pyspark=spark_resource(iceberg), format_version=3), instance


class _Format3:
    """The table manager is that of Spark, because PyIceberg commits nothing to such tables."""

    io_manager: IcebergIOManager

    @property
    def manager(self) -> IcebergTableManager:
        assert self.io_manager.pyspark is not None
        return self.io_manager.pyspark.table_manager


class ArrowFormat3Warehouse(_Format3, ArrowWarehouse):
    """Arrow tables in tables of format version 3, which PyIceberg does not write: Spark does."""

    @classmethod
    def open(cls, place: Place, instance: DagsterInstance) -> Self:
        return cls(*_format_3(place, instance))


class SparkFormat3Warehouse(_Format3, SparkWarehouse):
    """DataFrames in tables of format version 3."""

    @classmethod
    def open(cls, place: Place, instance: DagsterInstance) -> Self:
        return cls(*_format_3(place, instance))


FORMAT_3_WAREHOUSES = {warehouse.engine: warehouse for warehouse in (ArrowFormat3Warehouse, SparkFormat3Warehouse)}
WAREHOUSES = {warehouse.engine: warehouse for warehouse in (ArrowWarehouse, SparkWarehouse)}


def frames_asset(*frames: Any, **settings: Any) -> AssetsDefinition:
    """An asset that returns one frame after the other."""
    left = iter(frames)

    @asset(metadata=iceberg_settings(**settings))
    def items() -> Any:
        return next(left)

    return items
