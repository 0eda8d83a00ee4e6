"""Where a partition column is, in a table's schema and in Arrow rows.

A dot in a name may lead into a struct or just be part of the name: the whole name is tried first.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from floe_dagster_iceberg.errors import ValidationError

_HINT = (
    'Name an existing column in metadata "partition_expr", such as {"partition_expr": "event_time"}, '
    "or in the IO manager's partition_column."
)


def find_column(schema: Schema, name: str) -> NestedField:
    """The column of that name; fields of structs are reached by dots.

    Raises:
        ValidationError: There is no such column, or it lies in a list or map.
    """
    try:
        field = schema.find_field(name)
        schema.accessor_for_field(field.field_id)
    except ValueError as error:
        known = ", ".join(field.name for field in schema.fields)
        raise ValidationError(f"Partition column '{name}' is not in the table, which has {known}. {_HINT}") from error
    return field


def column_values(rows: pa.Table | pa.RecordBatch, name: str) -> pa.ChunkedArray:
    """The values of a column in Arrow rows, NULL where a struct around it is NULL.

    Raises:
        ValidationError: The rows have no such column.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    values = _descend(columns, name)
    if values is None:
        raise ValidationError(f"Partition column '{name}' is not in the data, which has {', '.join(columns)}. {_HINT}")
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
