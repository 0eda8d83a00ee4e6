"""The IO manager that takes either kind of frame."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pydantic import Field

from floe_dagster_iceberg.io_managers.base import IcebergIOManagerBase
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark_resource import IcebergSparkResource

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.engine import Engine


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
        from floe_dagster_iceberg.io_managers.arrow_engine import ArrowEngine  # noqa: PLC0415 - brings PyIceberg along
        from floe_dagster_iceberg.io_managers.spark_engine import SparkEngine  # noqa: PLC0415 - brings PyIceberg along

        arrow = ArrowEngine(self.table_manager)
        return (
            [arrow]
            if self.pyspark is None
            else [arrow, SparkEngine(cast("IcebergResource", self.iceberg), self.pyspark)]
        )
