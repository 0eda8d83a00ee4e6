"""Dagster partitions as Iceberg sees them: the column of each dimension, the table's layout, the rows of keys."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple, TypeAlias

import dagster as dg

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS, Constraint, KeySet, PartitionSlice, TimeRange
from floe_dagster_iceberg.models.partitioning import PartitionTransform
from floe_dagster_iceberg.table.schema.partition_spec import TIME_TRANSFORMS, PartitionLayout, PartitionLayoutField

PartitionExpr: TypeAlias = str | Mapping[str, str]
"""A column, or a column per dimension of a multi-partitions definition."""


class Dimension(NamedTuple):
    """One dimension of a partitions definition and the column that holds it."""

    name: str | None
    partitions_def: dg.PartitionsDefinition | None
    column: str


def resolve_dimensions(
    partitions_def: dg.PartitionsDefinition | None,
    *,
    partition_expr: PartitionExpr | None,
    partition_column: str | None,
    asset: str,
) -> tuple[Dimension, ...]:
    """Return the dimensions in Dagster's order, each with its column.

    Args:
        partitions_def: The asset's partitions; None when a context has keys without a definition.
        partition_expr: The asset's metadata of that name.
        partition_column: The IO manager's fallback, for one dimension at most.
        asset: Name for error messages.

    Raises:
        ValidationError: A dimension has no column, or a column is given for an unknown dimension.
    """
    if isinstance(partitions_def, dg.MultiPartitionsDefinition):
        columns = _columns_by_dimension(partitions_def, partition_expr, partition_column, asset)
        return tuple(
            Dimension(name, partitions_def.get_partitions_def_for_dimension(name), columns[name])
            for name in partitions_def.partition_dimension_names
        )
    column = partition_column if partition_expr is None else partition_expr
    if column is None:
        raise ValidationError(
            f"Asset '{asset}' is partitioned, but no column is named that holds the partition. "
            'Set metadata={"partition_expr": "<column>"} on the asset, or partition_column on the IO manager.'
        )
    if not isinstance(column, str):
        raise ValidationError(
            f"Asset '{asset}' has one partition dimension, but metadata 'partition_expr' names columns for "
            f'{_listed(column)}. Give the column alone: {{"partition_expr": "<column>"}}.'
        )
    return (Dimension(None, partitions_def, column),)


def _columns_by_dimension(
    partitions_def: dg.MultiPartitionsDefinition,
    partition_expr: PartitionExpr | None,
    partition_column: str | None,
    asset: str,
) -> dict[str, str]:
    names = partitions_def.partition_dimension_names
    example = json.dumps({"partition_expr": dict.fromkeys(names, "<column>")})
    if isinstance(partition_expr, str):
        raise ValidationError(
            f"Asset '{asset}' has the partition dimensions {_listed(names)}, but metadata 'partition_expr' names one "
            f"column. Name one for each: metadata={example}."
        )
    columns = dict(partition_expr or {})
    if unknown := columns.keys() - set(names):
        raise ValidationError(
            f"Metadata 'partition_expr' of asset '{asset}' names {_listed(sorted(unknown))}, but its partition "
            f"dimensions are {_listed(names)}. Write metadata={example}."
        )
    missing = [name for name in names if name not in columns]
    if len(missing) == 1 and partition_column is not None:
        return columns | {missing[0]: partition_column}
    if missing:
        raise ValidationError(
            f"Asset '{asset}' has no column for the partition dimensions {_listed(missing)}. Set metadata={example} "
            "on the asset; partition_column on the IO manager can name one of them."
        )
    return columns


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


# Enough for a cron with uneven ticks, such as the first and the fifteenth of a month.
_WINDOWS: Final = 5
# Every write and read asks for it. A code location has a few definitions.
_TRANSFORMS_KEPT: Final = 256
# A day on which daylight saving time starts.
_SHORTEST_DAY: Final = timedelta(hours=23)
_FINENESS: Final = (*TIME_TRANSFORMS, PartitionTransform.IDENTITY).index


def derive_layout(
    partitions_def: dg.PartitionsDefinition | None,
    *,
    partition_expr: PartitionExpr | None = None,
    partition_column: str | None = None,
    asset: str = "asset",
) -> PartitionLayout:
    """Return the layout of a new table of a partitioned asset; empty without partitions.

    Time windows become hour, day, month or year by their length, other keys the column's own value.

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
        # Iceberg allows one time transform per column; the finer one serves both dimensions.
        transforms[dimension.column] = max(transform, transforms.get(dimension.column, transform), key=_FINENESS)
    return PartitionLayout(
        fields=[
            PartitionLayoutField(column=column, transform=transform, derived=True)
            for column, transform in transforms.items()
        ]
    )


@lru_cache(_TRANSFORMS_KEPT)
def time_transform(partitions_def: dg.TimeWindowPartitionsDefinition) -> PartitionTransform:
    """Return the coarsest of year, month and day on whose first day every window starts, or hour for shorter windows.

    The time of day is ignored: in most time zones Iceberg's UTC days do not match it anyway.
    """
    windows = list(_first_windows(partitions_def))
    if any(end - start < _SHORTEST_DAY for start, end in windows):
        return PartitionTransform.HOUR
    if any(start.day != 1 for start, _ in windows):
        return PartitionTransform.DAY
    return PartitionTransform.MONTH if any(start.month != 1 for start, _ in windows) else PartitionTransform.YEAR


def _first_windows(partitions_def: dg.TimeWindowPartitionsDefinition) -> Iterator[tuple[datetime, datetime]]:
    end = partitions_def.start
    for _ in range(_WINDOWS):
        # Past and future windows alike.
        window = partitions_def.get_next_partition_window(end, respect_bounds=False)
        if window is None:
            return
        end = window.end
        yield window.start, window.end


def _transform_of(partitions_def: dg.PartitionsDefinition | None) -> PartitionTransform:
    if isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        return time_transform(partitions_def)
    return PartitionTransform.IDENTITY


KeyPair: TypeAlias = tuple[str, str]
Block: TypeAlias = tuple[frozenset[str], ...]


def load_slice(
    context: dg.OutputContext | dg.InputContext,
    *,
    partition_expr: PartitionExpr | None = None,
    partition_column: str | None = None,
) -> PartitionSlice:
    """Return the rows that an output writes or an input reads.

    The partitions are those of the asset being stored or loaded, after partition mappings: a key, a
    range or any set of keys. Without partitions these are all rows; for an empty set of keys, none.

    Args:
        context: The context of the IO manager.
        partition_expr: The asset's metadata of that name: a column, or a column per dimension.
        partition_column: The IO manager's fallback.

    Raises:
        ValidationError: No column is named, or a partitioned asset runs without a partition.
    """
    partitions_def = partitions_def_of(context)
    asset = context.asset_key.to_user_string() if context.has_asset_key else "output"
    if not context.has_asset_partitions:
        if partitions_def is None:
            return ALL_ROWS
        # Dagster allows such a run; treating it as all rows would replace the whole table.
        raise ValidationError(
            f"Asset '{asset}' is partitioned, but this run has no partition. Launch it with a partition key or range."
        )
    return build_slice(
        partitions_def,
        context.asset_partition_keys,
        partition_expr=partition_expr,
        partition_column=partition_column,
        asset=asset,
    )


def build_slice(
    partitions_def: dg.PartitionsDefinition | None,
    keys: Iterable[str],
    *,
    partition_expr: PartitionExpr | None = None,
    partition_column: str | None = None,
    asset: str = "asset",
) -> PartitionSlice:
    """Return exactly the rows of these keys, in as few conjunctions as they allow.

    Adjacent time windows are merged, and keys that form a cross product stay one.

    Raises:
        ValidationError: A dimension has no column.
    """
    dimensions = resolve_dimensions(
        partitions_def, partition_expr=partition_expr, partition_column=partition_column, asset=asset
    )
    conjunctions: list[tuple[Constraint, ...]] = []
    for block in _blocks(partitions_def, keys):
        conjunctions += product(*map(_constraints, dimensions, block))
    return PartitionSlice(any_of=tuple(conjunctions))


def partitions_def_of(context: dg.OutputContext | dg.InputContext) -> dg.PartitionsDefinition | None:
    """Return the partitions of the asset that the context stores or loads, or None."""
    try:
        return context.asset_partitions_def
    except dg.DagsterInvariantViolationError:
        return None


def _blocks(partitions_def: dg.PartitionsDefinition | None, keys: Iterable[str]) -> list[Block]:
    """Return the keys as cross products: one set per dimension, and exactly their combinations."""
    if not isinstance(partitions_def, dg.MultiPartitionsDefinition):
        block = frozenset(keys)
        return [(block,)] if block else []
    first, second = partitions_def.partition_dimension_names
    pairs: list[KeyPair] = []
    for key in keys:
        by_dimension = partitions_def.get_partition_key_from_str(key).keys_by_dimension
        pairs.append((by_dimension[first], by_dimension[second]))
    by_first: list[Block] = [*_group(pairs)]
    by_second: list[Block] = [(left, right) for right, left in _group((right, left) for left, right in pairs)]
    fewest = by_first if len(by_first) <= len(by_second) else by_second
    return sorted(fewest, key=lambda block: [min(part) for part in block])


def _group(pairs: Iterable[KeyPair]) -> list[tuple[frozenset[str], frozenset[str]]]:
    partners: defaultdict[str, set[str]] = defaultdict(set)
    for left, right in pairs:
        partners[left].add(right)
    groups: defaultdict[frozenset[str], set[str]] = defaultdict(set)
    for left, rights in partners.items():
        groups[frozenset(rights)].add(left)
    return [(frozenset(lefts), rights) for rights, lefts in groups.items()]


@dataclass
class _Run:
    start: datetime
    end: datetime
    keys: list[str]


def _constraints(dimension: Dimension, keys: frozenset[str]) -> Iterator[Constraint]:
    """One constraint per unbroken run of time windows, or one for all keys of another kind."""
    partitions_def = dimension.partitions_def
    if not isinstance(partitions_def, dg.TimeWindowPartitionsDefinition):
        yield KeySet(column=dimension.column, keys=tuple(keys))
        return
    instants: list[tuple[datetime, datetime, str]] = []
    for key in keys:
        window = partitions_def.time_window_for_partition_key(key)
        # In UTC: local times of one zone compare by wall clock, which repeats an hour a year.
        instants.append((window.start.astimezone(UTC), window.end.astimezone(UTC), key))
    runs: list[_Run] = []
    for start, end, key in sorted(instants):
        if not runs or runs[-1].end < start:
            runs.append(_Run(start, end, []))
        runs[-1].end = max(runs[-1].end, end)
        runs[-1].keys.append(key)
    sub_daily = time_transform(partitions_def) is PartitionTransform.HOUR
    for run in runs:
        yield TimeRange(
            column=dimension.column,
            start=run.start,
            end=run.end,
            timezone=partitions_def.timezone,
            keys=tuple(run.keys),
            sub_daily=sub_daily,
        )
