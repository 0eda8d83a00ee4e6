"""The IO manager for Spark DataFrames."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from pydantic import Field

from floe_dagster_iceberg.io_managers.base import IcebergIOManagerBase
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.spark_resource import IcebergSparkResource

if TYPE_CHECKING:
    from floe_dagster_iceberg.io_managers.engine import Engine


class SparkIcebergIOManager(IcebergIOManagerBase):
    """Stores `pyspark.sql.DataFrame`, of a classic session or of Spark Connect, in Iceberg tables.

    Inputs without an annotation are DataFrames, and nothing is read before they are computed;
    those that ask for Arrow, pandas or polars get that.
    """

    pyspark: IcebergSparkResource = Field(description="The Spark session that tables are read with.")

    def engines(self) -> Sequence["Engine"]:
        """Spark, and Arrow for inputs that ask for it."""
        from floe_dagster_iceberg.io_managers.spark_engine import SparkOnlyEngine  # noqa: PLC0415 - brings PyIceberg along

        return [SparkOnlyEngine(cast("IcebergResource", self.iceberg), self.pyspark)]
