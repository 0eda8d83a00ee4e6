"""Dagster-first Apache Iceberg: assets return Arrow or Spark frames, this package keeps the tables."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from floe_dagster_iceberg.errors import (
    CatalogAuthenticationError,
    CatalogConnectionError,
    CommitConflictError,
    CommitOutcomeUnknownError,
    CompactionError,
    ConcurrencyConflictError,
    EngineCapabilityError,
    FloeStorageError,
    IcebergError,
    IncompatibleSchemaChangeError,
    MaintenanceRefusedError,
    NamespaceNotFoundError,
    NoSuchNamespaceError,
    NoSuchTableError,
    PluginNotFoundError,
    RollbackError,
    RowsOutsidePartitionError,
    ScanError,
    SchemaEvolutionError,
    SecretNotFoundError,
    SnapshotNotFoundError,
    StaleTableMetadataError,
    TableAlreadyExistsError,
    TableExistsError,
    TableNotFoundError,
    ValidationError,
    WriteError,
)
from floe_dagster_iceberg.models import (
    ColumnType,
    CommitStrategy,
    CompactionPolicy,
    CompactionStrategy,
    CompactionStrategyType,
    DecimalOf,
    ExpiryPolicy,
    FieldType,
    FileSizeBin,
    FixedOf,
    Guardrail,
    HealthThresholds,
    HealthTier,
    IcebergIOManagerConfig,
    IcebergTableManagerConfig,
    ListOf,
    MaintenanceBudget,
    MaintenanceEngine,
    MaintenanceOperation,
    MaintenancePlan,
    MaintenancePolicy,
    MaintenanceResult,
    MaintenanceStatus,
    ManifestPolicy,
    MapOf,
    OperationType,
    OrphanPolicy,
    PartitionField,
    PartitionSpec,
    PartitionTransform,
    PlanReason,
    RetryConfig,
    RowFilter,
    SchemaChange,
    SchemaChangeType,
    SchemaEvolution,
    SchemaField,
    SnapshotInfo,
    StaleTableRecoveryMode,
    StructOf,
    TableConfig,
    TableHealth,
    TableIdentifier,
    TableSchema,
    Threshold,
    WriteConfig,
    WriteMode,
)

if TYPE_CHECKING:
    from floe_dagster_iceberg.artifacts import CompiledArtifacts
    from floe_dagster_iceberg.asset_settings import iceberg_settings
    from floe_dagster_iceberg.factory import IcebergBundle, create_iceberg_resources
    from floe_dagster_iceberg.io_managers.arrow import ArrowIcebergIOManager
    from floe_dagster_iceberg.io_managers.build import create_io_manager, create_io_manager_from_artifacts
    from floe_dagster_iceberg.io_managers.either import IcebergIOManager
    from floe_dagster_iceberg.io_managers.spark import SparkIcebergIOManager
    from floe_dagster_iceberg.maintenance.definitions import build_maintenance_definitions
    from floe_dagster_iceberg.maintenance.health_checks import build_health_checks
    from floe_dagster_iceberg.resources import IcebergResource
    from floe_dagster_iceberg.spark_resource import IcebergSparkResource
    from floe_dagster_iceberg.table.manager import IcebergTableManager

# What brings an engine or Dagster along is loaded when it is first asked for: a code location loads quickly.
_HOMES = {
    "ArrowIcebergIOManager": "io_managers.arrow",
    "CompiledArtifacts": "artifacts",
    "IcebergBundle": "factory",
    "IcebergIOManager": "io_managers.either",
    "IcebergResource": "resources",
    "IcebergSparkResource": "spark_resource",
    "IcebergTableManager": "table.manager",
    "SparkIcebergIOManager": "io_managers.spark",
    "build_health_checks": "maintenance.health_checks",
    "build_maintenance_definitions": "maintenance.definitions",
    "create_iceberg_resources": "factory",
    "create_io_manager": "io_managers.build",
    "create_io_manager_from_artifacts": "io_managers.build",
    "iceberg_settings": "asset_settings",
}

__all__ = [
    "ArrowIcebergIOManager",
    "CatalogAuthenticationError",
    "CatalogConnectionError",
    "ColumnType",
    "CommitConflictError",
    "CommitOutcomeUnknownError",
    "CommitStrategy",
    "CompactionError",
    "CompactionPolicy",
    "CompactionStrategy",
    "CompactionStrategyType",
    "CompiledArtifacts",
    "ConcurrencyConflictError",
    "DecimalOf",
    "EngineCapabilityError",
    "ExpiryPolicy",
    "FieldType",
    "FileSizeBin",
    "FixedOf",
    "FloeStorageError",
    "Guardrail",
    "HealthThresholds",
    "HealthTier",
    "IcebergBundle",
    "IcebergError",
    "IcebergIOManager",
    "IcebergIOManagerConfig",
    "IcebergResource",
    "IcebergSparkResource",
    "IcebergTableManager",
    "IcebergTableManagerConfig",
    "IncompatibleSchemaChangeError",
    "ListOf",
    "MaintenanceBudget",
    "MaintenanceEngine",
    "MaintenanceOperation",
    "MaintenancePlan",
    "MaintenancePolicy",
    "MaintenanceRefusedError",
    "MaintenanceResult",
    "MaintenanceStatus",
    "ManifestPolicy",
    "MapOf",
    "NamespaceNotFoundError",
    "NoSuchNamespaceError",
    "NoSuchTableError",
    "OperationType",
    "OrphanPolicy",
    "PartitionField",
    "PartitionSpec",
    "PartitionTransform",
    "PlanReason",
    "PluginNotFoundError",
    "RetryConfig",
    "RollbackError",
    "RowFilter",
    "RowsOutsidePartitionError",
    "ScanError",
    "SchemaChange",
    "SchemaChangeType",
    "SchemaEvolution",
    "SchemaEvolutionError",
    "SchemaField",
    "SecretNotFoundError",
    "SnapshotInfo",
    "SnapshotNotFoundError",
    "SparkIcebergIOManager",
    "StaleTableMetadataError",
    "StaleTableRecoveryMode",
    "StructOf",
    "TableAlreadyExistsError",
    "TableConfig",
    "TableExistsError",
    "TableHealth",
    "TableIdentifier",
    "TableNotFoundError",
    "TableSchema",
    "Threshold",
    "ValidationError",
    "WriteConfig",
    "WriteError",
    "WriteMode",
    "build_health_checks",
    "build_maintenance_definitions",
    "create_iceberg_resources",
    "create_io_manager",
    "create_io_manager_from_artifacts",
    "iceberg_settings",
]


if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise believe in any name.

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
