"""Who does an operation: PyIceberg where that is safe, Spark where it is not."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from pyiceberg.manifest import FileFormat

from floe_dagster_iceberg.models import CompactionStrategyType, MaintenanceEngine
from floe_dagster_iceberg.models.quantities import format_bytes
from floe_dagster_iceberg.table.file_groups import FileGroup
from floe_dagster_iceberg.table.health import LiveFiles

NEWEST_FORMAT_OF_PYICEBERG: Final = 2
# Rows of a group are sorted in memory, where they take several times their size on disk.
MOST_BYTES_TO_SORT: Final = 256 * 1024 * 1024
# Entries of the manifests that are put together are sorted in memory.
MOST_ENTRIES_TO_SORT: Final = 500_000
# Its procedure refuses to look for younger ones, even for a dry run.
YOUNGEST_ORPHANS_OF_SPARK: Final = timedelta(days=1)


@dataclass(frozen=True)
class EngineChoice:
    """Who does it, or why nobody can.

    Attributes:
        engine: The engine that does it, or that is missing.
        blocked_by: What stands in the way, and the remedy.
    """

    engine: MaintenanceEngine
    blocked_by: str | None = None


def choose_engine(asked_for: MaintenanceEngine, needs_spark: str | None, *, has_spark: bool) -> EngineChoice:
    """Choose by what was asked for, and by what PyIceberg cannot do.

    Args:
        asked_for: The policy's engine.
        needs_spark: Why PyIceberg cannot do it, as the beginning of a sentence; None when it can.
        has_spark: Whether there is a Spark session to be had.
    """
    if asked_for is MaintenanceEngine.PYICEBERG:
        remedy = (
            None if needs_spark is None else f"{needs_spark}, which PyIceberg cannot do. Use engine 'auto' or 'spark'."
        )
        return EngineChoice(MaintenanceEngine.PYICEBERG, remedy)
    if asked_for is MaintenanceEngine.AUTO and needs_spark is None:
        return EngineChoice(MaintenanceEngine.PYICEBERG)
    if has_spark:
        return EngineChoice(MaintenanceEngine.SPARK)
    why = "Engine 'spark' was asked for" if needs_spark is None else f"{needs_spark}, which PyIceberg cannot do"
    return EngineChoice(
        MaintenanceEngine.SPARK, f"{why}, and there is no Spark session. Configure an IcebergSparkResource."
    )


def compaction_needs_spark(
    format_version: int, live: LiveFiles, groups: Sequence[FileGroup], strategy: CompactionStrategyType
) -> str | None:
    """Why PyIceberg cannot rewrite these files; None when it can."""
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
    """Why PyIceberg cannot commit to a table; None when it can."""
    if format_version > NEWEST_FORMAT_OF_PYICEBERG:
        return f"The table has format version {format_version}"
    return None
