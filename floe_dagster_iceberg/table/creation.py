"""A new table, staged: its columns, its layout, and the snapshot that it begins with."""

import pyarrow as pa
from pyiceberg.catalog import Catalog

from floe_dagster_iceberg.table._pyiceberg import CreateTransaction, SnapshotProducer
from floe_dagster_iceberg.table.branches import fork_branch
from floe_dagster_iceberg.table.file_changes import FileChanges
from floe_dagster_iceberg.table.partition_layout import PartitionLayout
from floe_dagster_iceberg.table.schemas import to_iceberg_schema, to_iceberg_spec
from floe_dagster_iceberg.table.uncommitted import UncommittedFiles
from floe_dagster_iceberg.table.write import PreparedFiles, TableWrite


def open_new_table(catalog: Catalog, rows: pa.Schema, write: TableWrite) -> CreateTransaction:
    """Stage a table with the rows' columns and the write's layout and properties."""
    schema = to_iceberg_schema(write.table, rows)
    layout = write.layout() if callable(write.layout) else write.layout
    spec = layout.to_pyiceberg_spec(schema) if isinstance(layout, PartitionLayout) else layout
    return CreateTransaction.open(
        catalog,
        write.table.as_tuple,
        schema,
        to_iceberg_spec(write.table, schema, spec),
        {**write.default_properties, **write.properties},
    )


def stage_first_snapshot(
    transaction: CreateTransaction,
    *,
    write: TableWrite,
    snapshot_id: int,
    prepared: PreparedFiles,
    files: UncommittedFiles,
) -> None:
    """Stage the snapshot that a table begins with, of files that are written already."""
    files.next_attempt()
    changes = FileChanges(added=prepared.writer.finish())
    fork_branch(transaction, write.branch, None)
    SnapshotProducer(
        transaction,
        changes,
        operation=changes.operation,
        snapshot_id=snapshot_id,
        snapshot_properties=write.summary_properties,
        branch=write.branch,
    ).commit()
    files.send()
