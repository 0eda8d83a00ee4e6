"""A job of ops that other processes can build: `report(clean(fetch()))`, in which `clean` fails on demand."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from dagster import Failure, JobDefinition, in_process_executor, job, multiprocess_executor, op
from pyspark.sql import DataFrame
from support.spark_session import spark_resource, to_frame

from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager, SparkIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource


def break_clean(folder: Path, *, broken: bool) -> None:
    """Decide whether the op `clean` fails from now on."""
    (folder / "broken").touch() if broken else (folder / "broken").unlink()


def received(folder: Path) -> list[list[int]]:
    """What the op `report` was given, run by run: the numbers of the fetches."""
    return [json.loads(line) for line in (folder / "received").read_text().splitlines()]


def _next_number(folder: Path) -> int:
    with (folder / "fetches").open("a+") as file:
        file.write("x")
    return len((folder / "fetches").read_text())


def build_job(folder: str, engine: str, executor: str) -> JobDefinition:
    """The job on a folder's lake."""
    here = Path(folder)
    iceberg = IcebergResource(catalog_uri=f"sqlite:///{here}/catalog.db", warehouse=f"file://{here}/warehouse")
    is_arrow = engine == "arrow"
    frame_type: Any = pa.Table if is_arrow else DataFrame
    spark = None if is_arrow else spark_resource(iceberg)
    arrow_manager, spark_manager = ArrowIcebergIOManager, SparkIcebergIOManager
    io_manager = arrow_manager(iceberg=iceberg) if spark is None else spark_manager(iceberg=iceberg, pyspark=spark)

    @op
    def fetch() -> Any:
        rows = pa.table({"fetch": [_next_number(here)]})
        return rows if spark is None else to_frame(spark.spark_session, rows)

    @op
    def clean(rows: frame_type) -> Any:
        if (here / "broken").exists():
            raise Failure("broken on demand", allow_retries=False)
        return rows

    @op
    def report(rows: frame_type) -> None:
        found = rows if spark is None else rows.toArrow()
        with (here / "received").open("a") as file:
            file.write(json.dumps(found["fetch"].to_pylist()) + "\n")

    @job(
        resource_defs={"io_manager": io_manager},
        executor_def=multiprocess_executor if executor == "multiprocess" else in_process_executor,
    )
    def pipeline() -> None:
        report(clean(fetch()))

    return pipeline
