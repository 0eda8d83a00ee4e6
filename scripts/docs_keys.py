"""What the keys mean that the code writes but no model describes: metadata, snapshot properties, environment variables.

A contract test compares the names with those in the source, both ways.
"""

from typing import Final

from floe_dagster_iceberg.models import MaintenanceStatus, snapshot_properties as snapshots

MATERIALIZATION: Final = {
    "dagster/table_name": "Name of the table. Also on the asset's definition, before it is materialized.",
    "dagster/column_schema": "Columns with types, nullability, docs and partition transforms.",
    "dagster/row_count": "Rows of the whole table after the write.",
    "dagster/partition_row_count": "Rows of the partition after an overwrite, for each partition of a range.",
    "dagster/storage_kind": "Always `iceberg`.",
    "dagster/uri": "Location of the table.",
    "iceberg/snapshot_id": "The snapshot that was written; also the data version.",
    "iceberg/operation": "Operation of the snapshot: `append`, `overwrite`, `delete` or `replace`.",
    "iceberg/write_mode": "The write mode that was used.",
    "iceberg/rows_added": "Rows in the added files.",
    "iceberg/rows_removed": "Rows in the removed files, if any.",
    "iceberg/rows_before": "If an asset appends by default: the rows that the table had before.",
    "iceberg/hint": "If an asset appends by default: the setting that replaces the rows instead.",
    "iceberg/rows_inserted": "Of an upsert: rows whose key was new.",
    "iceberg/rows_updated": "Of an upsert: rows that had other values in the table.",
    "iceberg/rows_deleted": "Of an upsert: rows of the table that it deleted, if any.",
    "iceberg/rows_unchanged": "Of an upsert: rows that changed nothing, because the table has them, or newer ones.",
    "iceberg/added_files": "Data files that were added; in a range of partitions those of the partition, if it has "
    "files of its own.",
    "iceberg/deleted_files": "Data files that were removed, if any.",
    "iceberg/added_bytes": "Size of the added files in bytes.",
    "iceberg/added_size": "The same, formatted.",
    "iceberg/schema_evolved": "Whether the write changed the schema.",
    "iceberg/schema_changes": "The schema changes, one text each, if any.",
    "iceberg/rows_outside_partition": "Rows that do not belong to the partition, if any.",
    "iceberg/rows_dropped": "Rows that were dropped because they do not belong to the partition, if any.",
    "iceberg/commit_attempts": "How often the commit was tried, if more than once, after conflicts with other writers.",
    "iceberg/deduplicated": "True if an earlier attempt had committed already, and nothing was written.",
    "iceberg/duration": "Seconds that the write took.",
    "iceberg/engine": "If PyIceberg could not do the write and it was handed to Spark: the reason.",
    "iceberg/repaired_from": "If the table's metadata was repaired before the write: the file that could not be read.",
    "iceberg/repaired_to": "The metadata file that the repair restored.",
    "iceberg/environment": "The [environment](../publishing.md#environments) of a preview.",
    "iceberg/trace_id": "Id of the OpenTelemetry trace, if telemetry is on.",
    "iceberg/changes": "Of an asset with [incremental inputs](../incremental.md): the snapshots that it has read.",
    "iceberg/cursors": "Of an asset that is stored elsewhere: how far it has read each table.",
    "iceberg/changes_behind": "Snapshots with changes that the next run has to read.",
    "iceberg/audit_snapshot_id": "Of an [audited asset](../publishing.md): the snapshot that was checked.",
    "iceberg/audit_checks": "Of an audited asset: how many checks it had.",
    "iceberg/published_with": "Of [several assets](../publishing.md#several-assets-of-one-step): the other tables.",
    "iceberg/published_at_once": "Whether readers saw these tables move at once; otherwise one after the other.",
}
AUDIT: Final = {
    "iceberg/audit_snapshot_id": "The snapshot that was checked.",
    "iceberg/evaluated_by": "Of a ready-made check: `metadata` if no data file was read, else `scan`.",
    "iceberg/rows_checked": "Number of rows.",
    "iceberg/rows_failing": "Rows that fail the check.",
    "iceberg/keys_failing": "Of `unique`: keys that occur more than once.",
    "iceberg/columns_failing": "Of `matches_schema`: columns that differ.",
    "iceberg/rows_before": "Of `row_count_change_within`: rows that readers see now.",
    "iceberg/error": "If the check raised an error: its type.",
}
ENVIRONMENT_JOBS: Final = {
    "iceberg/atomic": "Of a publication: whether readers saw all tables move at once.",
}
FAILURE: Final = {
    "iceberg/error": "Type of the error; see [Troubleshooting](../troubleshooting.md).",
    "iceberg/retryable": "Whether Dagster may retry it.",
}
_TOTALS: Final = {
    "files": "data files",
    "small_files": "small data files",
    "delete_files": "delete files",
    "bytes": "bytes of data files",
    "snapshots": "snapshots",
    "manifests": "manifests",
}
MAINTENANCE: Final = {
    "iceberg/results": "A row for each table, those that changed first: outcome, before, after, snapshot ids.",
    "iceberg/health": "Of `table_health`: a row for each table with its measures.",
    "iceberg/policy": "The values of the policy that are not the package's defaults, and their sources.",
    "iceberg/tables": "Number of tables.",
    **{f"iceberg/tables_{status}": f"Tables with the outcome `{status}`." for status in MaintenanceStatus},
    "iceberg/dry_run": "Whether the run only planned.",
    "iceberg/how_to_run": "After a plain click on Materialize, which plans only: how to do it.",
    "iceberg/engine": "The engines that did the work.",
    "iceberg/duration": "Seconds that the run took.",
    "iceberg/files_removed": "Files that were removed.",
    "iceberg/bytes_removed": "Bytes that were removed.",
    "iceberg/files_added": "Files that were added.",
    "iceberg/bytes_added": "Bytes that were added.",
    "iceberg/snapshots_expired": "Snapshots that expired.",
    "iceberg/partition_rows": "Of the op that deletes partitions: the rows of each.",
    "iceberg/rows_deleted": "Rows that retention deleted.",
    "iceberg/planned_files": "Of a dry run: files that would be rewritten or removed.",
    "iceberg/planned_bytes": "Of a dry run: their size.",
    "iceberg/planned_snapshots": "Of a dry run: snapshots that would expire.",
    "iceberg/planned_rows": "Of a dry run: rows that would be deleted.",
    **{
        f"iceberg/{name}_{when}": f"Total number of {what} {when} the run."
        for name, what in _TOTALS.items()
        for when in ("before", "after")
    },
    "iceberg/file_sizes": "A chart of file sizes, before and after.",
    "iceberg/statements": "Procedure calls that were sent to Spark, without literals.",
    "iceberg/overrides": "Guardrails that were overridden.",
    "iceberg/failed": "Of the check `every_table_succeeded`: the tables that failed, with their errors.",
}
HEALTH: Final = {
    "dagster/table_name": "Name of the table.",
    **{f"iceberg/{name}": f"Number of {what}." for name, what in _TOTALS.items()},
    "iceberg/metadata_json_bytes": "Size of the current metadata file in bytes.",
    "iceberg/file_sizes": "A chart of file sizes.",
    "iceberg/remedies": "The operations that would help.",
    "iceberg/compaction_bytes": "Bytes that compaction would rewrite.",
    "iceberg/compaction_gain": "Files that compaction would save per MiB; the sensor's ranking.",
}
OBSERVATION: Final = {
    "dagster/table_name": "Name of the table.",
    "dagster/column_schema": "Columns with types, nullability, docs and partition transforms.",
    "dagster/row_count": "Rows; not there if the table has equality deletes.",
    "dagster/last_updated_timestamp": "When rows last changed.",
    "dagster/storage_kind": "Always `iceberg`.",
    "dagster/uri": "Location of the table.",
    "iceberg/snapshot_id": "The newest snapshot of `main`.",
    "iceberg/previous_snapshot_id": "The newest snapshot at the last observation, if another one.",
    "iceberg/table_uuid": "Identity of the table; a table that is created again has another one.",
    "iceberg/observed_at": "When the table was looked at; partitions that end later are looked at then.",
    "iceberg/sequence_number": "Sequence number of the table's last commit.",
    "iceberg/snapshots": "Number of snapshots.",
    "iceberg/data_files": "Number of data files.",
    "iceberg/total_bytes": "Size of the data and delete files in bytes.",
    "iceberg/added_rows": "Rows in files that were added since the last observation.",
    "iceberg/added_files": "Data files that were added since the last observation.",
    "iceberg/writer": "Engine and application that last changed rows.",
    "iceberg/writer_run": "The Dagster run that did, as a link.",
    "iceberg/time_travel": "SQL that reads the table as of this snapshot.",
    "iceberg/time_travel_before": "SQL that reads the table as of the last observation.",
    "iceberg/owner": "On the definition: table property `owner`, if it is no owner in Dagster's sense.",
    "iceberg/snapshot_ids": "Of the checks of writers: the snapshots that they report.",
}
SNAPSHOT: Final = {
    snapshots.RUN_ID: "The Dagster run that wrote the snapshot.",
    snapshots.STEP_KEY: "The step of that run.",
    snapshots.ASSET_KEY: "The asset.",
    snapshots.PARTITION_KEY: "The partition, or the first and the last of a range.",
    snapshots.IDEMPOTENCY_KEY: "Identifies the write; a retry finds it and writes nothing.",
    snapshots.WRITE_MODE: "`overwrite` or `upsert`; missing for appends.",
    snapshots.SOURCE_SNAPSHOT_ID: "Iceberg's own: the snapshot of a branch whose changes were published.",
    snapshots.ENVIRONMENT: "The [environment](../publishing.md#environments) whose run wrote it.",
    snapshots.TRACE_ID: "Id of the OpenTelemetry trace.",
    snapshots.CURSOR.format(table="<table>"): "How far the asset has read that table: its UUID and a snapshot.",
    snapshots.MAINTENANCE_OPERATION: "The maintenance operation that made the snapshot.",
    snapshots.MAINTENANCE_DURATION: "How long it took, in milliseconds.",
}
TABLE: Final = {
    snapshots.LAST_MAINTENANCE.format(operation="<operation>"): "When the operation last ran, for `min_interval`.",
    f"{snapshots.MAINTENANCE_PREFIX}<field>": "The table's own value of a [policy field](maintenance-policy.md).",
    "history.expire.max-snapshot-age-ms": "Iceberg's own: age at which snapshots expire. New tables have it.",
    "history.expire.min-snapshots-to-keep": "Iceberg's own: snapshots to keep. New tables have it.",
    "commit.manifest-merge.enabled": "`false` turns off the merging of manifests by writes.",
}
# Settings of `plugins.orchestrator.config`, which is Dagster's and floe's; the code reads these.
ORCHESTRATOR: Final = {
    "default_namespace": "Namespace of assets whose key has one part; by default the product's name.",
    "maintenance": "[Maintenance policy](maintenance-policy.md), schedules and the sensor.",
    "resource_presets": "Named sizes of pods, see below.",
    "executor": "Dagster's executor, see below.",
}
TAGS: Final = {
    "iceberg/full_refresh": "On a run: `true` makes incremental inputs read everything, and replaces their assets.",
    "iceberg/table": "On a run that the table change sensor requests: the table.",
    "floe/resources": "On an asset: the resource preset of its pod, with `k8s_job_executor`.",
    "dagster-k8s/config": "On an op: its pod; set by you, it is kept.",
}
RESOURCES: Final = {
    "iceberg": "Catalog and storage of the tables.",
    "pyspark": "The Spark session. Without it, `IcebergIOManager` supports Arrow, pandas and polars only.",
}
ENVIRONMENT: Final = {
    "FLOE_ARTIFACTS": "File with the compiled artifacts, for `CompiledArtifacts.from_environment()` and the commands. "
    "Default: `.floe/compiled_artifacts.json`, if it exists.",
    "FLOE_HOME": "Folder of the embedded SQLite catalog and its warehouse. Default: `.floe` in the working directory.",
    "FLOE_SECRETS_DIR": "Folder where secrets are mounted as files. Default: `/var/run/secrets`.",
    "FLOE_SECRET_<NAME>": "A secret by its reference, in capitals and with underscores: `FLOE_SECRET_POLARIS_TOKEN`. "
    "The name without the prefix works, too.",
    "FLOE_SPARK_JARS": "Jars, or folders of jars, for Spark. With it, Spark needs no network.",
    "FLOE_SPARK_SCRATCH": "Folder for all temporary files of Spark's driver. Default: the system's temporary folder.",
    "FLOE_LOG_FORMAT": "`json` for log events as JSON lines. Default: text.",
}
FOREIGN_ENVIRONMENT: Final = {
    "DAGSTER_HOME": "Folder of Dagster's instance. Without it, the UI does not show runs of the command line.",
    "DAGSTER_CLOUD_GIT_BRANCH": "Of a Dagster+ branch deployment: its [environment](../publishing.md#environments), if "
    "that is `auto`.",
    "DAGSTER_CLOUD_PULL_REQUEST_ID": "The same, if there is no Git branch.",
    "DAGSTER_CLOUD_IS_BRANCH_DEPLOYMENT": "`0` in full deployments: `auto` is production.",
    "JAVA_HOME": "JDK for Spark: 17 or 21.",
    "OTEL_SDK_DISABLED": "`true` turns telemetry off.",
    "NO_COLOR": "`1` turns off colours of the commands.",
    "AWS_REQUEST_CHECKSUM_CALCULATION": "Set by the storage setting `checksums`, for S3 clients of the process.",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "Set by the storage setting `checksums`, for S3 clients of the process.",
}
