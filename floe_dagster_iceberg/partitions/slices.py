"""The rows that a Dagster context's partitions stand for."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from typing import TypeAlias

from dagster import (
    DagsterInvariantViolationError,
    InputContext,
    MultiPartitionsDefinition,
    OutputContext,
    PartitionsDefinition,
    TimeWindowPartitionsDefinition,
)

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS, Constraint, KeySet, PartitionSlice, TimeRange
from floe_dagster_iceberg.models.partitioning import PartitionTransform
from floe_dagster_iceberg.partitions.columns import Dimension, PartitionExpr, resolve_dimensions
from floe_dagster_iceberg.partitions.layout import time_transform

KeyPair: TypeAlias = tuple[str, str]
Block: TypeAlias = tuple[frozenset[str], ...]


def load_slice(
    context: OutputContext | InputContext,
    *,
    partition_expr: PartitionExpr | None = None,
    partition_column: str | None = None,
) -> PartitionSlice:
    """Return the rows that an output writes or an input reads.

    The partitions are those of the asset being stored or loaded, after partition mappings:
    a key, a range or any set of keys. Without partitions it is all rows; of no keys, none.

    Args:
        context: What Dagster hands to an IO manager.
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
        # Dagster lets such a run go ahead; taking it for all rows would replace the whole table.
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
    partitions_def: PartitionsDefinition | None,
    keys: Iterable[str],
    *,
    partition_expr: PartitionExpr | None = None,
    partition_column: str | None = None,
    asset: str = "asset",
) -> PartitionSlice:
    """Return exactly the rows of these keys, in as few conjunctions as they allow.

    Adjacent time windows become one, and keys that are a whole cross product stay a product.

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


def partitions_def_of(context: OutputContext | InputContext) -> PartitionsDefinition | None:
    """Return the partitions of the asset that the context stores or loads, or None."""
    try:
        return context.asset_partitions_def
    except DagsterInvariantViolationError:
        return None


def _blocks(partitions_def: PartitionsDefinition | None, keys: Iterable[str]) -> list[Block]:
    """The keys as cross products: one set per dimension, all their combinations and nothing else."""
    if not isinstance(partitions_def, MultiPartitionsDefinition):
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


def _constraints(dimension: Dimension, keys: frozenset[str]) -> list[Constraint]:
    if isinstance(dimension.partitions_def, TimeWindowPartitionsDefinition):
        return list(_time_ranges(dimension.partitions_def, keys, dimension.column))
    return [KeySet(column=dimension.column, keys=tuple(keys))]


def _time_ranges(
    partitions_def: TimeWindowPartitionsDefinition, keys: frozenset[str], column: str
) -> Iterator[TimeRange]:
    sub_daily = time_transform(partitions_def) is PartitionTransform.HOUR
    for run in _unbroken_runs(partitions_def, keys):
        yield TimeRange(
            column=column,
            start=run.start,
            end=run.end,
            timezone=partitions_def.timezone,
            keys=tuple(run.keys),
            sub_daily=sub_daily,
        )


@dataclass
class _Run:
    start: datetime
    end: datetime
    keys: list[str]


def _unbroken_runs(partitions_def: TimeWindowPartitionsDefinition, keys: frozenset[str]) -> list[_Run]:
    instants: list[tuple[datetime, datetime, str]] = []
    for key in keys:
        window = partitions_def.time_window_for_partition_key(key)
        # Instants in UTC: local times of one zone compare by the clock on the wall, which repeats an hour a year.
        instants.append((window.start.astimezone(UTC), window.end.astimezone(UTC), key))
    runs: list[_Run] = []
    for start, end, key in sorted(instants):
        if not runs or runs[-1].end < start:
            runs.append(_Run(start, end, []))
        runs[-1].end = max(runs[-1].end, end)
        runs[-1].keys.append(key)
    return runs
