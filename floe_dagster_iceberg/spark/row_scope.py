"""Whether a frame's rows belong to the Dagster partitions that are being written.

While the rows are written, not before: an asset's frame is computed once. Where rows outside
are an error, the first of them fails the job, so nothing is committed; only then are they
counted, for the message. Where they are dropped or allowed, Spark counts them as they pass.
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
    """The check of one frame's rows against one slice.

    Args:
        table: The table, for messages.
        scope: The slice, and what happens to rows outside.
        schema: Schema of the table; the frame has its columns.

    Raises:
        ValidationError: The slice's columns are not in the table, or cannot tell the partitions apart.
    """

    def __init__(self, table: str, scope: RowScope, schema: Schema) -> None:
        self._table, self._scope, self._schema = table, scope, schema
        self.condition = to_condition(scope.expression(schema), schema)
        self._observation: Observation | None = None

    @property
    def is_needed(self) -> bool:
        """Whether there can be rows outside."""
        return not self._scope.rows.is_all_rows

    def check_columns(self, columns: pa.Table) -> None:
        """Refuse rows that lack a partition column.

        Raises:
            ValidationError: One is missing.
        """
        if not columns.column_names:
            # As good as no rows; should there be any, they are NULL everywhere and so outside.
            return
        for name in self._scope.rows.columns:
            column_values(columns, name)

    def filter(self, frame: DataFrame) -> DataFrame:
        """The frame as it may be written, counted or failing as it passes."""
        if not self.is_needed:
            return frame
        match self._scope.rows_outside:
            case "error":
                return self._failing(frame)
            case "drop":
                return self.inside(self._observed(frame))
            case "allow":
                return self._observed(frame)

    def filter_counted(self, frame: DataFrame, found: OutsideCount) -> DataFrame:
        """The frame as it may be written, once its rows outside are counted.

        Raises:
            RowsOutsidePartitionError: There are some, and that is an error.
        """
        if found.rows and self._scope.rows_outside == "error":
            raise self.error(found)
        return self.inside(frame) if self._scope.rows_outside == "drop" else frame

    def inside(self, frame: DataFrame) -> DataFrame:
        """The rows that belong to the partitions."""
        return frame.where(self._inside)

    def dropped(self, found: OutsideCount) -> int:
        """Those of the rows outside that are left out."""
        return found.rows if self._scope.rows_outside == "drop" else 0

    def count(self, frame: DataFrame) -> OutsideCount:
        """Count rows outside, by a job of its own."""
        if not self.is_needed:
            return OutsideCount()
        found = run_action(frame.sparkSession, frame.agg(*self._counters).first)
        return OutsideCount() if found is None else OutsideCount(found["outside"], found["nulls"])

    def counted(self, frame: DataFrame, *, rows_written: int) -> OutsideCount:
        """What was counted while the rows that `filter` returned were written.

        Args:
            frame: The frame that was handed to `filter`.
            rows_written: Rows that were written. When there are none Spark may skip the counting,
                and would be waited for without effect.
        """
        if self._scope.rows_outside == "error" or not self.is_needed:
            return OutsideCount()
        if self._observation is None or not rows_written:
            return self.count(frame)
        found = self._observation.get
        return OutsideCount(found["outside"], found["nulls"])

    def error(self, found: OutsideCount) -> RowsOutsidePartitionError:
        """What to raise for rows outside."""
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
            F.count_if(~self._inside).alias("outside"),
            F.count_if(~self._inside & has_null).alias("nulls"),
        ]

    def _failing(self, frame: DataFrame) -> DataFrame:
        # In place of a column that is written: a filter might be moved to where rows still come
        # by that a join or filter takes away later.
        root = self._paths[0][0] if self._paths else self._schema.fields[0].name
        failure = F.raise_error(F.lit(ROW_OUTSIDE_PARTITION))
        return frame.withColumn(root, F.when(self._inside, F.col(quote(root))).otherwise(failure))

    def _observed(self, frame: DataFrame) -> DataFrame:
        self._observation = Observation()
        return frame.observe(self._observation, *self._counters)
