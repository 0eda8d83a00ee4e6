"""How a new table's files are split, from the asset's partitions definition."""

from typing import Final

from dagster import PartitionsDefinition, TimeWindowPartitionsDefinition

from floe_dagster_iceberg.models.partitioning import PartitionTransform
from floe_dagster_iceberg.partitions.columns import PartitionExpr, resolve_dimensions
from floe_dagster_iceberg.table.partition_layout import TIME_TRANSFORMS, PartitionLayout, PartitionLayoutField

_CRON_ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MINUTES, _HOURS, _DAYS, _MONTHS = range(60), range(24), range(1, 32), range(1, 13)


def derive_layout(
    partitions_def: PartitionsDefinition | None,
    *,
    partition_expr: PartitionExpr | None = None,
    partition_column: str | None = None,
    asset: str = "asset",
) -> PartitionLayout:
    """Return the layout of a table that a partitioned asset is about to create; empty without partitions.

    Time windows become hour, day, month or year by their cron, anything else the column's own value.

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
        transforms[dimension.column] = max(transform, transforms.get(dimension.column, transform), key=_fineness)
    return PartitionLayout(
        fields=[
            PartitionLayoutField(column=column, transform=transform, derived=True)
            for column, transform in transforms.items()
        ]
    )


def cron_transform(cron: str) -> PartitionTransform:
    """Return the coarsest of year, month and day on whose first day every tick falls, or hour for several a day.

    The time of day does not count: in most time zones Iceberg's UTC days would not match it anyway.

    >>> cron_transform("0 0 1 */3 *")
    <PartitionTransform.MONTH: 'month'>
    """
    minute, hour, day, month, weekday = _CRON_ALIASES.get(cron, cron).split()
    if len(_ticks(minute, _MINUTES)) != 1 or len(_ticks(hour, _HOURS)) != 1:
        return PartitionTransform.HOUR
    if weekday not in {"*", "?"} or _ticks(day, _DAYS) != {1}:
        return PartitionTransform.DAY
    return PartitionTransform.YEAR if _ticks(month, _MONTHS) == {1} else PartitionTransform.MONTH


def _transform_of(partitions_def: PartitionsDefinition | None) -> PartitionTransform:
    if isinstance(partitions_def, TimeWindowPartitionsDefinition):
        return cron_transform(partitions_def.cron_schedule)
    return PartitionTransform.IDENTITY


def _fineness(transform: PartitionTransform) -> int:
    return TIME_TRANSFORMS.index(transform) if transform in TIME_TRANSFORMS else len(TIME_TRANSFORMS)


def _ticks(field: str, domain: range) -> set[int]:
    """The values a cron field allows; empty for words such as L or JAN, which only make the layout finer."""
    ticks: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        if span in {"*", "?"}:
            values = domain
        elif first.isdecimal() and (last.isdecimal() or not last):
            values = range(int(first), (int(last) if last else domain[-1] if step else int(first)) + 1)
        else:
            return set()
        ticks.update(values[:: int(step) if step.isdecimal() else 1])
    return ticks
