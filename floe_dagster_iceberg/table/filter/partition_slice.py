"""The rows of a partition slice, as a filter on a table and as a mask on Arrow rows.

A dot in a column name may be part of the name or lead into a struct: the whole name is tried first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import expressions as expr, types as iceberg
from pyiceberg.expressions.visitors import IN_PREDICATE_LIMIT
from pyiceberg.schema import Schema

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models.partition_slice import Constraint, PartitionSlice
from floe_dagster_iceberg.table.filter import slice_literals


def column_values(rows: pa.Table | pa.RecordBatch, name: str) -> pa.ChunkedArray:
    """Return a column of Arrow rows by name, with NULL where a struct around it is NULL.

    Raises:
        ValidationError: The rows have no such column.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    values = _descend(columns, name)
    if values is None:
        raise ValidationError(
            f"Partition column '{name}' is not in the data, which has {', '.join(columns)}. "
            f"{slice_literals.COLUMN_HINT}"
        )
    return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])


def _descend(columns: dict[str, pa.ChunkedArray | pa.Array], name: str) -> pa.ChunkedArray | pa.Array | None:
    if name in columns:
        return columns[name]
    for parent, values in columns.items():
        if name.startswith(f"{parent}.") and pa.types.is_struct(values.type):
            children = {child.name: pc.struct_field(values, [child.name]) for child in values.type}
            found = _descend(children, name.removeprefix(f"{parent}."))
            if found is not None:
                return found
    return None


DEFAULT_NAIVE_TIMEZONE: Final = "UTC"
_NANOSECONDS_PER_TICK: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_INT64: Final = range(-(2**63), 2**63)
_MAX_DECIMAL_PRECISION: Final = 38


@dataclass(frozen=True)
class SliceMembership:
    """Which rows belong to a slice.

    Attributes:
        inside: True for each row of the slice, else False; a mask for `rows.filter`.
        rows_outside: Rows that do not belong to the slice, including `null_rows`.
        null_rows: Rows outside because a partition column is NULL.
    """

    inside: pa.ChunkedArray
    rows_outside: int
    null_rows: int


def to_expression(
    rows: PartitionSlice, schema: Schema, *, naive_timezone: str = DEFAULT_NAIVE_TIMEZONE
) -> expr.BooleanExpression:
    """Return the filter that selects exactly the slice's rows from a table with this schema.

    Args:
        rows: The slice.
        schema: Schema of the table; its types determine the literals.
        naive_timezone: Time zone of timestamps without one.

    Raises:
        ValidationError: A column is missing, or its type cannot distinguish the partitions.
    """
    any_of: list[expr.BooleanExpression] = []
    for conjunction in rows.any_of:
        met: expr.BooleanExpression = expr.AlwaysTrue()
        for constraint in conjunction:
            met = expr.And(met, _to_predicate(constraint, schema, naive_timezone))
        any_of.append(met)
    return _any_of(any_of)


def match_rows(
    rows: PartitionSlice,
    data: pa.Table | pa.RecordBatch,
    schema: Schema,
    *,
    naive_timezone: str = DEFAULT_NAIVE_TIMEZONE,
) -> SliceMembership:
    """Find the Arrow rows that belong to the slice once they are in a table with this schema.

    Raises:
        ValidationError: A column is missing in table or data, or its type cannot distinguish the partitions.
    """
    nowhere = pa.chunked_array([pa.repeat(value=False, size=data.num_rows)], type=pa.bool_())
    columns, has_null, inside = dict[str, _ArrowColumn](), nowhere, nowhere
    for name in rows.columns:
        column = columns[name] = _ArrowColumn.load(data, slice_literals.find_column(schema, name), name)
        has_null = pc.or_(has_null, column.values.is_null())
    for conjunction in rows.any_of:
        met = pc.invert(nowhere)
        for constraint in conjunction:
            column = columns[constraint.column]
            met = pc.and_(
                met,
                column.mask(slice_literals.to_typed(constraint, column.iceberg_type, naive_timezone=naive_timezone)),
            )
        inside = pc.or_(inside, met)
    return SliceMembership(
        inside=inside,
        rows_outside=_count(pc.invert(inside)),
        null_rows=_count(pc.and_not(has_null, inside)),
    )


def _to_predicate(constraint: Constraint, schema: Schema, naive_timezone: str) -> expr.BooleanExpression:
    field = slice_literals.find_column(schema, constraint.column)
    reference, column_type = expr.Reference(constraint.column), field.field_type
    match slice_literals.to_typed(constraint, column_type, naive_timezone=naive_timezone):
        case slice_literals.Bounds(lower, upper):
            return expr.And(
                expr.GreaterThanOrEqual(term=reference, value=slice_literals.to_literal(lower, column_type)),
                expr.LessThan(term=reference, value=slice_literals.to_literal(upper, column_type)),
            )
        case slice_literals.Values(values):
            literals = [slice_literals.to_literal(value, column_type) for value in values]
            # PyIceberg does not prune files by larger sets, but it does by several smaller ones.
            starts = range(0, len(literals), IN_PREDICATE_LIMIT)
            chunks = (set(literals[start : start + IN_PREDICATE_LIMIT]) for start in starts)
            return _any_of([expr.In(term=reference, literals=chunk) for chunk in chunks])


def _any_of(expressions: list[expr.BooleanExpression]) -> expr.BooleanExpression:
    return expr.Or(*expressions) if len(expressions) > 1 else next(iter(expressions), expr.AlwaysFalse())


def _count(mask: pa.ChunkedArray) -> int:
    return int(pc.sum(mask, min_count=0).as_py())


@dataclass(frozen=True)
class _ArrowColumn:
    """A column of Arrow rows in a comparable form: times as whole ticks, keys in one type per Iceberg type."""

    values: pa.ChunkedArray
    iceberg_type: iceberg.IcebergType
    tick: int = 1

    @classmethod
    def load(cls, data: pa.Table | pa.RecordBatch, field: iceberg.NestedField, name: str) -> "_ArrowColumn":
        values = column_values(data, name)
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        comparable = _comparable_type(values.type, field.field_type)
        if comparable is None:
            raise ValidationError(
                f"Partition column '{name}' is {values.type} in the data and {field.field_type} in the table. "
                "Cast it in the asset."
            )
        tick = _tick(values.type) if isinstance(field.field_type, slice_literals.TIME_TYPES) else 1
        return cls(_cast(values, comparable, name), field.field_type, tick)

    def mask(self, wanted: slice_literals.Bounds | slice_literals.Values) -> pa.ChunkedArray:
        match wanted:
            case slice_literals.Bounds(lower, upper):
                above = pc.greater_equal(self.values, self._first_tick(lower))
                found = pc.and_(above, pc.less(self.values, self._first_tick(upper)))
            case slice_literals.Values(values):
                found = pc.is_in(self.values, value_set=pa.array(self._ticks(values), type=self.values.type))
        return pc.fill_null(found, fill_value=False)

    def _first_tick(self, nanoseconds: int) -> pa.Scalar:
        # Rounded up: the first value of a coarser unit at or after the bound.
        tick = -(-nanoseconds // self.tick)
        return pa.scalar(min(max(tick, _INT64.start), _INT64.stop - 1), pa.int64())

    def _ticks(self, values: tuple[slice_literals.Value, ...]) -> list[Any]:
        if not isinstance(self.iceberg_type, slice_literals.TIME_TYPES):
            return list(values)
        # Values between two ticks cannot be in the data.
        return [value // self.tick for value in values if isinstance(value, int) and value % self.tick == 0]


def _tick(arrow_type: pa.DataType) -> int:
    if pa.types.is_timestamp(arrow_type):
        return _NANOSECONDS_PER_TICK[arrow_type.unit]
    return slice_literals.NANOSECONDS_PER_DAY if pa.types.is_date32(arrow_type) else _NANOSECONDS_PER_TICK["ms"]


def _comparable_type(arrow_type: pa.DataType, iceberg_type: iceberg.IcebergType) -> pa.DataType | None:
    """The Arrow type to compare in; None if the data does not match the table's type."""
    if isinstance(iceberg_type, iceberg.DecimalType):
        fits, comparable = pa.types.is_decimal, pa.decimal128(_MAX_DECIMAL_PRECISION, iceberg_type.scale)
    else:
        fits, comparable = _COMPARABLE.get(type(iceberg_type), (lambda _: False, None))
    return comparable if fits(arrow_type) else None


def _is_instant(arrow_type: pa.DataType) -> bool:
    return pa.types.is_timestamp(arrow_type) and arrow_type.tz is not None


def _is_wall_clock(arrow_type: pa.DataType) -> bool:
    return pa.types.is_timestamp(arrow_type) and arrow_type.tz is None


_COMPARABLE: Final[dict[type[iceberg.IcebergType], tuple[Callable[[pa.DataType], bool], pa.DataType]]] = {
    iceberg.StringType: (lambda arrow: arrow in (pa.string(), pa.large_string(), pa.string_view()), pa.large_string()),
    iceberg.IntegerType: (pa.types.is_integer, pa.int64()),
    iceberg.LongType: (pa.types.is_integer, pa.int64()),
    iceberg.BooleanType: (pa.types.is_boolean, pa.bool_()),
    iceberg.UUIDType: (lambda arrow: arrow in (pa.uuid(), pa.binary(16)), pa.binary(16)),
    iceberg.DateType: (pa.types.is_date, pa.int64()),
    iceberg.TimestampType: (_is_wall_clock, pa.int64()),
    iceberg.TimestampNanoType: (_is_wall_clock, pa.int64()),
    iceberg.TimestamptzType: (_is_instant, pa.int64()),
    iceberg.TimestamptzNanoType: (_is_instant, pa.int64()),
}


def _cast(values: pa.ChunkedArray, target: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        if pa.types.is_date32(values.type):
            # Arrow casts 32-bit dates to 32-bit integers only.
            return values.cast(pa.int32()).cast(target)
        return values.cast(target)
    except pa.ArrowInvalid as error:
        raise ValidationError(
            f"Partition column '{name}' holds values of {values.type} that do not fit the table's type. "
            "Cast it in the asset."
        ) from error
