"""Keys that this package writes into snapshot summaries and table properties, each once."""

from typing import Final

RUN_ID: Final = "dagster.run-id"
STEP_KEY: Final = "dagster.step-key"
ASSET_KEY: Final = "dagster.asset-key"
PARTITION_KEY: Final = "dagster.partition-key"

IDEMPOTENCY_KEY: Final = "floe.idempotency-key"
WRITE_MODE: Final = "floe.write-mode"
"""Of writes that replace or upsert rows; an overwrite that finds no row to replace looks like an append otherwise."""
TRACE_ID: Final = "floe.trace-id"
ENVIRONMENT: Final = "floe.environment"
"""The environment whose run wrote the snapshot; missing for those of production."""
CURSOR: Final = "floe.cursor.{table}"
"""How far the writer of the snapshot has read a table, as `Cursor` writes it."""

SOURCE_SNAPSHOT_ID: Final = "source-snapshot-id"
"""Iceberg's own: the snapshot whose changes this one repeats on top of others."""

MAINTENANCE_PREFIX: Final = "floe.maintenance."
"""Of table properties that set a table's own maintenance policy."""
MAINTENANCE_OPERATION: Final = f"{MAINTENANCE_PREFIX}operation"
MAINTENANCE_DURATION: Final = f"{MAINTENANCE_PREFIX}duration-ms"
LAST_MAINTENANCE: Final = f"{MAINTENANCE_PREFIX}last-{{operation}}"
