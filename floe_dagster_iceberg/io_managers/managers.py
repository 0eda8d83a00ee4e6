"""The IO manager for Arrow, pandas and polars frames."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pydantic import Field

from floe_dagster_iceberg.io_managers.base import IcebergIOManagerBase
from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.engines import Engine


class ArrowIcebergIOManager(IcebergIOManagerBase):
    """Stores `pyarrow.Table`, `pyarrow.RecordBatchReader`, pandas and polars frames in Iceberg tables.

    Inputs are loaded as what they are annotated with: those types, or `pyiceberg.table.Table`.
    """

    def engines(self) -> Sequence["Engine"]:
        """PyIceberg and Arrow alone."""
        from floe_dagster_iceberg.io_managers.engines import ArrowEngine  # noqa: PLC0415 - brings PyIceberg along

        return [ArrowEngine(self.table_manager)]


class SparkIcebergIOManager(IcebergIOManagerBase):
    """Stores `pyspark.sql.DataFrame`, of a classic session or of Spark Connect, in Iceberg tables.

    Inputs without an annotation are DataFrames, and nothing is read before they are computed;
    those that ask for Arrow, pandas or polars get that.
    """

    pyspark: IcebergSparkResource = Field(description="The Spark session that tables are read with.")

    def engines(self) -> Sequence["Engine"]:
        """Spark, and Arrow for inputs that ask for it."""
        from floe_dagster_iceberg.io_managers.engines import SparkOnlyEngine  # noqa: PLC0415 - brings PyIceberg along

        return [SparkOnlyEngine(cast("IcebergResource", self.iceberg), self.pyspark)]


class IcebergIOManager(IcebergIOManagerBase):
    """Stores any frame in an Iceberg table, with the engine that fits its type.

    Arrow, pandas and polars frames go through PyIceberg, Spark's DataFrames through Spark; what
    one engine wrote the other reads. Spark is started only by those who use it.
    """

    pyspark: IcebergSparkResource | None = Field(
        default=None, description="The Spark session; without it only Arrow, pandas and polars frames are taken."
    )

    def engines(self) -> Sequence["Engine"]:
        """PyIceberg and Arrow, and Spark if there is a session for it."""
        from floe_dagster_iceberg.io_managers.engines import ArrowEngine, SparkEngine  # noqa: PLC0415 - brings PyIceberg along

        arrow = ArrowEngine(self.table_manager)
        return (
            [arrow]
            if self.pyspark is None
            else [arrow, SparkEngine(cast("IcebergResource", self.iceberg), self.pyspark)]
        )
