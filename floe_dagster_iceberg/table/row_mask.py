"""Which rows of an Arrow table match an Iceberg filter, where PyIceberg's own translation does not reach.

Arrow cannot compare UUIDs, and PyIceberg takes a dot in a column's name for a path into a
struct. Both are solved by looking at the same columns under another type or name.
"""

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.types import FixedType, NestedField, UUIDType

_UUID_BYTES = 16


def mask_rows(rows: pa.Table, schema: Schema, row_filter: BooleanExpression) -> pa.ChunkedArray:
    """True for each row that matches, False for each that does not or where NULL leaves it open.

    Args:
        rows: Rows whose columns are the schema's, in its order.
        schema: Schema of the table.
        row_filter: An unbound filter on it.
    """
    if isinstance(row_filter, AlwaysTrue | AlwaysFalse):
        return pa.chunked_array([pa.repeat(isinstance(row_filter, AlwaysTrue), rows.num_rows)])
    comparable = _comparable_schema(schema)
    named = sanitize_column_names(comparable)
    condition = expression_to_pyarrow(bind(comparable, row_filter, case_sensitive=True), named)
    columns = [_comparable_column(column) for column in rows.columns[: len(named.fields)]]
    view = pa.Table.from_arrays(columns, names=[field.name for field in named.fields])
    position = pa.arange(0, rows.num_rows)
    matching = view.append_column("__row", position).filter(condition).column("__row")
    return pc.is_in(pa.chunked_array([position]), value_set=matching)


def compares_uuids(schema: Schema, row_filter: BooleanExpression) -> bool:
    """Whether a filter looks at a UUID column, which PyIceberg's scans cannot do."""
    if isinstance(row_filter, AlwaysTrue | AlwaysFalse):
        return False
    used = extract_field_ids(bind(schema, row_filter, case_sensitive=True))
    return any(isinstance(schema.find_type(field_id), UUIDType) for field_id in used)


def _comparable_schema(schema: Schema) -> Schema:
    return Schema(*(_comparable_field(field) for field in schema.fields), schema_id=schema.schema_id)


def _comparable_field(field: NestedField) -> NestedField:
    if not isinstance(field.field_type, UUIDType):
        return field
    return field.model_copy(update={"field_type": FixedType(_UUID_BYTES)})


def _comparable_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if not isinstance(column.type, pa.UuidType):
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], type=column.type.storage_type)
