"""Retention: rows that are old enough are planned, and then deleted in one commit."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pyiceberg.expressions import BooleanExpression
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH

from floe_dagster_iceberg._pyiceberg.file_changes import FileChanges
from floe_dagster_iceberg.errors import MaintenanceRefusedError
from floe_dagster_iceberg.maintenance import guardrails
from floe_dagster_iceberg.maintenance.planning import choose_engine_of, commit_needs_spark
from floe_dagster_iceberg.maintenance.task import Planned, Task
from floe_dagster_iceberg.models import MaintenanceEngine, PlanReason, SnapshotInfo
from floe_dagster_iceberg.models.quantities import counted, format_duration
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.maintenance import expired_rows
from floe_dagster_iceberg.table.maintenance.compaction_plan import partition_of, total_bytes
from floe_dagster_iceberg.table.write.delete import delete_rows

RowCounter = Callable[[BooleanExpression, str], int]
"""Counts the rows that match a filter on a column."""


def plan_retention(task: Task, count_with_spark: RowCounter) -> Planned:
    """Plan to delete old rows: files without other rows are dropped, the others are rewritten.

    `count_with_spark` is called only for files that PyIceberg cannot read.
    """
    table, policy = task.table, task.policy.retention
    limit = expired_rows.limit_of(table, policy, task.now)
    if limit is None or policy.max_age is None:
        return task.nothing("Rows stay: retention has no max_age.")
    age = f"than {format_duration(policy.max_age)} ('{limit.column}' before {limit.cutoff:%Y-%m-%d} {policy.timezone})"
    found = expired_rows.find_expired_rows(table, task.live, limit)
    needs_spark = expired_rows.counting_needs_spark(task.live, found)
    choice = choose_engine_of(task, commit_needs_spark(table.metadata.format_version) or needs_spark)
    try:
        guardrails.check_retention(table, policy)
        if found.files and choice.blocked_by is None:
            found = _counted(task, found, None if needs_spark is None else count_with_spark)
            guardrails.check_retention_share(table, policy, rows=found.rows, total_rows=found.total_rows)
    except MaintenanceRefusedError as refused:
        return task.blocked(str(refused), engine=choice.engine, table_bytes=task.live.total_bytes)
    if not found.files:
        return task.nothing(f"No row is older {age}.", engine=choice.engine, table_bytes=task.live.total_bytes)
    if choice.blocked_by is not None:
        return task.blocked(choice.blocked_by, engine=choice.engine, table_bytes=task.live.total_bytes)
    return _plan_deletion(task, found, age, engine=choice.engine)


def _counted(
    task: Task, found: expired_rows.ExpiredRows, count_with_spark: RowCounter | None
) -> expired_rows.ExpiredRows:
    if count_with_spark is None:
        return expired_rows.count_rows(task.table, found)
    rows = count_with_spark(found.limit.expression, found.limit.column)
    return replace(found, rows=rows) if rows else replace(found, rows=0, whole=(), partial=())


def _plan_deletion(task: Task, found: expired_rows.ExpiredRows, age: str, *, engine: MaintenanceEngine) -> Planned:
    others = sorted(name for name in task.table.metadata.refs if name != MAIN_BRANCH)
    kept = f" They stay on {', '.join(map(repr, others))}." if others else ""
    whole, partial = counted(len(found.whole), "file"), counted(len(found.partial), "file")
    rows = f"{found.rows:,} of {counted(found.total_rows, 'row')}"
    plan = task.plan(
        PlanReason.RECOMMENDED,
        f"Delete {rows}, older {age}: drop {whole} and rewrite {partial}.{kept}",
        engine=engine,
        table_bytes=task.live.total_bytes,
        partitions=len({partition_of(file) for file in found.files}),
        files=[file.file_path for file in found.files],
        rows=found.rows,
        input_bytes=total_bytes(found.files),
        output_files=len(found.partial),
        output_bytes=total_bytes(found.partial),
    )
    return Planned(plan, expired=found)


def delete_expired_rows(
    task: Task, expired: expired_rows.ExpiredRows, budget: CommitBudget, snapshot_properties: Mapping[str, str]
) -> SnapshotInfo | None:
    """Delete old rows with PyIceberg; None if another process did it first.

    Raises:
        MaintenanceRefusedError: A guardrail refuses since others have committed after the plan.
        CommitConflictError: Other writers won more often than the budget allows; nothing was changed.
    """

    def check(metadata: TableMetadata, changes: FileChanges) -> None:
        # Old rows that others have written since the plan go too, so the guardrails must hold with them.
        expired_rows.refuse_legal_hold(str(task.identifier), metadata)
        rows = sum(entry.data_file.record_count for entry in changes.removed)
        rows -= sum(file.record_count for file in changes.added)
        guardrails.check_retention_share(task.table, task.policy.retention, rows=rows, total_rows=expired.total_rows)

    where = expired.limit.expression
    snapshot = delete_rows(task.table, where, budget, snapshot_properties=snapshot_properties, check=check)
    return None if snapshot is None else SnapshotInfo.from_pyiceberg_snapshot(snapshot)


def deletion_counts(snapshot: SnapshotInfo | None) -> dict[str, int]:
    """What a snapshot that deletes rows says about itself; Spark may write delete files instead of new data files."""
    if snapshot is None:
        return {}

    def count(name: str) -> int:
        return int(snapshot.summary.get(name, 0))

    return {
        "files_removed": count("deleted-data-files"),
        "bytes_removed": count("removed-files-size"),
        "files_added": count("added-data-files") + count("added-delete-files"),
        "bytes_added": count("added-files-size"),
        "rows_deleted": count("deleted-records") - count("added-records") + count("added-position-deletes"),
    }
