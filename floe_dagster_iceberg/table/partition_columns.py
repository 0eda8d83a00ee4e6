"""Where a partition column is in a table's schema.

A dot in a name may lead into a struct or just be part of the name: the whole name is tried first.
"""

from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from floe_dagster_iceberg.errors import ValidationError

COLUMN_HINT = (
    'Name an existing column in metadata "partition_expr" or "iceberg/partition_spec", such as '
    '{"partition_expr": "event_time"}, or in the IO manager\'s partition_column.'
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
        raise ValidationError(
            f"Partition column '{name}' is not in the table, which has {known}. {COLUMN_HINT}"
        ) from error
    return field
