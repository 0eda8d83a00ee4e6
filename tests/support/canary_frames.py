"""Spark frames that fail when they are computed, with words that quote their rows."""

from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - Spark's own convention
)


def cast_in_spark(frame: DataFrame) -> DataFrame:
    return frame.select(F.col("name").cast("bigint").alias("id"))


def raised_by_spark(frame: DataFrame) -> DataFrame:
    return frame.selectExpr("if(id = 2, 'b', raise_error(concat('cannot stand ', name))) AS name")


def failing_worker(frame: DataFrame) -> DataFrame:
    def refuse(name: str) -> str:
        raise ValueError(f"cannot stand {name}")

    # With annotations Spark takes it for one that handles whole columns.
    refuse.__annotations__.clear()
    return frame.select(F.udf(refuse, "string")("name").alias("name"))
