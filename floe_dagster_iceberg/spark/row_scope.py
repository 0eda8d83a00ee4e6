"""Whether a DataFrame's rows belong to the Dagster partitions that are being written.

Rows are checked while they are written, so that an asset's DataFrame is computed once. Where rows
outside are an error, the first one fails the job before anything is committed; only then are they
counted, for the message. Where they are dropped or allowed, Spark counts them during the write.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pyarrow as pa
from pyiceberg.schema import Schema
from pyspark.sql import Column, DataFrame, Observation, functions as F  # noqa: N812 - Spark's own convention

from floe_dagster_iceberg.errors import RowsOutsidePartitionError
from floe_dagster_iceberg.spark.filters import column_paths, to_condition
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.types import quote
from floe_dagster_iceberg.table.filter.partition_slice import column_values, find_column
from floe_dagster_iceberg.table.write.row_scope import RowScope

ROW_OUTSIDE_PARTITION: Final = "floe:row-outside-partition"


@dataclass(frozen=True)
class OutsideCount:
    """Rows outside the partitions, and those of them where a partition column is NULL."""

    rows: int = 0
    null_rows: int = 0


class SparkPartitionCheck:
    """The check of the rows of one write against its partitions, as `PartitionCheck` is for Arrow.

    Attributes:
        condition: SQL condition that selects the rows of the partitions.

    Raises:
        ValidationError: The partition columns are not in the table, or cannot identify the partitions.
    """

    def __init__(self, scope: RowScope, table: str, schema: Schema) -> None:
        self._scope, self._table, self._schema = scope, table, schema
        self._checks_nothing = scope.rows.is_all_rows
        self.condition = to_condition(scope.expression(schema), schema)
        self._observation: Observation | None = None

    def check_columns(self, columns: pa.Table) -> None:
        """Refuse rows that lack a partition column.

        Raises:
            ValidationError: One is missing.
        """
        if not columns.column_names:
            # Rows without columns are NULL everywhere, and so outside.
            return
        for name in self._scope.rows.columns:
            column_values(columns, name)

    def filter(self, frame: DataFrame) -> DataFrame:
        """The rows that may be written; rows outside fail the job, or are counted while it runs."""
        if self._checks_nothing:
            return frame
        match self._scope.rows_outside:
            case "error":
                return self._failing(frame)
            case "drop":
                return self._observed(frame).where(self._inside)
            case "allow":
                return self._observed(frame)

    def filter_counted(self, frame: DataFrame, found: OutsideCount) -> DataFrame:
        """The rows that may be written, after rows outside were counted.

        Raises:
            RowsOutsidePartitionError: There are some, and that is an error.
        """
        if found.rows and self._scope.rows_outside == "error":
            raise self.error(found)
        return frame.where(self._inside) if self._scope.rows_outside == "drop" else frame

    def dropped(self, found: OutsideCount) -> int:
        """Rows outside that were left out."""
        return found.rows if self._scope.rows_outside == "drop" else 0

    def count(self, frame: DataFrame) -> OutsideCount:
        """Count rows outside in a separate job."""
        if self._checks_nothing:
            return OutsideCount()
        found = run_action(frame.sparkSession, frame.agg(*self._counters).first)
        return OutsideCount() if found is None else OutsideCount(**found.asDict())

    def counted(self, frame: DataFrame, *, rows_written: int) -> OutsideCount:
        """The rows outside that were counted while the result of `filter` was written."""
        if self._scope.rows_outside == "error" or self._checks_nothing:
            return OutsideCount()
        if self._observation is None or not rows_written:
            # Without rows Spark may skip the observation, and waiting for it would never end.
            return self.count(frame)
        return OutsideCount(**self._observation.get)

    def error(self, found: OutsideCount) -> RowsOutsidePartitionError:
        return RowsOutsidePartitionError(
            self._table,
            columns=self._scope.rows.columns,
            rows=found.rows,
            null_rows=found.null_rows,
            partition=str(self._scope.rows),
        )

    @cached_property
    def _paths(self) -> list[tuple[str, ...]]:
        paths = column_paths(self._schema)
        return [paths[find_column(self._schema, name).field_id] for name in self._scope.rows.columns]

    @property
    def _inside(self) -> Column:
        return F.coalesce(F.expr(self.condition), F.lit(False))  # noqa: FBT003 - a literal for Spark

    @property
    def _counters(self) -> list[Column]:
        has_null = F.expr(" OR ".join(f"{quote(*path)} IS NULL" for path in self._paths) or "FALSE")
        return [
            F.count_if(~self._inside).alias("rows"),
            F.count_if(~self._inside & has_null).alias("null_rows"),
        ]

    def _failing(self, frame: DataFrame) -> DataFrame:
        # In place of a column that is written: Spark may move a filter before a join or another filter,
        # where it sees rows that those remove.
        root = self._paths[0][0] if self._paths else self._schema.fields[0].name
        failure = F.raise_error(F.lit(ROW_OUTSIDE_PARTITION))
        return frame.withColumn(root, F.when(self._inside, F.col(quote(root))).otherwise(failure))

    def _observed(self, frame: DataFrame) -> DataFrame:
        self._observation = Observation()
        return frame.observe(self._observation, *self._counters)
