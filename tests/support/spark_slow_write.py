"""A write that takes its time, as a program, so that it can be killed half way.

Its arguments are the lake's folder and, to write over Connect, the address of the server.
"""

import sys
from pathlib import Path

from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - Spark's own convention
)
from support.spark_lake import SparkLake

from floe_dagster_iceberg.models import WriteMode

PARTS = 20
KEY = "slow-work"


def main(folder: str, remote: str | None = None) -> None:
    """Append slowly."""
    lake = SparkLake.open(Path(folder), remote=remote)
    if remote:
        _give_up_soon(lake)
    lake.write(slow_rows(lake), mode=WriteMode.APPEND, idempotency_key=KEY)


def slow_rows(lake: SparkLake) -> DataFrame:
    """A thousand rows in parts, a second between each."""
    wait = "if(id % 50 = 0 AND reflect('java.lang.Thread', 'sleep', 1000L) IS NOT NULL, id, id)"
    return lake.session.range(0, 50 * PARTS, numPartitions=PARTS).select(F.expr(wait).alias("id"))


def _give_up_soon(lake: SparkLake) -> None:
    """Spark's client waits more than ten minutes for a server to come back."""
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 - needs pyspark[connect]

    lake.session.client.set_retry_policies([DefaultPolicy(max_retries=3)])  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
