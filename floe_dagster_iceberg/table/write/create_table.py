"""New tables: their namespaces, and the transaction that creates a table with its first rows."""

from collections.abc import Mapping
from contextlib import suppress

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg._pyiceberg.snapshot_producer import SnapshotProducer
from floe_dagster_iceberg._pyiceberg.transaction import CreateTransaction
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import TableIdentifier
from floe_dagster_iceberg.models.writing import FORMAT_VERSION
from floe_dagster_iceberg.table.commit.commit import view_exists
from floe_dagster_iceberg.table.commit.refs import fork_branch
from floe_dagster_iceberg.table.names import check_new_name
from floe_dagster_iceberg.table.properties import check_properties
from floe_dagster_iceberg.table.schema.convert import to_iceberg_schema, to_iceberg_spec, with_docs
from floe_dagster_iceberg.table.schema.partition_spec import PartitionLayout
from floe_dagster_iceberg.table.write.uncommitted_files import UncommittedFiles
from floe_dagster_iceberg.table.write.write import PreparedFiles, TableWrite


def check_new_table(catalog: Catalog, identifier: TableIdentifier) -> None:
    """Check that a table of this name may be created.

    Raises:
        ValidationError: The name breaks the naming rule, or a view has it.
    """
    check_new_name(identifier)
    if view_exists(catalog, identifier):
        raise ValidationError(
            f"'{identifier}' is a view in catalog '{catalog.name}', so there cannot be a table of that name. Nothing "
            "was created. Give the asset or table another name, or drop the view.",
            table=identifier,
        )


def ensure_namespace(catalog: Catalog, levels: tuple[str, ...], properties: Mapping[str, str] | None = None) -> None:
    """Create a namespace and those above it, as far as they are missing."""
    # Before creating it: a user who may use a namespace need not be allowed to create one.
    if catalog.namespace_exists(levels):
        return
    ensure_parent(catalog, levels)
    try:
        catalog.create_namespace_if_not_exists(levels, dict(properties or {}))
    except Exception:
        # The response may have been lost, and some servers report a race with an error of their own.
        exists = False
        with suppress(Exception):
            exists = catalog.namespace_exists(levels)
        if not exists:
            raise


def ensure_parent(catalog: Catalog, levels: tuple[str, ...]) -> None:
    """Create what is missing above a namespace; Polaris, for one, creates nothing below a gap."""
    if parent := levels[:-1]:
        ensure_namespace(catalog, parent)


def open_new_table(catalog: Catalog, rows: pa.Schema, write: TableWrite) -> CreateTransaction:
    """Stage a table with the rows' columns and the write's layout and properties."""
    schema = with_docs(to_iceberg_schema(write.table, rows), write.column_docs)
    spec, properties = spec_of_new_table(schema, write), properties_of_new_table(write)
    check_properties(properties, write.table)
    return CreateTransaction.open(catalog, write.table.as_tuple, schema, spec, properties)


def spec_of_new_table(schema: Schema, write: TableWrite) -> PartitionSpec:
    """The partition spec that a write gives a new table."""
    layout = write.layout() if callable(write.layout) else write.layout
    spec = layout.to_pyiceberg_spec(schema) if isinstance(layout, PartitionLayout) else layout
    return to_iceberg_spec(write.table, schema, spec)


def properties_of_new_table(write: TableWrite) -> dict[str, str]:
    """The properties that a write gives a new table, its format version among them."""
    return {**write.default_properties, **write.properties, FORMAT_VERSION: str(write.format_version)}


def stage_first_snapshot(
    transaction: CreateTransaction,
    *,
    write: TableWrite,
    snapshot_id: int,
    prepared: PreparedFiles,
    files: UncommittedFiles,
) -> None:
    """Stage the first snapshot of a table, from files that are written already."""
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
