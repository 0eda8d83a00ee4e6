"""The table manager: one typed API over PyIceberg.

Public methods only: each resolves names, opens a span and delegates to `write`, `commit`, `schema` or `maintenance`.
"""

from floe_dagster_iceberg.table.manager.changes import ChangeOperations
from floe_dagster_iceberg.table.manager.rows import RowOperations
from floe_dagster_iceberg.table.manager.schema import SchemaOperations
from floe_dagster_iceberg.table.manager.snapshots import SnapshotOperations
from floe_dagster_iceberg.table.manager.tables import TableOperations


class IcebergTableManager(TableOperations, SchemaOperations, RowOperations, ChangeOperations, SnapshotOperations):
    """Tables of one catalog.

    Every method takes a table as 'namespace.name', as TableIdentifier or as PyIceberg Table, is one commit or
    none, and raises only errors of `floe_dagster_iceberg.errors`. The first use connects to the catalog.

    Args:
        catalog_plugin: A catalog plugin, or a connected PyIceberg catalog.
        storage_plugin: Where files go; the catalog gets its settings when it connects.
        config: Retry budget, retention and default table properties.
        tracer: OpenTelemetry tracer; the global one if not given.
        logger: structlog logger; Python's logging if not given.
    """
