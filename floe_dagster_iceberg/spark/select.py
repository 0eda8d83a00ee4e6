"""A SELECT whose tables are DataFrames: lazy, so nothing is read before the result is written."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.spark.errors import SPARK_ERRORS, redacted


def select(
    session: SparkSession, query: str, arguments: Mapping[str, Any], frames: Mapping[str, DataFrame]
) -> DataFrame:
    """Return the rows of a query.

    Args:
        session: The session.
        query: A SELECT in which `{name}` stands for a DataFrame and `:name` for an argument.
        arguments: The arguments.
        frames: The DataFrames.

    Raises:
        ValidationError: Spark cannot analyse the query, for instance because a column does not exist.
    """
    try:
        return session.sql(query, args=dict(arguments), **frames)
    except SPARK_ERRORS as error:
        condition = getattr(error, "getCondition", lambda: None)() or type(error).__name__
        raise ValidationError(
            f"Spark cannot run the SELECT ({condition}). Compare its columns with those of its tables; see the cause."
        ) from redacted(error)
