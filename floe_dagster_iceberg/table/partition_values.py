"""The values of a partition column in Arrow rows; its name is read as in `partition_columns.py`."""

import pyarrow as pa
import pyarrow.compute as pc

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.table.partition_columns import COLUMN_HINT


def column_values(rows: pa.Table | pa.RecordBatch, name: str) -> pa.ChunkedArray:
    """The values of a column in Arrow rows, NULL where a struct around it is NULL.

    Raises:
        ValidationError: The rows have no such column.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    values = _descend(columns, name)
    if values is None:
        raise ValidationError(
            f"Partition column '{name}' is not in the data, which has {', '.join(columns)}. {COLUMN_HINT}"
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
