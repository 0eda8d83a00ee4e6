"""Whether the key columns of a frame can identify its rows."""

from collections.abc import Sequence

from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - Spark's own convention
)

from floe_dagster_iceberg.spark.interruption import run_action
from floe_dagster_iceberg.spark.names import quote
from floe_dagster_iceberg.table.upsert import null_keys_error, repeated_keys_error


def check_frame_keys(table: str, frame: DataFrame, keys: Sequence[str]) -> None:
    """Refuse keys that are NULL or appear twice; one job.

    Raises:
        ValidationError: They do.
    """
    grouped = frame.groupBy(*(F.col(quote(key)).alias(f"key_{number}") for number, key in enumerate(keys)))
    nulls = [
        F.sum(F.when(F.col(f"key_{number}").isNull(), F.col("n")).otherwise(0)).alias(f"nulls_{number}")
        for number in range(len(keys))
    ]
    repeated = F.sum(F.col("n") - 1).alias("repeated")
    counted = grouped.agg(F.count(F.lit(1)).alias("n")).agg(repeated, *nulls)
    found = run_action(frame.sparkSession, counted.first)
    if found is None:
        return
    for number, key in enumerate(keys):
        if rows := found[f"nulls_{number}"]:
            raise null_keys_error(table, key, rows=rows)
    if rows := found["repeated"]:
        raise repeated_keys_error(table, keys, rows=rows)
