"""What an engine must do for the IO managers, so that they need not know which one they use."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg.asset_settings import InputSettings
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.models.partition_slice import PartitionSlice
from floe_dagster_iceberg.table.filters import to_row_filter
from floe_dagster_iceberg.table.slice_filter import DEFAULT_NAIVE_TIMEZONE, to_expression
from floe_dagster_iceberg.table.write import TableWrite, TableWriteResult


@dataclass(frozen=True)
class ReadRequest:
    """Which rows of which table an input asks for.

    Attributes:
        table: The table.
        rows: The rows of the upstream partitions.
        settings: Columns, filter and version.
        naive_timezone: Time zone of timestamps that have none.
        empty_schema: Columns of the frame that stands for a table that is not there yet, as for an
            asset that reads its own earlier partition in its first run; None when that is an error.
    """

    table: TableIdentifier
    rows: PartitionSlice
    settings: InputSettings = field(default_factory=InputSettings)
    naive_timezone: str = DEFAULT_NAIVE_TIMEZONE
    empty_schema: Schema | None = None

    @property
    def ref(self) -> str | None:
        """Branch or tag to read; None is main."""
        ref = self.settings.tag or self.settings.branch
        return None if ref == MAIN_BRANCH else ref

    def row_filter(self, table: Table) -> BooleanExpression:
        """The filter that selects the rows, in terms of the table's columns.

        Raises:
            ValidationError: The input's own filter does not fit the table, or a partition column is not there.
        """
        rows = to_expression(self.rows, table.schema(), naive_timezone=self.naive_timezone)
        asked = self.settings.row_filter
        return rows if asked is None else And(rows, to_row_filter(table, asked))


class Engine(Protocol):
    """Moves rows between frames of its own kind and tables."""

    name: str
    accepted_types: str
    loadable_types: str

    def accepts(self, data: Any) -> bool:
        """Whether it can write this frame."""

    def write(self, data: Any, write: TableWrite) -> TableWriteResult:
        """Write a frame into its table, exactly once."""

    def loads(self, annotation: Any) -> bool:
        """Whether it can read a table as what the annotation names."""

    def read(self, request: ReadRequest, annotation: Any) -> Any:
        """Read rows as what the annotation names."""
