"""Maintenance operations, and the policies that decide about them."""

from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from floe_dagster_iceberg.models.base import FrozenModel, Items, first_duplicate
from floe_dagster_iceberg.models.quantities import Duration, SizeInBytes, SizesInBytes, TimeZone, format_duration
from floe_dagster_iceberg.models.writing import ColumnName, RowFilter

MIB: Final = 1024 * 1024
MIN_TARGET_FILE_SIZE_BYTES: Final = MIB
MAX_TARGET_FILE_SIZE_BYTES: Final = 1024 * MIB
DEFAULT_TARGET_FILE_SIZE_BYTES: Final = 128 * MIB
MIN_EXPIRY_AGE: Final = timedelta(days=1)
MIN_ORPHAN_AGE: Final = timedelta(days=3)
MIN_ENVIRONMENT_AGE: Final = timedelta(days=1)
MAX_ORPHAN_SHARE: Final = 0.2
MIN_RETENTION_AGE: Final = timedelta(days=1)
MAX_RETENTION_AGE: Final = timedelta(days=365_000)
MAX_RETENTION_SHARE: Final = 0.2

# Blanks only in backticks: text with blanks is more often a list in the wrong place than another tool's name.
TableGlob = Annotated[str, StringConstraints(min_length=1, pattern=r"^([^\s`]|`[^`]*`)+$")]


class CompactionStrategyType(StrEnum):
    """How rows are arranged when files are rewritten."""

    BIN_PACK = "bin_pack"
    SORT = "sort"
    Z_ORDER = "z_order"


class CompactionStrategy(FrozenModel):
    """How files are rewritten."""

    strategy_type: CompactionStrategyType = Field(
        default=CompactionStrategyType.BIN_PACK, description="How rows are arranged in the new files."
    )
    target_file_size_bytes: int = Field(
        default=DEFAULT_TARGET_FILE_SIZE_BYTES,
        ge=MIN_TARGET_FILE_SIZE_BYTES,
        le=MAX_TARGET_FILE_SIZE_BYTES,
        description="Size that new files should come close to, 1 MiB to 1 GiB.",
    )
    sort_columns: Items[ColumnName] = Field(default=(), description="Columns to arrange by; for sort and z_order.")
    max_concurrent_file_group_rewrites: int = Field(
        default=5, ge=1, le=100, description="Groups of files that are rewritten at the same time."
    )

    @model_validator(mode="after")
    def _check_sort_columns(self) -> Self:
        check_sort_columns(self.strategy_type, self.sort_columns)
        return self


def check_sort_columns(strategy_type: CompactionStrategyType, sort_columns: Sequence[str]) -> None:
    """Check that a strategy has sort columns if, and only if, it uses them.

    Raises:
        ValueError: With what to change.
    """
    if strategy_type is CompactionStrategyType.BIN_PACK:
        if sort_columns:
            raise ValueError("bin_pack takes no sort_columns: leave them out, or choose sort or z_order")
        return
    if not sort_columns:
        raise ValueError(f"{strategy_type} needs sort_columns: name the columns to arrange by")
    if (column := first_duplicate(sort_columns)) is not None:
        raise ValueError(f"sort column '{column}' is named twice: name each column once")


class MaintenanceEngine(StrEnum):
    """Engine of an operation; `auto` uses PyIceberg where that is safe, and Spark elsewhere."""

    AUTO = "auto"
    PYICEBERG = "pyiceberg"
    SPARK = "spark"


class MaintenanceOperation(StrEnum):
    """A maintenance operation; `table_health` only measures."""

    TABLE_HEALTH = "table_health"
    RETENTION = "retention"
    COMPACTION = "compaction"
    POSITION_DELETES = "position_deletes"
    SNAPSHOT_EXPIRY = "snapshot_expiry"
    MANIFESTS = "manifests"
    ORPHAN_FILES = "orphan_files"

    @property
    def policy_section(self) -> str:
        """The section of `MaintenancePolicy` that decides about it; position deletes belong to compaction."""
        return _SECTIONS.get(self, self.value)


_SECTIONS: Final = {
    MaintenanceOperation.POSITION_DELETES: "compaction",
    MaintenanceOperation.SNAPSHOT_EXPIRY: "expiry",
    MaintenanceOperation.ORPHAN_FILES: "orphans",
}


class Guardrail(StrEnum):
    """A check that refuses an operation before it changes anything, by the name errors and overrides use."""

    RETENTION_SHARE = "retention_share"
    LEGAL_HOLD = "legal_hold"
    EXPIRY_AGE = "expiry_age"
    GOVERNANCE_RETENTION = "governance_retention"
    READER_CURSORS = "reader_cursors"
    ENVIRONMENT_AGE = "environment_age"
    GC_DISABLED = "gc_disabled"
    ORPHAN_AGE = "orphan_age"
    ORPHAN_SHARE = "orphan_share"
    SHARED_LOCATION = "shared_location"
    LOCATION_MISMATCH = "location_mismatch"


class OperationPolicy(FrozenModel):
    """The common settings of all operations."""

    guardrails: ClassVar[frozenset[Guardrail]] = frozenset()

    enabled: bool = Field(default=True, description="Whether the operation runs at all.")
    min_interval: Duration[timedelta] = Field(
        default=timedelta(0), ge=timedelta(0), description="Shortest time between two runs on one table."
    )
    overrides: Items[Guardrail] = Field(
        default=(), description="Guardrails that are overridden; every result lists them."
    )

    @model_validator(mode="after")
    def _check_overrides(self) -> Self:
        for guardrail in self.overrides:
            if guardrail not in self.guardrails:
                known = ", ".join(sorted(self.guardrails)) or "none"
                raise ValueError(f"{type(self).__name__} has no guardrail '{guardrail}' to override: known are {known}")
        return self


class RetentionPolicy(OperationPolicy):
    """Which rows go: those whose whole day is older than an age. Without an age, no row ever goes."""

    # A legal hold is no guardrail that can be overridden.
    guardrails: ClassVar[frozenset[Guardrail]] = frozenset({Guardrail.RETENTION_SHARE, Guardrail.GOVERNANCE_RETENTION})

    max_age: Duration[timedelta | None] = Field(
        default=None,
        le=MAX_RETENTION_AGE,
        description="Age at which rows are deleted; at least 1 day. Rows stay forever if not given.",
    )
    column: ColumnName | None = Field(
        default=None,
        description="Date or timestamp column that the age is counted from; if not given, the one that the table is "
        "partitioned by.",
    )
    timezone: TimeZone = Field(
        default="UTC", description="Time zone in which days begin, and of dates and timestamps that have none."
    )
    max_share: float = Field(
        default=MAX_RETENTION_SHARE, gt=0, le=1, description="Share of a table's rows that one run may delete."
    )
    follow_governance: bool = Field(
        default=False,
        description="Whether the artifacts' data_retention_days is the age of tables without a max_age.",
    )
    governance_min_age: Duration[timedelta | None] = Field(
        default=None,
        ge=timedelta(0),
        description="Age that governance requires rows to reach; a lower max_age is refused.",
    )

    @model_validator(mode="after")
    def _check_max_age_floor(self) -> Self:
        if self.max_age is not None and self.max_age < MIN_RETENTION_AGE:
            raise ValueError(
                f"max_age of {format_duration(self.max_age)} is below the floor of "
                f"{format_duration(MIN_RETENTION_AGE)}: rows go by whole days. Raise it"
            )
        return self


class CompactionPolicy(OperationPolicy):
    """When and how small files are merged."""

    # A filter contains data values: keep them out of error messages and the repr.
    model_config = ConfigDict(hide_input_in_errors=True)

    strategy: CompactionStrategyType = Field(
        default=CompactionStrategyType.BIN_PACK, description="How rows are arranged in the new files."
    )
    sort_columns: Items[ColumnName] = Field(default=(), description="Columns to arrange by; for sort and z_order.")
    target_file_size_bytes: SizeInBytes[int] = Field(
        default=DEFAULT_TARGET_FILE_SIZE_BYTES,
        ge=MIN_TARGET_FILE_SIZE_BYTES,
        le=MAX_TARGET_FILE_SIZE_BYTES,
        description="Size that new files should come close to, 1 MiB to 1 GiB.",
    )
    small_file_ratio: float = Field(
        default=0.75, gt=0, lt=1, description="A file below this share of the target size is small."
    )
    min_input_files: int = Field(
        default=5, ge=2, description="Small files a partition must have before they are rewritten."
    )
    partition_filter: RowFilter | None = Field(
        default=None, repr=False, description="The partitions to compact; all if not given."
    )
    partial_progress: bool = Field(
        default=False, description="Whether groups are committed as they finish, so that a failure keeps earlier ones."
    )
    max_concurrent_file_group_rewrites: int = Field(
        default=5, ge=1, le=100, description="Groups of files that are rewritten at the same time."
    )
    rewrite_position_deletes: bool = Field(
        default=True, description="Whether position delete files are rewritten or dropped as well."
    )

    @model_validator(mode="after")
    def _check_sort_columns(self) -> Self:
        check_sort_columns(self.strategy, self.sort_columns)
        return self

    def to_strategy(self) -> CompactionStrategy:
        """The argument of `IcebergTableManager.compact_table`."""
        return CompactionStrategy(
            strategy_type=self.strategy,
            target_file_size_bytes=self.target_file_size_bytes,
            sort_columns=self.sort_columns,
            max_concurrent_file_group_rewrites=self.max_concurrent_file_group_rewrites,
        )


class ExpiryPolicy(OperationPolicy):
    """Which snapshots expire: those older than `max_age`, outside the newest, and without a branch or tag."""

    guardrails: ClassVar[frozenset[Guardrail]] = frozenset(
        {
            Guardrail.EXPIRY_AGE,
            Guardrail.GOVERNANCE_RETENTION,
            Guardrail.READER_CURSORS,
            Guardrail.ENVIRONMENT_AGE,
            Guardrail.GC_DISABLED,
        }
    )

    max_age: Duration[timedelta] = Field(
        default=timedelta(days=7), ge=timedelta(0), description="Age at which a snapshot expires; at least 1 day."
    )
    min_snapshots_to_keep: int = Field(default=10, ge=1, description="Newest snapshots that stay whatever their age.")
    governance_min_age: Duration[timedelta | None] = Field(
        default=None,
        ge=timedelta(0),
        description="Age that governance requires snapshots to reach; an expiry below it is refused.",
    )
    max_cursor_age: Duration[timedelta] = Field(
        default=timedelta(days=30),
        ge=timedelta(0),
        description="How long changes that an incremental reader has not read yet are kept for it, and those that an "
        "environment is published on top of.",
    )
    max_environment_age: Duration[timedelta | None] = Field(
        default=None,
        ge=timedelta(0),
        description="Age of the newest snapshot of an environment, in any of its tables, at which its branches are "
        "dropped; at least 1 day. They are kept if not given.",
    )
    delete_files: bool = Field(
        default=True, description="Whether files that no remaining snapshot references are deleted too."
    )
    max_snapshots_per_commit: int = Field(
        default=1000, ge=1, description="Snapshots that one commit expires; more are done in batches."
    )

    @model_validator(mode="after")
    def _check_max_age_floor(self) -> Self:
        if self.max_age < MIN_EXPIRY_AGE and Guardrail.EXPIRY_AGE not in self.overrides:
            raise ValueError(
                f"max_age of {format_duration(self.max_age)} is below the floor of {format_duration(MIN_EXPIRY_AGE)}: "
                "running readers would lose their snapshot. Raise it, or name 'expiry_age' in expiry.overrides"
            )
        return self

    @model_validator(mode="after")
    def _check_environment_age_floor(self) -> Self:
        age = self.max_environment_age
        if age is not None and age < MIN_ENVIRONMENT_AGE and Guardrail.ENVIRONMENT_AGE not in self.overrides:
            raise ValueError(
                f"max_environment_age of {format_duration(age)} is below the floor of "
                f"{format_duration(MIN_ENVIRONMENT_AGE)}: environments in use would be dropped. Raise it, or name "
                "'environment_age' in expiry.overrides"
            )
        return self


class OrphanPolicy(OperationPolicy):
    """Which files count as orphans, and how long they wait in quarantine before they are deleted."""

    guardrails: ClassVar[frozenset[Guardrail]] = frozenset(
        {
            Guardrail.ORPHAN_AGE,
            Guardrail.ORPHAN_SHARE,
            Guardrail.SHARED_LOCATION,
            Guardrail.LOCATION_MISMATCH,
            Guardrail.GC_DISABLED,
        },
    )

    older_than: Duration[timedelta] = Field(
        default=timedelta(days=7),
        ge=timedelta(0),
        description="Age from which an unreachable file is an orphan; at least 3 days.",
    )
    grace: Duration[timedelta] = Field(
        default=timedelta(days=7), ge=timedelta(0), description="Time in quarantine, where a file can be restored."
    )
    max_share: float = Field(
        default=MAX_ORPHAN_SHARE, gt=0, le=1, description="Share of a table's objects that one plan may remove."
    )

    @model_validator(mode="after")
    def _check_older_than_floor(self) -> Self:
        if self.older_than < MIN_ORPHAN_AGE and Guardrail.ORPHAN_AGE not in self.overrides:
            raise ValueError(
                f"older_than of {format_duration(self.older_than)} is below the floor of "
                f"{format_duration(MIN_ORPHAN_AGE)}: files of running writers would count as orphans. Raise it, or "
                "name 'orphan_age' in orphans.overrides"
            )
        if self.max_share > MAX_ORPHAN_SHARE and Guardrail.ORPHAN_SHARE not in self.overrides:
            raise ValueError(
                f"max_share {self.max_share} is above the ceiling of {MAX_ORPHAN_SHARE}: that many orphans point to a "
                "wrong location. Lower it, or name 'orphan_share' in orphans.overrides"
            )
        return self


class ManifestPolicy(OperationPolicy):
    """When manifests are merged, which makes scan planning faster."""

    min_manifests: int = Field(default=100, ge=2, description="Manifests a table must have before they are rewritten.")
    target_manifest_size_bytes: SizeInBytes[int] = Field(
        default=8 * MIB, ge=MIB, description="Size that new manifests should come close to."
    )


class Threshold(FrozenModel):
    """Two limits of one measure of health: above the first a check warns, above the second it fails."""

    warn: float = Field(ge=0, description="Above this the check warns.")
    error: float = Field(ge=0, description="Above this the check fails.")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.warn > self.error:
            raise ValueError(f"warn {self.warn} is above error {self.error}: a check must warn before it fails")
        return self


class HealthThresholds(FrozenModel):
    """Thresholds above which a table counts as unhealthy."""

    small_files: Threshold = Field(default=Threshold(warn=100, error=1000), description="Number of small data files.")
    small_file_share: Threshold = Field(
        default=Threshold(warn=0.5, error=0.9), description="Small files as a share of all data files."
    )
    delete_ratio: Threshold = Field(default=Threshold(warn=0.1, error=0.5), description="Delete files per data file.")
    snapshots: Threshold = Field(default=Threshold(warn=1000, error=5000), description="Number of snapshots.")
    manifests: Threshold = Field(default=Threshold(warn=200, error=1000), description="Number of manifests.")
    rows_overdue_days: Threshold = Field(
        default=Threshold(warn=3, error=14), description="Days for which rows have been past their retention."
    )
    metadata_json_bytes: SizesInBytes[Threshold] = Field(
        default=Threshold(warn=10 * MIB, error=50 * MIB), description="Size of the current metadata file."
    )
    min_table_bytes: SizeInBytes[int] = Field(
        default=MIB,
        ge=0,
        description="Size of a table from which its small files and delete files count; a smaller one reads fast.",
    )


class MaintenanceBudget(FrozenModel):
    """How much one run may do; what does not fit waits for the next. Bytes and time are unlimited unless given."""

    max_rewrite_bytes: SizeInBytes[int | None] = Field(default=None, ge=1, description="Bytes that may be rewritten.")
    max_duration: Duration[timedelta | None] = Field(
        default=None, gt=timedelta(0), description="Time after which no further table is started."
    )
    max_concurrent_tables: int = Field(
        default=8,
        ge=1,
        le=10,
        description="Tables that are worked on at the same time; 10 are the connections that a catalog's client keeps. "
        "Rewrites with max_rewrite_bytes, and everything that Spark does, take one table after the other.",
    )


class MaintenancePolicy(FrozenModel):
    """Everything that decides how a set of tables is maintained."""

    model_config = ConfigDict(hide_input_in_errors=True)

    tables: Items[TableGlob] = Field(
        default=("*",),
        min_length=1,
        description="Globs over 'namespace.table', as in 'bronze.*'; names with blanks in backticks; all unless given.",
    )
    engine: MaintenanceEngine = Field(default=MaintenanceEngine.AUTO, description="Engine to use.")
    retention: RetentionPolicy = Field(default=RetentionPolicy(), description="Deleting old rows; off unless set.")
    compaction: CompactionPolicy = Field(default=CompactionPolicy(), description="Merging small files.")
    expiry: ExpiryPolicy = Field(default=ExpiryPolicy(), description="Expiring old snapshots.")
    orphans: OrphanPolicy = Field(default=OrphanPolicy(), description="Removing files that no snapshot references.")
    manifests: ManifestPolicy = Field(default=ManifestPolicy(), description="Merging manifests.")
    thresholds: HealthThresholds = Field(default=HealthThresholds(), description="When a table is unhealthy.")
    budget: MaintenanceBudget = Field(default=MaintenanceBudget(), description="How much one run may do.")
    dry_run: bool = Field(default=False, description="Whether to plan only and change nothing.")

    def section_of(self, operation: MaintenanceOperation) -> OperationPolicy:
        """The section of one operation; the defaults for measuring a table, which has none."""
        section = getattr(self, operation.policy_section, None)
        return section if isinstance(section, OperationPolicy) else OperationPolicy()
