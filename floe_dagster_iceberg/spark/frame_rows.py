"""The rows of a frame as one attempt writes them, for the schema that the table has then."""

from contextlib import suppress
from dataclasses import replace
from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - Spark's own convention
)

from floe_dagster_iceberg.models import WriteMode
from floe_dagster_iceberg.spark.failures import SPARK_ERRORS
from floe_dagster_iceberg.spark.guard import OutsideCount, SparkPartitionCheck
from floe_dagster_iceberg.spark.interruption import run_action
from floe_dagster_iceberg.spark.keys import check_frame_keys
from floe_dagster_iceberg.spark.names import quote
from floe_dagster_iceberg.spark.rows import conform, nullable_but_required, refuse_nulls
from floe_dagster_iceberg.spark.schemas import to_arrow_schema
from floe_dagster_iceberg.spark.write import arrange
from floe_dagster_iceberg.table.upsert import check_keys
from floe_dagster_iceberg.table.write import TableWrite

# Partitions, so that `coalesce` leaves a frame of rows in memory as it is.
_MORE_THAN_ANY_FRAME_HAS: Final = 1_000_000


class FrameRows:
    """A frame that fits a schema, checked against the slice it is written to.

    Args:
        frame: The frame as the asset returned it.
        schema: Schema that the table has, or is about to get.
        write: Where the rows go.

    Raises:
        ValidationError: A column that the slice or an upsert needs is missing or of a wrong type.
        EngineCapabilityError: Spark cannot write one of the table's types.
    """

    def __init__(self, frame: DataFrame, schema: Schema, write: TableWrite) -> None:
        self._write, self._name, self._table_schema = write, str(write.table), schema
        self.where = write.scope.expression(schema)
        self.partition_check = SparkPartitionCheck(self._name, write.scope, schema)
        columns = to_arrow_schema(frame.schema, schema).empty_table()
        self.partition_check.check_columns(columns)
        self._schema = schema
        if write.mode is WriteMode.UPSERT:
            check_keys(self._name, schema, columns, write.keys)
            self._schema = Schema(*(field for field in schema.fields if field.name in frame.columns))
        self._rows = conform(_left_to_executors(frame), self._schema)
        self._kept: DataFrame | None = None
        self._outside: OutsideCount | None = None

    def fits(self, schema: Schema) -> bool:
        """Whether the rows were made for the same columns."""
        return schema.fields == self._table_schema.fields

    def check(self) -> None:
        """Find out everything that could be wrong with the rows, by jobs of their own.

        Raises:
            RowsOutsidePartitionError: Rows lie outside the partitions, and that is an error.
            ValidationError: Keys are NULL or appear twice.
        """
        if self._write.mode is WriteMode.UPSERT:
            # An upsert reads its rows several times: here twice, and again to match them.
            self._kept = self._rows = self._rows.persist()
        self._outside = self.partition_check.count(self._rows)
        rows = self.partition_check.filter_counted(self._rows, self._outside)
        if self._write.mode is WriteMode.UPSERT:
            check_frame_keys(self._name, rows, self._write.keys)

    def close(self) -> None:
        """Let go of rows that were kept."""
        # A Spark that has died keeps none.
        with suppress(*SPARK_ERRORS):
            if self._kept is not None:
                self._kept.unpersist()

    def passing(self, table: Table) -> DataFrame:
        """The rows for `append` and `replace`, failing or counted as they pass, arranged for the files."""
        rows = refuse_nulls(self.partition_check.filter(self._rows), self._schema)
        if not self._write.sort_by:
            return rows
        return arrange(rows, table, table.catalog.name, self._write.sort_by)

    def checked(self) -> DataFrame:
        """The rows for `merge`, after `check`."""
        rows = self.partition_check.filter_counted(self._rows, self._outside or OutsideCount())
        return refuse_nulls(rows, self._schema)

    def outside(self, *, rows_written: int) -> OutsideCount:
        """Rows outside the partitions, once the rows are written."""
        return self._outside or self.partition_check.counted(self._rows, rows_written=rows_written)

    def count_outside(self) -> OutsideCount:
        """Rows outside, for the message; at least the one that failed the job."""
        found = self.partition_check.count(self._rows)
        return replace(found, rows=max(found.rows, 1))

    def count_nulls(self) -> dict[str, int]:
        """NULLs in columns that the table requires."""
        columns = nullable_but_required(self._rows, self._schema)
        counted = self._rows.agg(*(F.count_if(F.col(quote(name)).isNull()) for name in columns))
        found = run_action(self._rows.sparkSession, counted.first)
        return {} if found is None else dict(zip(columns, found, strict=True))


def _left_to_executors(frame: DataFrame) -> DataFrame:
    """The frame, kept from being computed while Spark plans.

    Of rows in memory Spark's optimizer works out simple columns itself: row by row, on the driver, one core. The
    checks that are added here would be done that way. It does not look through a `coalesce`.
    """
    return frame.coalesce(_MORE_THAN_ANY_FRAME_HAS) if frame.isLocal() else frame
