"""Plans of the operations: what would be done to a table and why, or why not. Planning changes nothing."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from pyiceberg.manifest import FileFormat
from pyiceberg.table import Table

from floe_dagster_iceberg.environments import environment_of
from floe_dagster_iceberg.errors import EngineCapabilityError, MaintenanceRefusedError
from floe_dagster_iceberg.maintenance import guardrails
from floe_dagster_iceberg.maintenance.task import Planned, Task
from floe_dagster_iceberg.models import CompactionStrategyType, Guardrail, MaintenanceEngine, PlanReason
from floe_dagster_iceberg.models.quantities import counted, format_bytes, format_duration
from floe_dagster_iceberg.plugins.error_translation import translate_errors
from floe_dagster_iceberg.table.commit.commit import NEWEST_FORMAT_OF_PYICEBERG
from floe_dagster_iceberg.table.maintenance.compaction_plan import (
    FileGroup,
    LiveFiles,
    plan_delete_groups,
    within_budget,
)
from floe_dagster_iceberg.table.maintenance.last_run import estimate_duration
from floe_dagster_iceberg.table.names import table_name

if TYPE_CHECKING:
    # A run is about one operation, and loads what that one needs.
    from floe_dagster_iceberg.table.maintenance.manifests import ManifestGroups

# Rows of a group are sorted in memory, where they take several times their size on disk.
MOST_BYTES_TO_SORT: Final = 256 * 1024 * 1024
# Entries of the manifests that are merged are sorted in memory.
MOST_ENTRIES_TO_SORT: Final = 500_000
# Its procedure refuses a lower age, even in a dry run.
YOUNGEST_ORPHANS_OF_SPARK: Final = timedelta(days=1)


def plan_compaction(task: Task) -> Planned:
    """Plan to rewrite small files, as many as the budget allows."""
    found, total = task.file_groups, task.live.total_bytes
    if not found:
        summary = "No partition has enough files that are too small or too large."
        return task.nothing(summary, table_bytes=total)
    strategy = task.strategy.strategy_type
    needs_spark = compaction_needs_spark(task.table.metadata.format_version, task.live, found, strategy)
    choice = choose_engine_of(task, needs_spark)
    if choice.blocked_by is not None:
        return task.blocked(choice.blocked_by, engine=choice.engine, table_bytes=total)
    max_bytes = task.policy.budget.max_rewrite_bytes
    if choice.engine is MaintenanceEngine.SPARK:
        # Its procedure rewrites all groups or none.
        fits = max_bytes is None or sum(group.total_bytes for group in found) <= max_bytes
        groups = found if fits else []
    else:
        groups = within_budget(found, task.strategy, max_bytes=max_bytes)
    if not groups:
        summary = f"{counted(len(found), 'group')} of files to rewrite; none fits into {format_bytes(max_bytes or 0)}."
        return Planned(task.plan(PlanReason.BUDGET_CAPPED, summary, engine=choice.engine, table_bytes=total))
    return _plan_rewrite(task, groups, engine=choice.engine)


def plan_position_deletes(task: Task) -> Planned:
    """Plan to rewrite position delete files, which only Spark can do."""
    live = task.live
    groups = plan_delete_groups(live, task.table.properties, task.policy.compaction)
    if not groups:
        return task.nothing("No partition has enough position delete files.", table_bytes=live.total_bytes)
    choice = choose_engine_of(task, "Position delete files are to be rewritten")
    if choice.blocked_by is not None:
        return task.blocked(choice.blocked_by, engine=choice.engine, table_bytes=live.total_bytes)
    files = [file for group in groups for file in group.files]
    output_files = sum(group.output_files for group in groups)
    input_bytes = sum(file.file_size_in_bytes for file in files)
    plan = task.plan(
        PlanReason.RECOMMENDED,
        f"Rewrite {counted(len(files), 'position delete file')} of {counted(len(groups), 'partition')} into about "
        f"{output_files:,}.",
        engine=choice.engine,
        table_bytes=live.total_bytes,
        partitions=len(groups),
        files=[file.file_path for file in files],
        input_bytes=input_bytes,
        output_files=output_files,
        output_bytes=input_bytes if output_files else 0,
    )
    return Planned(plan)


def plan_snapshot_expiry(task: Task) -> Planned:
    """Plan to expire old snapshots, and to delete the files that only they reference."""
    from floe_dagster_iceberg.table.maintenance.expire_files import forecast_expiry  # noqa: PLC0415 - see above

    table, policy = task.table, task.policy.expiry
    try:
        guardrails.check_expiry(table, policy)
    except MaintenanceRefusedError as refused:
        return task.blocked(str(refused))
    forecast = forecast_expiry(table, policy, task.now, task.manifests, retention=task.retention)
    held = f"{_held_by_readers(task)}{_kept_environments(task)}"
    expired, refs, files = forecast.plan.snapshot_ids, forecast.plan.refs, forecast.files
    if not expired and not refs and not forecast.old_metadata.files:
        return task.nothing(
            f"No snapshot is older than {format_duration(policy.max_age)}, outside the newest "
            f"{policy.min_snapshots_to_keep} and without a branch or tag.{held}"
        )
    needs_spark = commit_needs_spark(table.metadata.format_version)
    choice = choose_engine_of(task, needs_spark)
    if choice.blocked_by is not None:
        return task.blocked(choice.blocked_by, engine=choice.engine)
    if choice.engine is MaintenanceEngine.SPARK and not policy.delete_files:
        return task.blocked(
            "Spark's expire_snapshots always deletes the files too. Set delete_files to true, or use engine 'auto'.",
            engine=choice.engine,
        )
    total_bytes = sum(file.size_bytes for file in files)
    going = f"{len(expired):,} of {counted(len(table.metadata.snapshots), 'snapshot')}"
    named = f" and {counted(len(refs), 'branch or tag', 'branches or tags')} past their age" if refs else ""
    if dropped := _environments(task, refs):
        named += f" (environment {', '.join(dropped)})"
    plan = task.plan(
        PlanReason.RECOMMENDED,
        f"Expire {going}{named}, and delete {counted(len(files), 'file')} ({format_bytes(total_bytes)}).{held}",
        engine=choice.engine,
        snapshots=len(expired),
        refs=refs,
        files=[file.location for file in files],
        input_bytes=total_bytes,
    )
    return Planned(plan)


def _held_by_readers(task: Task) -> str:
    """Which snapshots stay only for incremental readers, as a further sentence of a plan."""
    from floe_dagster_iceberg.table.maintenance.expiry import plan_expiry  # noqa: PLC0415 - see above

    if not task.readers:
        return ""
    policy, retention = task.policy.expiry, task.retention
    plans = [plan_expiry(task.table.metadata, each) for each in (replace(retention, read_up_to=()), retention)]
    held = len(plans[0].snapshot_ids) - len(plans[1].snapshot_ids)
    if not held:
        return ""
    readers = ", ".join(f"'{reader.table}'" for reader in task.readers)
    return (
        f" {counted(held, 'snapshot')} more {'is' if held == 1 else 'are'} kept for incremental readers ({readers}), "
        f"until max_cursor_age ({format_duration(policy.max_cursor_age)}) or '{Guardrail.READER_CURSORS}' in overrides."
    )


def _environments(task: Task, refs: Sequence[str]) -> list[str]:
    """The environments whose branches go because they are idle."""
    names = (environment_of(ref) for ref in refs)
    return [name for name in names if name is not None and name in task.idle_environments.names]


def _kept_environments(task: Task) -> str:
    """Why no environment is dropped although the policy says so, as a further sentence of a plan."""
    unknown, policy = task.idle_environments.unknown_because, task.policy.expiry
    if policy.max_environment_age is None or unknown is None:
        return ""
    return f" No environment is dropped, because {unknown}, where one may be in use."


def plan_manifest_rewrite(task: Task) -> Planned:
    """Plan to rewrite small manifests."""
    from floe_dagster_iceberg.table.maintenance.manifests import plan_manifests  # noqa: PLC0415 - see above

    table, policy = task.table, task.policy.manifests
    with translate_errors(table.catalog.name, table=table_name(table)):
        groups = plan_manifests(table.metadata, table.io, policy)
    if not groups.should_rewrite(policy):
        summary = (
            f"{counted(groups.manifests, 'manifest')}; they are rewritten from {policy.min_manifests} on, if at most "
            "half as many are left."
        )
        return task.nothing(summary)
    choice = choose_engine_of(task, _manifests_need_spark(task, groups))
    if choice.blocked_by is not None:
        return task.blocked(choice.blocked_by, engine=choice.engine)
    if choice.engine is MaintenanceEngine.SPARK and (field := _field_of_dropped_column(table)) is not None:
        return task.blocked(
            f"The column of partition field '{field}' was dropped, and Spark's rewrite_manifests fails on such tables. "
            "Use engine 'auto'; in format version 3, no engine can do it.",
            engine=choice.engine,
        )
    chosen = groups.input_manifests
    total_bytes = sum(manifest.manifest_length for manifest in chosen)
    plan = task.plan(
        PlanReason.RECOMMENDED,
        f"Rewrite {len(chosen):,} of {counted(groups.manifests, 'manifest')} into about {groups.output_manifests:,}.",
        engine=choice.engine,
        files=[manifest.manifest_path for manifest in chosen],
        input_bytes=total_bytes,
        output_files=groups.output_manifests,
        output_bytes=total_bytes,
    )
    return Planned(plan, manifests=groups)


def plan_orphans(
    task: Task, overlapping_tables: Callable[[Table], Sequence[str]], find_with_spark: Callable[[], Iterable[str]]
) -> Planned:
    """Plan to move orphans to quarantine and to delete those whose time there is over.

    Args:
        task: The task.
        overlapping_tables: Returns the other tables whose locations overlap with a table's.
        find_with_spark: Returns the orphans that Spark finds; called only when the engine is Spark.
    """
    from floe_dagster_iceberg.table.maintenance.orphan_files import find_orphans  # noqa: PLC0415 - see above

    table, policy = task.table, task.policy.orphans
    choice = choose_engine(task.policy.engine, None, has_spark=task.has_spark)
    if choice.blocked_by is not None:
        return task.blocked(choice.blocked_by, engine=choice.engine)
    if choice.engine is MaintenanceEngine.SPARK and policy.older_than < YOUNGEST_ORPHANS_OF_SPARK:
        why = f"Spark finds no orphans younger than {format_duration(YOUNGEST_ORPHANS_OF_SPARK)}"
        return task.blocked(f"{why}. Raise older_than, or use engine 'auto'.", engine=choice.engine)
    try:
        guardrails.check_orphan_policy(table, policy, overlapping_tables(table))
        found = find_orphans(
            table,
            now=task.now,
            older_than=policy.older_than,
            grace=policy.grace,
            only=find_with_spark if choice.engine is MaintenanceEngine.SPARK else None,
        )
        guardrails.check_orphans(table, policy, found)
    except MaintenanceRefusedError as refused:
        return task.blocked(str(refused), engine=choice.engine)
    orphans, due = found.orphans.files, [file for quarantine in found.due for file in quarantine.files]
    due_bytes = sum(quarantine.total_bytes for quarantine in found.due)
    if not orphans and not due:
        summary = (
            f"None of {counted(found.objects, 'file')} is an orphan older than {format_duration(policy.older_than)}."
        )
        return task.nothing(summary, engine=choice.engine)
    plan = task.plan(
        PlanReason.RECOMMENDED,
        f"Move {counted(len(orphans), 'orphan')} to quarantine, and delete {counted(len(due), 'file')} after "
        f"{format_duration(policy.grace)} there.",
        engine=choice.engine,
        files=[*(file.location for file in orphans), *(file.quarantined_at for file in due)],
        input_bytes=found.orphans.total_bytes + due_bytes,
    )
    return Planned(plan, orphans=found)


def _plan_rewrite(task: Task, groups: Sequence[FileGroup], *, engine: MaintenanceEngine) -> Planned:
    target, waiting = task.policy.compaction.target_file_size_bytes, len(task.file_groups) - len(groups)
    files = [file.file_path for group in groups for file in group.files]
    input_bytes = sum(group.total_bytes for group in groups)
    output_files = sum(group.output_files(target) for group in groups)
    partitions = len({group.partition for group in groups})
    what = f"{counted(len(files), 'file')} of {counted(partitions, 'partition')}"
    later = f" For the next run's budget: {counted(waiting, 'more group', 'more groups')}." if waiting else ""
    plan = task.plan(
        PlanReason.RECOMMENDED,
        f"Rewrite {what} into about {output_files:,}.{later}",
        engine=engine,
        table_bytes=task.live.total_bytes,
        partitions=partitions,
        files=files,
        input_bytes=input_bytes,
        output_files=output_files,
        output_bytes=input_bytes,
        estimated_duration=estimate_duration(task.table.metadata, task.operation, input_bytes),
    )
    return Planned(plan, groups=groups)


def _manifests_need_spark(task: Task, groups: "ManifestGroups") -> str | None:
    entries = sum(
        (manifest.added_files_count or 0) + (manifest.existing_files_count or 0) for manifest in groups.input_manifests
    )
    if entries > MOST_ENTRIES_TO_SORT:
        return f"{entries} entries of manifests would be sorted in memory"
    return commit_needs_spark(task.table.metadata.format_version)


def _field_of_dropped_column(table: Table) -> str | None:
    """A field of the current partition spec that has no column: version 1 keeps the fields that are dropped."""
    columns = table.schema()
    return next((each.name for each in table.spec().fields if columns.find_column_name(each.source_id) is None), None)


@dataclass(frozen=True)
class ChosenEngine:
    """The engine to use, or the missing one with the reason and the remedy."""

    engine: MaintenanceEngine
    blocked_by: str | None = None


def choose_engine(asked_for: MaintenanceEngine, needs_spark: str | None, *, has_spark: bool) -> ChosenEngine:
    """Choose by the policy's engine and by what PyIceberg cannot do.

    `needs_spark` is why PyIceberg cannot do it, as the beginning of a sentence; None if it can.
    """
    if asked_for is MaintenanceEngine.PYICEBERG:
        remedy = (
            None if needs_spark is None else f"{needs_spark}, which PyIceberg cannot do. Use engine 'auto' or 'spark'."
        )
        return ChosenEngine(MaintenanceEngine.PYICEBERG, remedy)
    if asked_for is MaintenanceEngine.AUTO and needs_spark is None:
        return ChosenEngine(MaintenanceEngine.PYICEBERG)
    if has_spark:
        return ChosenEngine(MaintenanceEngine.SPARK)
    why = "Engine 'spark' was asked for" if needs_spark is None else f"{needs_spark}, which PyIceberg cannot do"
    return ChosenEngine(
        MaintenanceEngine.SPARK, f"{why}, and there is no Spark session. Configure an IcebergSparkResource."
    )


def choose_engine_of(task: Task, needs_spark: str | None) -> ChosenEngine:
    """Choose the engine that rewrites files or commits; Spark is none for a table with types that it does not have."""
    choice = choose_engine(task.policy.engine, needs_spark, has_spark=task.has_spark)
    if choice.engine is not MaintenanceEngine.SPARK or choice.blocked_by is not None:
        return choice
    from floe_dagster_iceberg.spark.types import check_types  # noqa: PLC0415 - it loads PySpark

    try:
        # Its procedures fail on such a table, some of them after they have committed.
        check_types(task.table.schema(), task.identifier)
    except EngineCapabilityError as limit:
        remedy = "Use engine 'auto'." if needs_spark is None else f"{needs_spark}, which PyIceberg cannot do either."
        return ChosenEngine(MaintenanceEngine.SPARK, f"Spark cannot load the table: {limit.reason}. {remedy}")
    return choice


def compaction_needs_spark(
    format_version: int, live: LiveFiles, groups: Sequence[FileGroup], strategy: CompactionStrategyType
) -> str | None:
    """Why PyIceberg cannot rewrite these files; None if it can."""
    if (reason := commit_needs_spark(format_version)) is not None:
        return reason
    if strategy is CompactionStrategyType.Z_ORDER:
        return "The files are to be in z-order"
    if live.equality_deletes:
        return f"The table has {len(live.equality_deletes)} equality delete files"
    if others := sum(file.file_format != FileFormat.PARQUET for file in live.data):
        return f"{others} data files are not Parquet"
    largest = max((group.total_bytes for group in groups), default=0)
    if strategy is CompactionStrategyType.SORT and largest > MOST_BYTES_TO_SORT:
        return f"A partition of {format_bytes(largest)} would be sorted in memory"
    return None


def commit_needs_spark(format_version: int) -> str | None:
    """Why PyIceberg cannot commit to a table; None if it can."""
    if format_version > NEWEST_FORMAT_OF_PYICEBERG:
        return f"The table has format version {format_version}"
    return None
