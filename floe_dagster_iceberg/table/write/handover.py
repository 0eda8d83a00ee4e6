"""Work that PyIceberg cannot do, handed to Spark if it is configured.

PyIceberg commits to no table of format version 3, and reads neither equality deletes nor Avro files. Such work fails
with an `EngineCapabilityError` before anything is committed; with a handover, Spark does it instead.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from floe_dagster_iceberg.errors import EngineCapabilityError
from floe_dagster_iceberg.models import SnapshotInfo, TableIdentifier
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget, MetadataCommitter
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult
from floe_dagster_iceberg.telemetry import annotate, attributes as attrs


class Handover(MetadataCommitter, Protocol):
    """An engine that does what PyIceberg cannot; this is Spark."""

    def create_table(
        self,
        catalog: Catalog,
        table: TableIdentifier,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str],
        *,
        location: str | None = None,
    ) -> Table:
        """Create an empty table, in the format version that its properties name."""

    def upgrade_format(self, table: Table, version: int) -> None:
        """Upgrade a table to a newer format version, and refresh the handle."""

    def write(
        self, catalog: Catalog, rows: ArrowRows, write: TableWrite, budget: CommitBudget, *, loaded: Table | None
    ) -> TableWriteResult:
        """Write rows into their table, exactly once; `loaded` is the table if it exists."""

    def delete(
        self,
        table: Table,
        where: BooleanExpression,
        budget: CommitBudget,
        *,
        snapshot_properties: Mapping[str, str],
        branch: str,
    ) -> SnapshotInfo | None:
        """Delete all rows matching a filter; None when no row matches."""

    def read(
        self,
        table: Table,
        *,
        snapshot_id: int | None,
        row_filter: BooleanExpression,
        columns: Sequence[str],
        only_added: bool = False,
        current_columns: bool = False,
    ) -> pa.Table:
        """Read rows into memory, in the table's types."""


HandoverProvider: TypeAlias = Callable[[], Handover]
"""Returns it; called when something is handed over, because it loads PySpark and starts Spark."""


def hand_over(
    limit: EngineCapabilityError, handover: HandoverProvider | None, *, possible: bool = True
) -> tuple[Handover, str]:
    """The engine that does what PyIceberg cannot, and the reason.

    Raises:
        EngineCapabilityError: The limit itself, if there is no other engine or the work cannot be repeated.
    """
    if handover is None or not possible or limit.engine == "spark":
        raise limit
    annotate({attrs.ENGINE: "spark"})
    return handover(), limit.reason or str(limit)
