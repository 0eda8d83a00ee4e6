"""Spark does what PyIceberg cannot: Arrow rows are written and read through DataFrames."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table

from floe_dagster_iceberg.models import SnapshotInfo, WriteMode
from floe_dagster_iceberg.spark import exactly_once
from floe_dagster_iceberg.spark.arrow_frames import to_arrow, to_frame
from floe_dagster_iceberg.spark.committer import SparkCommitter
from floe_dagster_iceberg.spark.jobs import run_action
from floe_dagster_iceberg.spark.scan import empty_frame, open_frame, selected_schema
from floe_dagster_iceberg.spark.write import delete_rows
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.commit.refs import head_of
from floe_dagster_iceberg.table.names import to_identifier
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite, TableWriteResult


class SparkHandover(SparkCommitter):
    """The Spark of an `IcebergSparkResource`, for rows in Arrow. It is started when something is handed over."""

    def write(
        self, catalog: Catalog, rows: ArrowRows, write: TableWrite, budget: CommitBudget, *, loaded: Table | None
    ) -> TableWriteResult:
        """Write rows into their table, exactly once, with the guarantees of Spark's DataFrames.

        Raises:
            EngineCapabilityError: Spark does not have the type of a column.
            FloeStorageError: As `exactly_once.write_once` says.
        """
        frame = to_frame(self._session(), rows)
        if write.idempotency_key is None:
            # Snapshots of Spark have random ids, so the write is found by its key.
            write = replace(write, idempotency_key=uuid.uuid4().hex)
        return exactly_once.write_once(catalog, frame, write, budget, loaded=loaded, columns=rows.columns)

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
        write = TableWrite(
            to_identifier(table),
            WriteMode.OVERWRITE,
            scope=RowScope(row_filter=where),
            idempotency_key=uuid.uuid4().hex,
            snapshot_properties=snapshot_properties,
            branch=branch,
        )
        session, head = self._session(), head_of(table.metadata, branch, str(write.table))
        if head is None:
            return None
        matching = open_frame(session, table, snapshot_id=head.snapshot_id, row_filter=where)
        if run_action(session, matching.isEmpty):
            return None
        return delete_rows(table, empty_frame(session, table.schema()), write, budget).snapshot

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
        frame = open_frame(
            self._session(),
            table,
            snapshot_id=snapshot_id,
            row_filter=row_filter,
            columns=columns,
            only_added=only_added,
            current_columns=current_columns,
        )
        return to_arrow(frame, selected_schema(table, None if current_columns else snapshot_id, columns))
