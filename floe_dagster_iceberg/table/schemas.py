"""Schemas and partition specs as users give them, into PyIceberg's."""

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec as IcebergSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids

from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import PartitionSpec, TableSchema
from floe_dagster_iceberg.table._pyiceberg import arrow_schema_without_ids
from floe_dagster_iceberg.table.arrow_rows import to_storable_schema

SchemaLike: TypeAlias = TableSchema | pa.Schema | Schema
SpecLike: TypeAlias = PartitionSpec | IcebergSpec | None


def to_iceberg_schema(table: object, schema: SchemaLike) -> Schema:
    """A PyIceberg schema with field ids.

    Raises:
        ValidationError: The schema is empty, of another type, has a column that Iceberg cannot hold, or
            names that differ only in case.
    """
    match schema:
        case TableSchema():
            converted = schema.to_pyiceberg_schema()
        case Schema():
            converted = schema
        case pa.Schema():
            converted = _from_arrow(table, schema)
        case _:
            raise ValidationError(
                f"The schema of '{table}' is given as TableSchema, pyarrow.Schema or pyiceberg Schema, "
                f"not as {type(schema).__name__}.",
                table=table,
            )
    if not converted.fields:
        raise ValidationError(f"The schema of '{table}' has no columns. Name at least one.", table=table)
    _refuse_twins(table, converted.column_names)
    return converted


def _refuse_twins(table: object, names: Sequence[str]) -> None:
    spelled = Counter(name.lower() for name in names)
    if twins := sorted(name for name in names if spelled[name.lower()] > 1):
        raise ValidationError(
            f"Columns of '{table}' differ only in case, and Spark could not tell them apart: {', '.join(twins)}. "
            "Rename or drop one of each.",
            table=table,
        )


def to_iceberg_spec(table: object, schema: Schema, spec: SpecLike) -> IcebergSpec:
    """A PyIceberg partition spec that fits the schema.

    Raises:
        ValidationError: A field's source column is not in the schema, or its transform does not take that type.
    """
    if spec is None:
        return UNPARTITIONED_PARTITION_SPEC
    converted = spec.to_pyiceberg_spec() if isinstance(spec, PartitionSpec) else spec
    known = {field_id: schema.find_type(field_id) for field_id in schema.field_ids}
    for field in converted.fields:
        source = known.get(field.source_id)
        if source is None:
            raise ValidationError(
                f"Partition field '{field.name}' of '{table}' comes from column id {field.source_id}, which the "
                f"schema does not have. Its ids: {', '.join(map(str, sorted(known)))}.",
                table=table,
            )
        if not field.transform.can_transform(source):
            raise ValidationError(
                f"Partition field '{field.name}' of '{table}' applies {field.transform} to a {source} column. "
                "Choose a transform that takes this type.",
                table=table,
            )
    return converted


def _from_arrow(table: object, schema: pa.Schema) -> Schema:
    columns = to_storable_schema(schema)
    if untyped := [column.name for column in columns if pa.types.is_null(column.type)]:
        raise ValidationError(
            f"Columns of '{table}' have no type, only NULL: {', '.join(untyped)}. Cast them.", table=table
        )
    return assign_fresh_schema_ids(arrow_schema_without_ids(columns, format_version=2))
