"""Which Dagster partitions the files of a table hold rows of, from manifests alone."""

from collections.abc import Mapping, Sequence

import dagster as dg
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table.metadata import TableMetadata

from floe_dagster_iceberg.partitions import PartitionExpr, build_slice
from floe_dagster_iceberg.table.filter.partition_slice import DEFAULT_NAIVE_TIMEZONE, to_expression
from floe_dagster_iceberg.table.filter.row_filter import FileMatcher


class PartitionKeys:
    """Finds the partitions that files may hold rows of, by their partition values and statistics.

    Args:
        metadata: Metadata of the table.
        partitions_def: The partitions.
        keys: All keys of the partitions.
        partition_expr: Column of the partitions, or one per dimension.
        partition_column: The column if `partition_expr` names none.
        naive_timezone: Time zone of timestamps without one.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        partitions_def: dg.PartitionsDefinition,
        keys: Sequence[str],
        *,
        partition_expr: PartitionExpr | None = None,
        partition_column: str | None = None,
        naive_timezone: str = DEFAULT_NAIVE_TIMEZONE,
    ) -> None:
        self._metadata, self._partitions_def, self._keys = metadata, partitions_def, keys
        self._expr = _renamed(metadata, partition_expr)
        self._column = None if partition_column is None else _current_name(metadata, partition_column)
        self._naive_timezone = naive_timezone

    def of_files(self, files: Sequence[DataFile]) -> list[str]:
        """Keys in Dagster's order."""
        return self._search(self._keys, files)

    def rows_of(self, keys: Sequence[str]) -> tuple[list[str], BooleanExpression]:
        """The partition columns, and the filter of exactly the rows of these keys."""
        rows = build_slice(self._partitions_def, keys, partition_expr=self._expr, partition_column=self._column)
        row_filter = to_expression(rows, self._metadata.schema(), naive_timezone=self._naive_timezone)
        return list(rows.columns), row_filter

    def _search(self, keys: Sequence[str], files: Sequence[DataFile]) -> list[str]:
        # By halves: adjacent time windows are one range, so that a few keys are found among thousands quickly.
        if not keys or not files:
            return []
        _, row_filter = self.rows_of(keys)
        matcher = FileMatcher(self._metadata, row_filter)
        matching = [file for file in files if not matcher.no_row(file)]
        if not matching or len(keys) == 1:
            return list(keys) if matching else []
        middle = len(keys) // 2
        return [*self._search(keys[:middle], matching), *self._search(keys[middle:], matching)]


def _renamed(metadata: TableMetadata, expr: PartitionExpr | None) -> PartitionExpr | None:
    """The columns of partitions by their current names: an asset may name them as they were before a rename."""
    if isinstance(expr, Mapping):
        return {dimension: _current_name(metadata, column) for dimension, column in expr.items()}
    return None if expr is None else _current_name(metadata, expr)


def _current_name(metadata: TableMetadata, column: str) -> str:
    """The name of the column that has this name, or else had it last."""
    schemas = (metadata.schema(), *reversed(metadata.schemas))
    found = next((schema.find_field(column) for schema in schemas if column in schema.column_names), None)
    name = None if found is None else metadata.schema().find_column_name(found.field_id)
    return name or column
