"""Which column of the table holds each dimension of a partitions definition."""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

from dagster import MultiPartitionsDefinition, PartitionsDefinition

from floe_dagster_iceberg.errors import ValidationError

PartitionExpr: TypeAlias = str | Mapping[str, str]
"""A column, or a column per dimension of a multi-partitions definition."""


class Dimension(NamedTuple):
    """One dimension of a partitions definition and the column that holds it."""

    name: str | None
    partitions_def: PartitionsDefinition | None
    column: str


def resolve_dimensions(
    partitions_def: PartitionsDefinition | None,
    *,
    partition_expr: PartitionExpr | None,
    partition_column: str | None,
    asset: str,
) -> tuple[Dimension, ...]:
    """Return the dimensions in Dagster's order, each with its column.

    Args:
        partitions_def: The asset's partitions; None when a context brings keys without a definition.
        partition_expr: What the asset's metadata says.
        partition_column: The IO manager's fallback; it may stand for one dimension.
        asset: Name for error messages.

    Raises:
        ValidationError: A dimension has no column, or a column is named for a dimension that is not there.
    """
    if isinstance(partitions_def, MultiPartitionsDefinition):
        columns = _columns_by_dimension(partitions_def, partition_expr, partition_column, asset)
        return tuple(
            Dimension(name, partitions_def.get_partitions_def_for_dimension(name), columns[name])
            for name in partitions_def.partition_dimension_names
        )
    column = partition_column if partition_expr is None else partition_expr
    if column is None:
        raise ValidationError(
            f"Asset '{asset}' is partitioned, but nothing says which column holds the partition. "
            'Set metadata={"partition_expr": "<column>"} on the asset, or partition_column on the IO manager.'
        )
    if not isinstance(column, str):
        raise ValidationError(
            f"Asset '{asset}' has one partition dimension, but metadata 'partition_expr' names columns for "
            f'{_listed(column)}. Give the column alone: {{"partition_expr": "<column>"}}.'
        )
    return (Dimension(None, partitions_def, column),)


def _columns_by_dimension(
    partitions_def: MultiPartitionsDefinition,
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
            "on the asset; partition_column on the IO manager can stand for one of them."
        )
    return columns


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
