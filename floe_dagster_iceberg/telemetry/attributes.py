"""Attribute names of spans, metrics and log events; spelled only here.

OpenTelemetry has semantic conventions for errors, which are used, and none for table formats. Log events
replace the dots by underscores: `table.identifier` becomes `table_identifier`. Metrics only take attributes
of low cardinality: never a snapshot, a partition or a run.
"""

from typing import Final

SCOPE: Final = "floe_dagster_iceberg"
"""Instrumentation scope of spans and metrics, and name of the logger."""

# What is done, and to what.
OPERATION: Final = "operation"
CATALOG: Final = "catalog.name"
NAMESPACE: Final = "namespace"
TABLE: Final = "table.identifier"
ENGINE: Final = "engine"
COLUMNS: Final = "columns"
PROPERTY_NAMES: Final = "properties"
SCOPES: Final = "scope"
WRITE_MODE: Final = "write.mode"
COMMIT_STRATEGY: Final = "commit.strategy"
MAINTENANCE_OPERATION: Final = "maintenance.operation"
MAINTENANCE_ASSET: Final = "maintenance.asset"

# How it ended.
STATUS: Final = "status"
ERROR_TYPE: Final = "error.type"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
MAINTENANCE_STATUS: Final = "maintenance.status"

# What it did.
SNAPSHOT_ID: Final = "snapshot.id"
SNAPSHOT_OPERATION: Final = "snapshot.operation"
RECORDS_ADDED: Final = "records.added"
RECORDS_REMOVED: Final = "records.removed"
FILES_ADDED: Final = "files.added"
FILES_REMOVED: Final = "files.removed"
BYTES_ADDED: Final = "bytes.added"
BYTES_REMOVED: Final = "bytes.removed"
RECORDS_READ: Final = "records.read"
BYTES_READ: Final = "bytes.read"
PLAN_REASON: Final = "plan.reason"
DATA_FILES: Final = "data_files"
SNAPSHOTS_EXPIRED: Final = "snapshots.expired"
FILES_RESTORED: Final = "files.restored"
TABLES: Final = "tables"
ATTEMPTS: Final = "commit.attempts"
DEDUPLICATED: Final = "deduplicated"
TABLE_CREATED: Final = "table.created"
METADATA_LOCATION: Final = "metadata.location"
METADATA_LOCATION_BEFORE: Final = "metadata.location.before"

# The run that asked for it. Every operation of a run carries these, however deep.
DAGSTER: Final = "dagster."
ASSET_KEY: Final = "dagster.asset_key"
PARTITION_KEY: Final = "dagster.partition_key"
RUN_ID: Final = "dagster.run_id"
STEP_KEY: Final = "dagster.step_key"
