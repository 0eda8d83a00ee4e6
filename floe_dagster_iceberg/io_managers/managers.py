"""The IO managers: for Arrow, pandas and polars, for Spark, and for both."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pydantic import Field

from floe_dagster_iceberg.io_managers.base import IcebergIOManagerBase
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.engines import Engine


class ArrowIcebergIOManager(IcebergIOManagerBase):
    """Stores `pyarrow.Table`, `pyarrow.RecordBatchReader`, pandas and polars DataFrames in Iceberg tables.

    Inputs are loaded as their annotated type: one of those, or `pyiceberg.table.Table`.
    """

    def engines(self) -> Sequence["Engine"]:
        from floe_dagster_iceberg.io_managers.engines import ArrowEngine  # noqa: PLC0415 - brings PyIceberg along

        return [ArrowEngine(self.table_manager)]


class SparkIcebergIOManager(IcebergIOManagerBase):
    """Stores `pyspark.sql.DataFrame`, of a classic session or of Spark Connect, in Iceberg tables.

    Inputs are loaded as their annotated type; without one as DataFrames, which are read when they are computed.
    """

    pyspark: IcebergSparkResource = Field(description="The Spark session that tables are read with.")

    def engines(self) -> Sequence["Engine"]:
        from floe_dagster_iceberg.io_managers.engines import SparkOnlyEngine  # noqa: PLC0415 - brings PyIceberg along

        return [SparkOnlyEngine(cast("IcebergResource", self.iceberg), self.pyspark)]


class IcebergIOManager(IcebergIOManagerBase):
    """Stores any DataFrame in an Iceberg table, with the engine for its type.

    Arrow, pandas and polars use PyIceberg, Spark's DataFrames use Spark; each engine reads what the other wrote.
    Spark is started when it is first used.
    """

    pyspark: IcebergSparkResource | None = Field(
        default=None, description="The Spark session; without it only Arrow, pandas and polars are supported."
    )

    def engines(self) -> Sequence["Engine"]:
        from floe_dagster_iceberg.io_managers.engines import ArrowEngine, SparkEngine  # noqa: PLC0415 - brings PyIceberg along

        engines: list[Engine] = [ArrowEngine(self.table_manager)]
        if self.pyspark is not None:
            engines.append(SparkEngine(cast("IcebergResource", self.iceberg), self.pyspark))
        return engines
