"""A Dagster run whose write takes its time, as a program, so that it can be terminated half way."""

import sys
from pathlib import Path

import dagster as dg
from pyspark.sql import DataFrame
from support.spark_lake import SparkLake
from support.spark_slow_write import slow_rows

from floe_dagster_iceberg.io_managers.managers import SparkIcebergIOManager


def main(folder: str) -> None:
    """Append slowly, to the table that is there."""
    lake = SparkLake.open(Path(folder))

    @dg.asset
    def events() -> DataFrame:
        return slow_rows(lake)

    io_manager = SparkIcebergIOManager(iceberg=lake.iceberg, pyspark=lake.pyspark)
    dg.materialize([events], resources={"io_manager": io_manager}, raise_on_error=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
