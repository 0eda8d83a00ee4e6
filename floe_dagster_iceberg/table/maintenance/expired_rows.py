"""Data files with rows that are past a table's retention, found without reading those that hold no other rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType

from floe_dagster_iceberg._pyiceberg.arrow_reader import FileReader
from floe_dagster_iceberg._pyiceberg.manifest_reader import reading_files
from floe_dagster_iceberg.errors import MaintenanceRefusedError, ValidationError
from floe_dagster_iceberg.models import Guardrail, RetentionPolicy
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.filter.row_age import AgeLimit, find_age_limit
from floe_dagster_iceberg.table.filter.row_filter import FileMatcher
from floe_dagster_iceberg.table.maintenance.compaction_plan import LiveFiles
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.write.delete import tasks_for

LEGAL_HOLD_TAG: Final = "legal-hold"
"""Tags of tables whose rows must not be deleted begin with it."""


@dataclass(frozen=True)
class ExpiredRows:
    """The rows of main that a retention deletes.

    Attributes:
        limit: Which rows these are.
        whole: Files that have no other rows.
        partial: Files that have others too, and are rewritten.
        rows: Number of the rows, before delete files are applied.
        total_rows: Number of all rows of the table, likewise.
    """

    limit: AgeLimit
    whole: Sequence[DataFile]
    partial: Sequence[DataFile]
    rows: int
    total_rows: int

    @property
    def files(self) -> list[DataFile]:
        return [*self.whole, *self.partial]


def limit_of(table: Table, policy: RetentionPolicy, now: datetime) -> AgeLimit | None:
    """Which rows are past their retention; None if they stay forever.

    Raises:
        ValidationError: It is not known what the age of a row is.
    """
    if policy.max_age is None:
        return None
    return find_age_limit(
        table.metadata,
        policy.column,
        max_age=policy.max_age,
        now=now,
        timezone=policy.timezone,
        table=table_name(table),
    )


def find_expired_rows(table: Table, live: LiveFiles, limit: AgeLimit) -> ExpiredRows:
    """Find the files by partitions and statistics; of partially matching ones no row is counted yet."""
    matches = FileMatcher(table.metadata, limit.expression)
    found = [file for file in live.data if not matches.no_row(file)]
    whole = [file for file in found if matches.all_rows(file)]
    # A file without statistics or with rows on both sides.
    partial = [file for file in found if not matches.all_rows(file)]
    total = sum(file.record_count for file in live.data)
    return ExpiredRows(limit, whole, partial, sum(file.record_count for file in whole), total)


def counting_needs_spark(live: LiveFiles, found: ExpiredRows) -> str | None:
    """Why PyIceberg cannot read the partially matching files; None if it can."""
    if found.partial and live.equality_deletes:
        return f"The table has {len(live.equality_deletes)} equality delete files"
    if others := sum(file.file_format != FileFormat.PARQUET for file in found.partial):
        return f"{others} data files are not Parquet"
    return None


def count_rows(table: Table, found: ExpiredRows) -> ExpiredRows:
    """Count the rows of partially matching files, of which only the column is read, and leave out files without any."""
    snapshot, where = table.current_snapshot(), found.limit.expression
    if snapshot is None or not found.partial:
        return found
    metadata, rows = table.metadata, found.rows
    reader = FileReader(metadata, table.io, metadata.schema().select(found.limit.column), where)
    partial = []
    with translate_errors(table.catalog.name, table=table_name(table)), reading_files(metadata.location):
        for task in tasks_for(metadata, table.io, snapshot, found.partial, where):
            if matching := reader.to_table([task]).num_rows:
                rows += matching
                partial.append(task.file)
    return replace(found, partial=partial, rows=rows)


def legal_holds(metadata: TableMetadata) -> list[str]:
    """Tags that forbid to delete rows."""
    return sorted(
        name
        for name, ref in metadata.refs.items()
        if ref.snapshot_ref_type is SnapshotRefType.TAG and name.lower().startswith(LEGAL_HOLD_TAG)
    )


def refuse_legal_hold(table: str, metadata: TableMetadata) -> None:
    """Refuse to delete rows of a table with a legal hold, which no policy can override.

    Raises:
        MaintenanceRefusedError: It has one.
    """
    if holds := legal_holds(metadata):
        reason = f"it has tag '{holds[0]}'; remove the tag when the hold is over"
        raise MaintenanceRefusedError(table, guardrail=Guardrail.LEGAL_HOLD.value, reason=reason)


def days_overdue(table: Table, live: LiveFiles, policy: RetentionPolicy, now: datetime) -> float | None:
    """Days for which the oldest row has been past its retention; None where rows stay, or statistics do not say."""
    if live.deletes or legal_holds(table.metadata):
        return None
    try:
        limit = limit_of(table, policy, now)
    except ValidationError:
        # The retention reports it; it must not fail other operations, which measure the table too.
        return None
    return None if limit is None else limit.days_overdue(live.data)
