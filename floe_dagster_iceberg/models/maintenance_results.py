"""Health of a table, plans and results of maintenance."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Self

from pydantic import AwareDatetime, Field, model_validator

from floe_dagster_iceberg.models.base import FrozenModel, Items, SnapshotId
from floe_dagster_iceberg.models.identifiers import TableIdentifier
from floe_dagster_iceberg.models.maintenance import Guardrail, MaintenanceEngine, MaintenanceOperation


class HealthTier(StrEnum):
    """How much is read of a table; each tier reads more than the one before."""

    SUMMARY = "summary"
    MANIFESTS = "manifests"
    FILES = "files"


class FileSizeBin(FrozenModel):
    """One bar of a file-size histogram."""

    upper_bytes: int | None = Field(default=None, ge=1, description="Sizes below this; none for the last bar.")
    files: int = Field(ge=0, description="Data files in the bar.")
    total_bytes: int = Field(ge=0, description="Bytes of those files.")


class TableHealth(FrozenModel):
    """State of a table's files and metadata. What the tier does not read is None."""

    table: TableIdentifier = Field(description="The table.")
    tier: HealthTier = Field(description="What was read of the table.")
    measured_at: AwareDatetime = Field(description="When it was measured.")
    snapshot_id: SnapshotId | None = Field(
        default=None, description="Snapshot that was measured; none for an empty table."
    )
    data_files: int = Field(default=0, ge=0, description="Data files.")
    delete_files: int = Field(default=0, ge=0, description="Delete files.")
    records: int = Field(default=0, ge=0, description="Rows in the data files, before deletes are applied.")
    total_bytes: int = Field(default=0, ge=0, description="Bytes of the data and delete files.")
    snapshots: int = Field(default=0, ge=0, description="Snapshots the table keeps.")
    oldest_snapshot_at: AwareDatetime | None = Field(default=None, description="When the oldest of them was made.")
    metadata_json_bytes: int | None = Field(default=None, ge=0, description="Size of the current metadata file.")
    manifests: int | None = Field(default=None, ge=0, description="Manifests of the current snapshot.")
    small_files: int | None = Field(default=None, ge=0, description="Data files far below the target size.")
    partitions: int | None = Field(default=None, ge=0, description="Partitions with data.")
    partitions_needing_work: int | None = Field(
        default=None, ge=0, description="Partitions that compaction would rewrite."
    )
    file_sizes: Items[FileSizeBin] | None = Field(default=None, description="Histogram of data file sizes.")
    rows_overdue_days: float | None = Field(
        default=None,
        ge=0,
        description="Days for which the oldest row has been past its retention, by the files' statistics; none without "
        "a retention.",
    )

    @property
    def small_file_share(self) -> float | None:
        """Small files as a share of all data files, 0 to 1."""
        if self.small_files is None:
            return None
        return self.small_files / self.data_files if self.data_files else 0.0

    @property
    def average_file_size_bytes(self) -> float:
        """Mean size of a file, 0 for an empty table."""
        files = self.data_files + self.delete_files
        return self.total_bytes / files if files else 0.0

    @property
    def delete_ratio(self) -> float:
        """Delete files per data file."""
        return self.delete_files / self.data_files if self.data_files else 0.0

    @property
    def oldest_snapshot_age(self) -> timedelta | None:
        """Age of the oldest snapshot when measured."""
        return None if self.oldest_snapshot_at is None else self.measured_at - self.oldest_snapshot_at


class PlanReason(StrEnum):
    """Why a plan does something, or nothing."""

    RECOMMENDED = "recommended"
    BELOW_THRESHOLD = "below_threshold"
    MIN_INTERVAL = "min_interval"
    BUDGET_CAPPED = "budget_capped"
    BLOCKED = "blocked"


class MaintenancePlan(FrozenModel):
    """What one operation would do to one table. Making it changes nothing."""

    table: TableIdentifier = Field(description="The table.")
    operation: MaintenanceOperation = Field(description="The operation.")
    engine: MaintenanceEngine = Field(description="Engine that would do it.")
    reason: PlanReason = Field(description="Why it would be done, or not.")
    blocked_by: str | None = Field(
        default=None, min_length=1, description="What blocks it, and the remedy; only for blocked."
    )
    summary: str = Field(default="", description="What would be done, in one sentence.")
    snapshot_id: SnapshotId | None = Field(default=None, description="Snapshot the plan was made on.")
    table_bytes: int = Field(default=0, ge=0, description="Bytes of the whole table.")
    partitions: int = Field(default=0, ge=0, description="Partitions that would be worked on.")
    snapshots: int = Field(default=0, ge=0, description="Snapshots that would expire.")
    refs: Items[str] = Field(default=(), description="Branches and tags that would be removed.")
    rows: int = Field(default=0, ge=0, description="Rows that would be deleted.")
    files: Items[str] = Field(default=(), description="Files that would be rewritten or removed.")
    input_bytes: int = Field(default=0, ge=0, description="Bytes of those files.")
    output_files: int = Field(default=0, ge=0, description="Files that would be written, estimated.")
    output_bytes: int = Field(default=0, ge=0, description="Bytes that would be written, estimated.")
    estimated_duration: timedelta | None = Field(
        default=None, ge=timedelta(0), description="How long it would take; none without an earlier run to judge by."
    )

    @model_validator(mode="after")
    def _check_blocked_by(self) -> Self:
        if (self.reason is PlanReason.BLOCKED) != (self.blocked_by is not None):
            raise ValueError(f"a plan says what blocks it if, and only if, it is blocked; the reason is {self.reason}")
        return self

    @property
    def is_actionable(self) -> bool:
        """Whether executing the plan changes the table."""
        return self.reason is PlanReason.RECOMMENDED

    @property
    def input_files(self) -> int:
        """Number of files that would be rewritten or removed."""
        return len(self.files)


class MaintenanceStatus(StrEnum):
    """How an operation on a table ended."""

    DONE = "done"
    PLANNED = "planned"
    SKIPPED = "skipped"
    FAILED = "failed"


class MaintenanceResult(FrozenModel):
    """What one operation did to one table."""

    table: TableIdentifier = Field(description="The table.")
    operation: MaintenanceOperation = Field(description="The operation.")
    engine: MaintenanceEngine = Field(description="Engine that did it.")
    status: MaintenanceStatus = Field(description="How it ended; `planned` is a dry run with something to do.")
    started_at: AwareDatetime = Field(description="When it began.")
    duration: timedelta = Field(default=timedelta(0), ge=timedelta(0), description="How long it took.")
    plan: MaintenancePlan | None = Field(default=None, description="The plan it followed.")
    before: TableHealth | None = Field(default=None, description="State of the table before.")
    after: TableHealth | None = Field(default=None, description="State of the table after.")
    snapshot_id_before: SnapshotId | None = Field(default=None, description="Current snapshot before.")
    snapshot_id_after: SnapshotId | None = Field(default=None, description="Current snapshot after.")
    files_removed: int = Field(default=0, ge=0, description="Files removed from the table or deleted.")
    bytes_removed: int = Field(default=0, ge=0, description="Bytes of those files.")
    files_left: Items[str] = Field(
        default=(), description="Unreferenced files that could not be deleted; orphan removal finds them."
    )
    files_added: int = Field(default=0, ge=0, description="Files written.")
    bytes_added: int = Field(default=0, ge=0, description="Bytes written.")
    snapshots_expired: int = Field(default=0, ge=0, description="Snapshots that expired.")
    rows_deleted: int = Field(default=0, ge=0, description="Rows that were deleted.")
    overrides: Items[Guardrail] = Field(default=(), description="Guardrails that were overridden.")
    statement: str | None = Field(default=None, description="Procedure call sent to Spark, without literals.")
    error: str | None = Field(default=None, min_length=1, description="Why it failed; only for failed.")

    @classmethod
    def of_work(
        cls,
        table: TableIdentifier,
        operation: MaintenanceOperation,
        *,
        started_at: datetime,
        done: bool,
        engine: MaintenanceEngine = MaintenanceEngine.PYICEBERG,
        **work: Any,
    ) -> Self:
        """The result of an engine; skipped unless `done`, because there was nothing left to do."""
        return cls(
            table=table,
            operation=operation,
            engine=engine,
            status=MaintenanceStatus.DONE if done else MaintenanceStatus.SKIPPED,
            started_at=started_at,
            duration=max(timedelta(0), datetime.now(UTC) - started_at),
            **work,
        )

    @model_validator(mode="after")
    def _check_error(self) -> Self:
        if (self.status is MaintenanceStatus.FAILED) != (self.error is not None):
            raise ValueError(f"a result carries an error if, and only if, it failed; the status is {self.status}")
        return self
