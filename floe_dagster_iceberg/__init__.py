"""Dagster-first Apache Iceberg: assets return Arrow tables or DataFrames, this package keeps them in Iceberg tables.

The public names are all models, all errors, and those listed here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from floe_dagster_iceberg import errors, models
from floe_dagster_iceberg.errors import *  # noqa: F403 - it has an __all__
from floe_dagster_iceberg.models import *  # noqa: F403 - it has an __all__

if TYPE_CHECKING:
    from floe_dagster_iceberg.artifacts import CompiledArtifacts
    from floe_dagster_iceberg.asset_settings import iceberg_settings
    from floe_dagster_iceberg.audits.asset import audited_asset, audited_assets
    from floe_dagster_iceberg.audits.checks import (
        AuditCheck,
        accepted_values,
        freshness_within,
        matches_schema,
        not_null,
        row_count_between,
        row_count_change_within,
        unique,
    )
    from floe_dagster_iceberg.audits.table import AuditedTable
    from floe_dagster_iceberg.catch_up import build_catch_up_sensor
    from floe_dagster_iceberg.environment_jobs import build_environment_definitions
    from floe_dagster_iceberg.factory import IcebergBundle, create_iceberg_resources
    from floe_dagster_iceberg.io_managers.create import create_io_manager, create_io_manager_from_artifacts
    from floe_dagster_iceberg.io_managers.managers import ArrowIcebergIOManager, IcebergIOManager, SparkIcebergIOManager
    from floe_dagster_iceberg.maintenance.definitions import build_maintenance_definitions
    from floe_dagster_iceberg.maintenance.health_checks import build_health_checks
    from floe_dagster_iceberg.observations.checks import build_writer_checks
    from floe_dagster_iceberg.observations.definitions import build_iceberg_observations
    from floe_dagster_iceberg.observations.deletion import build_delete_partitions_job
    from floe_dagster_iceberg.observations.sensor import build_table_change_sensor
    from floe_dagster_iceberg.resources import IcebergResource, IcebergSparkResource
    from floe_dagster_iceberg.table.environments import IcebergEnvironments
    from floe_dagster_iceberg.table.manager import IcebergTableManager
    from floe_dagster_iceberg.table.manager.changes import TableChanges

# These import an engine or Dagster, so they are loaded on first use: a code location loads quickly.
_HOMES = {
    "ArrowIcebergIOManager": "io_managers.managers",
    "AuditCheck": "audits.checks",
    "AuditedTable": "audits.table",
    "CompiledArtifacts": "artifacts",
    "IcebergBundle": "factory",
    "IcebergEnvironments": "table.environments",
    "IcebergIOManager": "io_managers.managers",
    "IcebergResource": "resources",
    "IcebergSparkResource": "resources",
    "IcebergTableManager": "table.manager",
    "SparkIcebergIOManager": "io_managers.managers",
    "TableChanges": "table.manager.changes",
    "build_catch_up_sensor": "catch_up",
    "accepted_values": "audits.checks",
    "audited_asset": "audits.asset",
    "audited_assets": "audits.asset",
    "build_delete_partitions_job": "observations.deletion",
    "build_environment_definitions": "environment_jobs",
    "build_health_checks": "maintenance.health_checks",
    "build_iceberg_observations": "observations.definitions",
    "build_maintenance_definitions": "maintenance.definitions",
    "build_table_change_sensor": "observations.sensor",
    "build_writer_checks": "observations.checks",
    "create_iceberg_resources": "factory",
    "create_io_manager": "io_managers.create",
    "create_io_manager_from_artifacts": "io_managers.create",
    "freshness_within": "audits.checks",
    "iceberg_settings": "asset_settings",
    "matches_schema": "audits.checks",
    "not_null": "audits.checks",
    "row_count_between": "audits.checks",
    "row_count_change_within": "audits.checks",
    "unique": "audits.checks",
}

__all__ = [
    "ArrowIcebergIOManager",
    "AuditCheck",
    "AuditedTable",
    "CompiledArtifacts",
    "IcebergBundle",
    "IcebergEnvironments",
    "IcebergIOManager",
    "IcebergResource",
    "IcebergSparkResource",
    "IcebergTableManager",
    "SparkIcebergIOManager",
    "TableChanges",
    "accepted_values",
    "audited_asset",
    "audited_assets",
    "build_catch_up_sensor",
    "build_delete_partitions_job",
    "build_environment_definitions",
    "build_health_checks",
    "build_iceberg_observations",
    "build_maintenance_definitions",
    "build_table_change_sensor",
    "build_writer_checks",
    "create_iceberg_resources",
    "create_io_manager",
    "create_io_manager_from_artifacts",
    "freshness_within",
    "iceberg_settings",
    "matches_schema",
    "not_null",
    "row_count_between",
    "row_count_change_within",
    "unique",
]
__all__ += errors.__all__
__all__ += models.__all__
__all__.remove("IDENTIFIER_PATTERN")  # noqa: PYI056 - mypy and Pyright support it
__all__.sort()


if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
        value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
