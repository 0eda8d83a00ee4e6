"""Frozen value types that users write or receive. Imports no engine."""

from floe_dagster_iceberg.models.config import (
    IcebergIOManagerConfig,
    IcebergTableManagerConfig,
    RetryConfig,
    StaleTableRecoveryMode,
)
from floe_dagster_iceberg.models.evolution import SchemaChange, SchemaChangeType, SchemaEvolution
from floe_dagster_iceberg.models.fields import (
    ColumnType,
    DecimalOf,
    FieldType,
    FixedOf,
    ListOf,
    MapOf,
    SchemaField,
    StructOf,
)
from floe_dagster_iceberg.models.identifiers import IDENTIFIER_PATTERN, TableIdentifier
from floe_dagster_iceberg.models.maintenance import (
    CompactionPolicy,
    CompactionStrategy,
    CompactionStrategyType,
    ExpiryPolicy,
    Guardrail,
    HealthThresholds,
    MaintenanceBudget,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePolicy,
    ManifestPolicy,
    OrphanPolicy,
    Threshold,
)
from floe_dagster_iceberg.models.maintenance_results import (
    FileSizeBin,
    HealthTier,
    MaintenancePlan,
    MaintenanceResult,
    MaintenanceStatus,
    PlanReason,
    TableHealth,
)
from floe_dagster_iceberg.models.partitioning import PartitionField, PartitionSpec, PartitionTransform
from floe_dagster_iceberg.models.schema import TableConfig, TableSchema
from floe_dagster_iceberg.models.snapshots import OperationType, SnapshotInfo
from floe_dagster_iceberg.models.writing import CommitStrategy, RowFilter, WriteConfig, WriteMode

__all__ = [
    "IDENTIFIER_PATTERN",
    "ColumnType",
    "CommitStrategy",
    "CompactionPolicy",
    "CompactionStrategy",
    "CompactionStrategyType",
    "DecimalOf",
    "ExpiryPolicy",
    "FieldType",
    "FileSizeBin",
    "FixedOf",
    "Guardrail",
    "HealthThresholds",
    "HealthTier",
    "IcebergIOManagerConfig",
    "IcebergTableManagerConfig",
    "ListOf",
    "MaintenanceBudget",
    "MaintenanceEngine",
    "MaintenanceOperation",
    "MaintenancePlan",
    "MaintenancePolicy",
    "MaintenanceResult",
    "MaintenanceStatus",
    "ManifestPolicy",
    "MapOf",
    "OperationType",
    "OrphanPolicy",
    "PartitionField",
    "PartitionSpec",
    "PartitionTransform",
    "PlanReason",
    "RetryConfig",
    "RowFilter",
    "SchemaChange",
    "SchemaChangeType",
    "SchemaEvolution",
    "SchemaField",
    "SnapshotInfo",
    "StaleTableRecoveryMode",
    "StructOf",
    "TableConfig",
    "TableHealth",
    "TableIdentifier",
    "TableSchema",
    "Threshold",
    "WriteConfig",
    "WriteMode",
]
