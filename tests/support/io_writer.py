"""Many processes that materialize a partition each of one new table, all at the same time.

They are forked from one that has everything imported and nothing opened, so that they start
together instead of one after the other.
"""

import multiprocessing
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from dagster import AssetExecutionContext, DailyPartitionsDefinition, asset, materialize

from floe_dagster_iceberg._pyiceberg import sql_catalog as _sql_catalog
from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager
from floe_dagster_iceberg.resources import IcebergResource
from floe_dagster_iceberg.table import manager

FIRST, ROWS = date(2024, 1, 1), 10
LONGEST_WAIT_SECONDS = 300
# Loaded by the first use otherwise, which would be sixteen times.
PRELOADED = (_sql_catalog, manager)


@asset(partitions_def=DailyPartitionsDefinition("2024-01-01"), metadata={"partition_expr": "day"})
def events(context: AssetExecutionContext) -> pa.Table:
    day = date.fromisoformat(context.partition_key)
    return pa.table({"day": [day] * ROWS, "number": list(range(ROWS))})


@asset
def warm_up() -> None:
    """Makes Dagster load what it loads in its first run, which would be sixteen times otherwise."""


def open_iceberg(folder: Path) -> IcebergResource:
    return IcebergResource(catalog_uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")


def key_of(number: int) -> str:
    return (FIRST + timedelta(days=number)).isoformat()


def write(folder: Path, number: int) -> None:
    io_manager = ArrowIcebergIOManager(iceberg=open_iceberg(folder))
    materialize([events], partition_key=key_of(number), resources={"io_manager": io_manager})


def work(folder: Path, number: int, turns: int, together: Any) -> None:
    for turn in range(turns):
        together.wait(LONGEST_WAIT_SECONDS)
        write(folder / f"turn-{turn}", number)


def main(folder: Path, writers: int, turns: int) -> int:
    """How many writers failed."""
    materialize([warm_up])
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(writers)
    for turn in range(turns):
        (folder / f"turn-{turn}").mkdir()
    processes = [fork.Process(target=work, args=(folder, number, turns, together)) for number in range(writers)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return sum(process.exitcode != 0 for process in processes)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
