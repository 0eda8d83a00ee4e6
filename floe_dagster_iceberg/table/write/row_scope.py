"""Which rows of a table a write replaces, and whether the written rows belong to them."""

from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema

from floe_dagster_iceberg.errors import RowsOutsidePartitionError
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS, PartitionSlice
from floe_dagster_iceberg.models.writing import RowsOutside
from floe_dagster_iceberg.table.filter.partition_slice import DEFAULT_NAIVE_TIMEZONE, match_rows, to_expression


@dataclass(frozen=True)
class RowScope:
    """The rows of Dagster partitions, or those that match a filter.

    Attributes:
        rows: The rows of the partitions.
        rows_outside: What happens to written rows that do not belong to them.
        naive_timezone: Time zone of timestamps that have none.
        row_filter: The filter, instead of partitions; written rows are not checked against it.
    """

    rows: PartitionSlice = ALL_ROWS
    rows_outside: RowsOutside = "error"
    naive_timezone: str = DEFAULT_NAIVE_TIMEZONE
    row_filter: BooleanExpression | None = None

    def expression(self, schema: Schema) -> BooleanExpression:
        if self.row_filter is not None:
            return self.row_filter
        return to_expression(self.rows, schema, naive_timezone=self.naive_timezone)


class PartitionCheck:
    """The check of the rows of one write against its partitions.

    Attributes:
        rows_outside: Rows that do not belong to the partitions.
        rows_dropped: Those of them that were dropped.
    """

    def __init__(self, scope: RowScope, table: str, schema: Schema) -> None:
        self._scope, self._table, self._schema = scope, table, schema
        self._checks_nothing = scope.rows.is_all_rows
        self.rows_outside = self.rows_dropped = self._null_rows = 0

    def filter(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that may be written."""
        if self._checks_nothing:
            return batch
        scope = self._scope
        found = match_rows(scope.rows, batch, self._schema, naive_timezone=scope.naive_timezone)
        self.rows_outside += found.rows_outside
        self._null_rows += found.null_rows
        if scope.rows_outside != "drop" or not found.rows_outside:
            return batch
        self.rows_dropped += found.rows_outside
        return batch.filter(found.inside.combine_chunks())

    def finish(self) -> None:
        """Called after the last batch and before the commit.

        Raises:
            RowsOutsidePartitionError: Rows do not belong to the partitions, and that is an error.
        """
        if self._scope.rows_outside == "error" and self.rows_outside:
            raise RowsOutsidePartitionError(
                self._table,
                columns=self._scope.rows.columns,
                rows=self.rows_outside,
                null_rows=self._null_rows,
                partition=str(self._scope.rows),
            )
