"""Which rows of the table a write is about, and whether the rows handed over belong there."""

from dataclasses import dataclass
from typing import Literal, Protocol

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema

from floe_dagster_iceberg.errors import RowsOutsidePartitionError
from floe_dagster_iceberg.models.partition_slice import PartitionSlice
from floe_dagster_iceberg.table.slice_filter import DEFAULT_NAIVE_TIMEZONE, match_rows, to_expression

RowsOutside = Literal["error", "drop", "allow"]


class RowGuard:
    """Lets every row in and counts none."""

    rows_outside = 0
    rows_dropped = 0

    def admit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a batch that may be written."""
        return batch

    def finish(self) -> None:
        """Called after the last batch and before the commit; raises when the rows may not be written."""


class RowScope(Protocol):
    """Rows of a table, told once its columns are known."""

    def expression(self, schema: Schema) -> BooleanExpression:
        """The filter that selects them."""

    def guard(self, table: str, schema: Schema) -> RowGuard:
        """A fresh guard for rows that are to be written into them."""


@dataclass(frozen=True)
class FilterScope:
    """The rows matching an expression; what is written into them is the caller's business."""

    row_filter: BooleanExpression

    def expression(self, schema: Schema) -> BooleanExpression:  # noqa: ARG002 - the expression is given
        """The expression itself."""
        return self.row_filter

    def guard(self, table: str, schema: Schema) -> RowGuard:  # noqa: ARG002 - nothing is checked
        """A guard that lets everything in."""
        return RowGuard()


@dataclass(frozen=True)
class SliceScope:
    """The rows of Dagster partitions."""

    rows: PartitionSlice
    rows_outside: RowsOutside = "error"
    naive_timezone: str = DEFAULT_NAIVE_TIMEZONE

    def expression(self, schema: Schema) -> BooleanExpression:
        """The slice compiled for the table's types."""
        return to_expression(self.rows, schema, naive_timezone=self.naive_timezone)

    def guard(self, table: str, schema: Schema) -> RowGuard:
        """A guard that compares each row with the slice."""
        return RowGuard() if self.rows.is_all_rows else _SliceGuard(self, table, schema)


class _SliceGuard(RowGuard):
    def __init__(self, scope: SliceScope, table: str, schema: Schema) -> None:
        self._scope, self._table, self._schema = scope, table, schema
        self._null_rows = 0

    def admit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        found = match_rows(self._scope.rows, batch, self._schema, naive_timezone=self._scope.naive_timezone)
        self.rows_outside += found.rows_outside
        self._null_rows += found.null_rows
        if self._scope.rows_outside != "drop" or not found.rows_outside:
            return batch
        self.rows_dropped += found.rows_outside
        return batch.filter(found.inside.combine_chunks())

    def finish(self) -> None:
        # Only now is the count complete; nothing is committed yet.
        if self._scope.rows_outside == "error" and self.rows_outside:
            raise RowsOutsidePartitionError(
                self._table,
                columns=self._scope.rows.columns,
                rows=self.rows_outside,
                null_rows=self._null_rows,
                partition=str(self._scope.rows),
            )
