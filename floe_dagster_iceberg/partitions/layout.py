"""How a new table's files are split, from the asset's partitions definition."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from dagster import PartitionsDefinition, TimeWindowPartitionsDefinition

from floe_dagster_iceberg.models.partitioning import PartitionTransform
from floe_dagster_iceberg.partitions.columns import PartitionExpr, resolve_dimensions
from floe_dagster_iceberg.table.partition_layout import TIME_TRANSFORMS, PartitionLayout, PartitionLayoutField

# Enough for a cron whose ticks are not evenly apart, such as the first and the fifteenth of a month.
_WINDOWS: Final = 5
# A day on which clocks are put forward.
_SHORTEST_DAY: Final = timedelta(hours=23)
_FINENESS: Final = (*TIME_TRANSFORMS, PartitionTransform.IDENTITY).index


def derive_layout(
    partitions_def: PartitionsDefinition | None,
    *,
    partition_expr: PartitionExpr | None = None,
    partition_column: str | None = None,
    asset: str = "asset",
) -> PartitionLayout:
    """Return the layout of a table that a partitioned asset is about to create; empty without partitions.

    Time windows become hour, day, month or year by their length, anything else the column's own value.

    Raises:
        ValidationError: A dimension has no column.
    """
    if partitions_def is None:
        return PartitionLayout()
    dimensions = resolve_dimensions(
        partitions_def, partition_expr=partition_expr, partition_column=partition_column, asset=asset
    )
    transforms: dict[str, PartitionTransform] = {}
    for dimension in dimensions:
        transform = _transform_of(dimension.partitions_def)
        # Iceberg allows one time field per column; the finer one serves both dimensions.
        transforms[dimension.column] = max(transform, transforms.get(dimension.column, transform), key=_FINENESS)
    return PartitionLayout(
        fields=[
            PartitionLayoutField(column=column, transform=transform, derived=True)
            for column, transform in transforms.items()
        ]
    )


def time_transform(partitions_def: TimeWindowPartitionsDefinition) -> PartitionTransform:
    """Return the coarsest of year, month and day on whose first day every window starts, or hour for shorter windows.

    The time of day does not count: in most time zones Iceberg's UTC days would not match it anyway.
    """
    windows = list(_first_windows(partitions_def))
    if any(end - start < _SHORTEST_DAY for start, end in windows):
        return PartitionTransform.HOUR
    if any(start.day != 1 for start, _ in windows):
        return PartitionTransform.DAY
    return PartitionTransform.MONTH if any(start.month != 1 for start, _ in windows) else PartitionTransform.YEAR


def _first_windows(partitions_def: TimeWindowPartitionsDefinition) -> Iterator[tuple[datetime, datetime]]:
    end = partitions_def.start
    for _ in range(_WINDOWS):
        # Whether or not they are over yet.
        window = partitions_def.get_next_partition_window(end, respect_bounds=False)
        if window is None:
            return
        end = window.end
        yield window.start, window.end


def _transform_of(partitions_def: PartitionsDefinition | None) -> PartitionTransform:
    if isinstance(partitions_def, TimeWindowPartitionsDefinition):
        return time_transform(partitions_def)
    return PartitionTransform.IDENTITY
