"""The manager's compaction methods."""

from floe_dagster_iceberg.models import CompactionStrategy, MaintenanceResult
from floe_dagster_iceberg.table.maintenance.compaction import compact
from floe_dagster_iceberg.table.manager.base import CatalogSession, table_attributes
from floe_dagster_iceberg.table.names import TableRef
from floe_dagster_iceberg.telemetry import set_maintenance_attributes, traced


class CompactionOperations(CatalogSession):
    """Rewriting files. Only when asked: the manager never starts it by itself."""

    @traced("compact_table", table_attributes, report=set_maintenance_attributes)
    def compact_table(self, table: TableRef, strategy: CompactionStrategy | None = None) -> MaintenanceResult:
        """Rewrite files that are too small or too large, in one commit that changes no row.

        Writers are not blocked. Rows that others add meanwhile stay; when others replace the very
        files being rewritten, their version wins and the rewrite is planned again.

        Args:
            table: The table.
            strategy: How files are arranged; bin-pack to 128 MiB if not given.

        Raises:
            ValidationError: A sort column is not in the table.
            EngineCapabilityError: Z-order, which only Spark can do.
            ScanError: A file to rewrite cannot be read.
            CommitConflictError: Others kept replacing the files being rewritten.
        """
        return compact(self._load(table), strategy or CompactionStrategy(), self._budget)
