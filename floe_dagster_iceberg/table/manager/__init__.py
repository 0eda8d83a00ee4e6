"""The table manager: public methods only, which resolve names, open a span and delegate."""

from floe_dagster_iceberg.table.manager.maintenance import CompactionOperations
from floe_dagster_iceberg.table.manager.rows import RowOperations
from floe_dagster_iceberg.table.manager.scan import ScanOperations
from floe_dagster_iceberg.table.manager.schema import SchemaOperations
from floe_dagster_iceberg.table.manager.snapshots import SnapshotOperations
from floe_dagster_iceberg.table.manager.tables import TableOperations


class IcebergTableManager(
    TableOperations, SchemaOperations, RowOperations, ScanOperations, SnapshotOperations, CompactionOperations
):
    """Tables of one catalog.

    Every method takes a table as 'namespace.name', as TableIdentifier or as PyIceberg Table, is
    one commit or none, and raises only errors of `floe_dagster_iceberg.errors`. Nothing is
    connected before the first use, nothing runs by itself.

    Args:
        catalog_plugin: A catalog plugin, or a PyIceberg catalog that is connected already.
        storage_plugin: Where files go; its settings are handed to the catalog when it connects.
        config: Retry budget, retention and default table properties.
        tracer: OpenTelemetry tracer; the global one if not given.
        logger: structlog logger; Python's logging if not given.
    """
