"""Whether the key columns of a frame can identify its rows."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.spark.interruption import run_action
from floe_dagster_iceberg.spark.names import quote


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
            raise ValidationError(
                f"{rows} rows for '{table}' hold NULL in join column '{key}' and would match nothing. "
                "Fill or drop them.",
                table=table,
            )
    if rows := found["repeated"]:
        raise ValidationError(
            f"{rows} rows for '{table}' repeat a key of ({', '.join(keys)}). "
            "Deduplicate the rows: an upsert cannot tell which of them to keep.",
            table=table,
        )
