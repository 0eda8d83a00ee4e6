"""Settings of the table manager, the IO managers and retries."""

from enum import StrEnum
from typing import Any, Final, Self

from pydantic import AliasChoices, ConfigDict, Field, SecretStr, model_validator

from floe_dagster_iceberg.models.base import FrozenModel
from floe_dagster_iceberg.models.identifiers import Namespace
from floe_dagster_iceberg.models.maintenance import DEFAULT_TARGET_FILE_SIZE_BYTES
from floe_dagster_iceberg.models.writing import CommitStrategy, FormatVersion, RowsOutside, WriteMode


class StaleTableRecoveryMode(StrEnum):
    """What a write does to a table whose metadata file is missing or truncated."""

    STRICT = "strict"
    REPAIR = "repair"


_MILLISECONDS_PER_DAY: Final = 24 * 60 * 60 * 1000


def _production_table_properties(settings: dict[str, Any]) -> dict[str, str]:
    # Manifest merging is left out on purpose: in PyIceberg it is the switch between fast append and
    # merge commit, and the commit strategy of each write sets it.
    return {
        "write.target-file-size-bytes": str(DEFAULT_TARGET_FILE_SIZE_BYTES),
        "write.parquet.row-group-size-bytes": str(DEFAULT_TARGET_FILE_SIZE_BYTES),
        "history.expire.max-snapshot-age-ms": str(settings["default_retention_days"] * _MILLISECONDS_PER_DAY),
        "history.expire.min-snapshots-to-keep": str(settings["min_snapshots_to_keep"]),
    }


class IcebergTableManagerConfig(FrozenModel):
    """Settings of `IcebergTableManager`."""

    max_commit_retries: int = Field(
        default=3, ge=1, le=10, description="How often a commit that lost against another writer is tried again."
    )
    retry_base_delay_seconds: float = Field(
        default=1.0, ge=0.1, le=30, description="Wait before the first retry; it doubles with each further one."
    )
    default_retention_days: int = Field(
        default=7, ge=1, le=365, description="Age in days at which snapshots expire, unless the call sets one."
    )
    min_snapshots_to_keep: int = Field(
        default=10, ge=1, le=100, description="Newest snapshots that never expire, whatever their age."
    )
    default_commit_strategy: CommitStrategy = Field(
        default=CommitStrategy.FAST_APPEND, description="How writes treat manifests, unless they set it."
    )
    stale_table_recovery_mode: StaleTableRecoveryMode = Field(
        default=StaleTableRecoveryMode.STRICT,
        description="Whether a write to a table whose metadata file is missing or truncated fails ('strict'), or goes "
        "on from the newest version that is left ('repair'); commits after that version are lost to the table. Reads "
        "and maintenance never repair anything.",
    )
    default_table_properties: dict[str, str] = Field(
        default_factory=_production_table_properties,
        description="Properties of every table that is created, under its own; production values unless given, "
        "with retention taken from the settings above.",
    )


class RetryConfig(FrozenModel):
    """How often and how long a failing request is tried again: exponential waits with jitter."""

    max_attempts: int = Field(default=3, ge=1, le=10, description="Attempts in all, the first one included.")
    initial_wait_seconds: float = Field(default=1.0, ge=0.1, le=30, description="Wait before the second attempt.")
    max_wait_seconds: float = Field(default=30.0, ge=1, le=300, description="Longest wait between two attempts.")
    jitter_seconds: float = Field(default=1.0, ge=0, le=10, description="Random time added to each wait, at most.")

    @model_validator(mode="after")
    def _check_wait_bounds(self) -> Self:
        if self.initial_wait_seconds > self.max_wait_seconds:
            raise ValueError(
                f"initial_wait_seconds {self.initial_wait_seconds} exceeds max_wait_seconds {self.max_wait_seconds}: "
                "lower the one or raise the other"
            )
        return self


class IcebergIOManagerConfig(FrozenModel):
    """Settings of an IO manager outside Dagster's own configuration, for `create_io_manager`."""

    # Secrets must not show up in the message of a validation error either.
    model_config = ConfigDict(hide_input_in_errors=True, populate_by_name=True)

    catalog_uri: str | None = Field(
        default=None, repr=False, description="Address of the catalog; a local SQLite catalog if not given."
    )
    warehouse: str | None = Field(default=None, description="Warehouse name or location.")
    client_id: str | None = Field(default=None, description="OAuth2 client id.")
    client_secret: SecretStr | None = Field(default=None, description="OAuth2 client secret.")
    token: SecretStr | None = Field(default=None, description="Bearer token, instead of client id and secret.")
    default_namespace: Namespace = Field(
        default="public",
        validation_alias=AliasChoices("default_namespace", "namespace"),
        description="Namespace of assets whose key has one part.",
    )
    table_name_pattern: str = Field(
        default="{asset_key}", description="Table name; '{asset_key}' stands for the key after its namespace part."
    )
    write_mode: WriteMode = Field(
        default=WriteMode.APPEND,
        validation_alias=AliasChoices("write_mode", "default_write_mode"),
        description="Write mode of assets without partitions that name none.",
    )
    commit_strategy: CommitStrategy = Field(
        default=CommitStrategy.FAST_APPEND,
        validation_alias=AliasChoices("commit_strategy", "default_commit_strategy"),
        description="How writes treat manifests.",
    )
    auto_create_tables: bool = Field(default=True, description="Whether the first write creates a missing table.")
    infer_schema_from_data: bool = Field(
        default=True, description="Whether a table that is created takes its columns from the first data."
    )
    schema_evolution_enabled: bool = Field(
        default=True, description="Whether writes may add columns, widen types and make columns optional."
    )
    column_projection_enabled: bool = Field(
        default=True, description="Whether inputs that name columns read only those."
    )
    partition_column: str | None = Field(
        default=None, min_length=1, description="Column that Dagster partitions select, unless the asset names one."
    )
    rows_outside_partition: RowsOutside = Field(
        default="error", description="What happens to rows that do not belong to the partition being written."
    )
    format_version: FormatVersion | None = Field(
        default=None,
        description="Format version of new tables: 1, 2 or 3, which needs Spark; 2 if not given. Existing tables keep "
        "theirs.",
    )

    @model_validator(mode="after")
    def _check_table_name_pattern(self) -> Self:
        if "{asset_key}" not in self.table_name_pattern:
            raise ValueError(
                f"table_name_pattern {self.table_name_pattern!r} must contain '{{asset_key}}', "
                "or all assets would share one table"
            )
        return self
