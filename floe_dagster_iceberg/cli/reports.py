"""Reports of commands, as `--json` prints them: fields may be added, but never removed or changed.

Snapshot ids are text, because they have more digits than a number of JavaScript or jq.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Self

from pydantic import AwareDatetime, Field

from floe_dagster_iceberg import models
from floe_dagster_iceberg.maintenance.policy import EffectivePolicy, PolicySource
from floe_dagster_iceberg.models.base import FrozenModel, Items, SnapshotId


class CheckState(StrEnum):
    """State of one check of `doctor`."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Check(FrozenModel):
    """One check of `doctor`."""

    name: str = Field(description="What was checked.")
    state: CheckState = Field(description="Result of the check.")
    message: str = Field(description="What was found, and for a failure the remedy.")


class DoctorReport(FrozenModel):
    """State of the environment of pipelines."""

    healthy: bool = Field(description="Whether no check failed.")
    checks: Items[Check] = Field(description="The checks, in the order they ran.")


class SnapshotEntry(FrozenModel):
    """A snapshot, and the Dagster run that committed it, if any."""

    snapshot_id: SnapshotId = Field(description="Id of the snapshot.")
    parent_snapshot_id: SnapshotId | None = Field(description="Id of the snapshot before it.")
    committed_at: AwareDatetime = Field(description="When it was committed.")
    operation: str = Field(description="append, overwrite, delete or replace.")
    refs: Items[str] = Field(description="Branches and tags that point to it.")
    added_records: int = Field(description="Rows in the files it added.")
    deleted_records: int = Field(description="Rows in the files it removed.")
    total_records: int = Field(description="Rows of the table after it.")
    added_files: int = Field(description="Data files it added.")
    deleted_files: int = Field(description="Data files it removed.")
    run_id: str | None = Field(description="The Dagster run.")
    asset_key: str | None = Field(description="The asset.")
    partition_key: str | None = Field(description="The partition, or several.")

    @classmethod
    def from_snapshot(cls, snapshot: models.SnapshotInfo, refs: Sequence[str] = ()) -> Self:
        prop = snapshot.summary.get
        return cls(
            snapshot_id=snapshot.snapshot_id,
            parent_snapshot_id=snapshot.parent_snapshot_id,
            committed_at=snapshot.timestamp,
            operation=snapshot.operation.value,
            refs=refs,
            added_records=snapshot.added_records,
            deleted_records=snapshot.deleted_records,
            total_records=snapshot.total_records,
            added_files=snapshot.added_files,
            deleted_files=snapshot.deleted_files,
            run_id=prop(models.snapshot_properties.RUN_ID),
            asset_key=prop(models.snapshot_properties.ASSET_KEY),
            partition_key=prop(models.snapshot_properties.PARTITION_KEY),
        )


class TableEntry(FrozenModel):
    """One line of `tables`."""

    table: str = Field(description="Name of the table.")
    rows: int | None = Field(default=None, description="Rows, before delete files are applied.")
    data_files: int | None = Field(default=None, description="Data files.")
    total_bytes: int | None = Field(default=None, description="Bytes of its files.")
    snapshots: int | None = Field(default=None, description="Snapshots.")
    snapshot: SnapshotEntry | None = Field(default=None, description="The current snapshot; none for an empty table.")
    error: str | None = Field(default=None, description="Why it cannot be read.")
    warning: str | None = Field(default=None, description="Why only a part of it is known.")


class TablesReport(FrozenModel):
    """The tables of a catalog."""

    catalog: str = Field(description="Name of the catalog.")
    tables: Items[TableEntry] = Field(description="Its tables, in order of their names.")
    skipped: dict[str, str] = Field(
        default_factory=dict, description="Namespaces whose tables cannot be listed, with the reason."
    )


class Column(FrozenModel):
    """A column of a table."""

    id: int = Field(description="Its id, which renames keep.")
    name: str = Field(description="Its name.")
    type: str = Field(description="Its Iceberg type.")
    required: bool = Field(description="Whether it must not be NULL.")
    doc: str | None = Field(description="Its documentation.")


class PartitionEntry(FrozenModel):
    """A field of a partition spec."""

    name: str = Field(description="Name of the field.")
    transform: str = Field(description="Iceberg transform.")
    column: str = Field(description="The source column.")


class RefEntry(FrozenModel):
    """A branch or a tag."""

    name: str = Field(description="Its name.")
    type: str = Field(description="branch or tag.")
    snapshot_id: SnapshotId = Field(description="Id of its snapshot.")


class ReaderEntry(FrozenModel):
    """A table that is written from the changes of the inspected one."""

    table: str = Field(description="Name of the table.")
    snapshot_id: SnapshotId = Field(description="The last snapshot that it has read.")
    behind: int | None = Field(description="Snapshots with changes that it has not read; none if they have expired.")


class PolicyEntry(FrozenModel):
    """A value of a table's maintenance policy, and its source."""

    name: str = Field(description="Name of the value, such as expiry.max_age.")
    value: str = Field(description="The value, formatted.")
    raw: Any = Field(description="The value for programs: durations in seconds, sizes in bytes.")
    source: PolicySource = Field(description="Where it comes from.")

    @classmethod
    def of(cls, policy: EffectivePolicy, *relevant: str) -> list[Self]:
        """The values whose names begin with one of `relevant`."""
        raw = policy.raw_values(relevant)
        return [
            cls(name=name, value=value, raw=raw[name], source=source)
            for name, value, source in policy.describe(relevant)
        ]


class BreachEntry(FrozenModel):
    """A measure of health above its limit."""

    message: str = Field(description="What is wrong, with the numbers.")
    grave: bool = Field(description="Whether it is above the second limit too.")
    remedy: models.MaintenanceOperation = Field(description="The operation that fixes it.")


class InspectReport(FrozenModel):
    """Everything about one table."""

    table: str = Field(description="Name of the table.")
    location: str = Field(description="Location of its files.")
    format_version: int = Field(description="Version of the table format.")
    columns: Items[Column] = Field(description="Its columns.")
    partitioning: Items[PartitionEntry] = Field(description="Its partition spec.")
    sort_order: Items[str] = Field(description="Sort order of its files.")
    properties: dict[str, str] = Field(description="Its properties; values that look like secrets are masked.")
    refs: Items[RefEntry] = Field(description="Its branches and tags.")
    health: models.TableHealth = Field(description="State of its files and metadata.")
    faults: Items[BreachEntry] = Field(description="Measures above their limits.")
    policy: Items[PolicyEntry] = Field(description="Its maintenance policy; empty if not valid.")
    warnings: Items[str] = Field(
        description="Errors in that policy, and why only a part of the table is known; it is not maintained then."
    )
    readers: Items[ReaderEntry] = Field(default=(), description="Tables that read it incrementally.")
    snapshots: Items[SnapshotEntry] = Field(description="Its newest snapshots, newest first.")


class MaintenanceEntry(FrozenModel):
    """One operation on one table, planned or executed."""

    table: str = Field(description="Name of the table.")
    operation: str = Field(description="The operation.")
    status: models.MaintenanceStatus = Field(description="How it ended; `planned` is a dry run with something to do.")
    state: str = Field(description="The status in words, such as 'would run', 'nothing to do' or 'blocked'.")
    actionable: bool = Field(description="Whether there was something to do and nothing in the way.")
    note: str = Field(description="What would be or was done, or why nothing, in one sentence.")
    results: Items[models.MaintenanceResult] = Field(description="The results, with their plans.")
    policy: Items[PolicyEntry] = Field(description="The operation's policy.")


class MaintenanceReport(FrozenModel):
    """The maintenance of tables, planned or executed."""

    dry_run: bool = Field(description="Whether nothing was changed.")
    entries: Items[MaintenanceEntry] = Field(description="By operation, then table.")


class RollbackReport(FrozenModel):
    """A rollback to an earlier snapshot."""

    table: str = Field(description="Name of the table.")
    rolled_back: bool = Field(description="Whether the table changed; it may be at that snapshot already.")
    target: SnapshotEntry = Field(description="The current snapshot now.")
    undone: Items[SnapshotEntry] = Field(description="Snapshots that readers no longer see, newest first.")


class JarsReport(FrozenModel):
    """The jars that were fetched."""

    folder: str = Field(description="The folder.")
    jars: Items[str] = Field(description="Their paths.")


class StarterReport(FrozenModel):
    """The starter project that was written."""

    folder: str = Field(description="The folder.")
    files: Items[str] = Field(description="The paths of its files.")
    next_commands: Items[str] = Field(description="Commands to run next, in the folder.")
