"""Converts users' schemas and partition specs to PyIceberg's, and edits single fields of a schema."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec as IcebergSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from floe_dagster_iceberg._pyiceberg.parquet import arrow_schema_without_ids
from floe_dagster_iceberg.errors import ValidationError
from floe_dagster_iceberg.models import PartitionSpec, TableSchema
from floe_dagster_iceberg.table.arrow_input import to_storable_schema

SchemaLike: TypeAlias = TableSchema | pa.Schema | Schema
SpecLike: TypeAlias = PartitionSpec | IcebergSpec | None


def to_iceberg_schema(table: object, schema: SchemaLike) -> Schema:
    """Convert a schema to a PyIceberg schema with field ids.

    Raises:
        ValidationError: The schema is empty or not a supported type, or has columns that Iceberg cannot
            store or whose names differ only in case.
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
                f"The schema of '{table}' must be a TableSchema, pyarrow.Schema or pyiceberg Schema, "
                f"not {type(schema).__name__}.",
                table=table,
            )
    if not converted.fields:
        raise ValidationError(f"The schema of '{table}' has no columns. Add at least one.", table=table)
    if any(not node.field.name for node in nodes_by_id(converted).values()):
        raise ValidationError(
            f"The schema of '{table}' has a column without a name, which Iceberg does not allow. Name it.", table=table
        )
    try:
        names = converted.column_names
    except ValueError:
        raise _ambiguous(table) from None
    spellings = Counter(name.lower() for name in names)
    if duplicates := sorted(name for name in names if spellings[name.lower()] > 1):
        raise ValidationError(
            f"Columns of '{table}' differ only in case, and Spark could not distinguish them: {', '.join(duplicates)}. "
            "Rename or drop one of each.",
            table=table,
        )
    return converted


def check_format_version(table: object, schema: Schema, format_version: int) -> None:
    """Refuse columns of types that a table's format version does not have.

    Raises:
        ValidationError: With the column and the version that it needs.
    """
    for field_id in schema.field_ids:
        kind = schema.find_type(field_id)
        if kind.is_primitive and (needed := kind.minimum_format_version()) > format_version:
            raise ValidationError(
                f"Column '{schema.find_column_name(field_id)}' is of type {kind}, which needs format version {needed}, "
                f"and '{table}' has {format_version}. Set 'iceberg/format_version' for a new table, upgrade the table "
                "with upgrade_format_version(), or cast the column.",
                table=table,
            )


def to_iceberg_spec(table: object, schema: Schema, spec: SpecLike) -> IcebergSpec:
    """Convert a partition spec to PyIceberg's and check it against the schema.

    Raises:
        ValidationError: A field's source column is not in the schema, or its transform does not support that type.
    """
    if spec is None:
        return UNPARTITIONED_PARTITION_SPEC
    converted = spec.to_pyiceberg_spec() if isinstance(spec, PartitionSpec) else spec
    known = {field_id: schema.find_type(field_id) for field_id in schema.field_ids}
    for field in converted.fields:
        source = known.get(field.source_id)
        if source is None:
            raise ValidationError(
                f"Partition field '{field.name}' of '{table}' refers to column id {field.source_id}, which is not "
                f"in the schema. Its ids: {', '.join(map(str, sorted(known)))}.",
                table=table,
            )
        if not field.transform.can_transform(source):
            raise ValidationError(
                f"Partition field '{field.name}' of '{table}' applies {field.transform} to a {source} column. "
                "Choose a transform that supports this type.",
                table=table,
            )
    return converted


def _from_arrow(table: object, schema: pa.Schema) -> Schema:
    columns = to_storable_schema(schema)
    if untyped := [column.name for column in columns if pa.types.is_null(column.type)]:
        raise ValidationError(
            f"Columns of '{table}' hold only NULL and have no type: {', '.join(untyped)}. Cast them.", table=table
        )
    try:
        return assign_fresh_schema_ids(arrow_schema_without_ids(columns, format_version=2))
    except ValueError:
        raise _ambiguous(table) from None


def _ambiguous(table: object) -> ValidationError:
    return ValidationError(
        f"Two columns of '{table}' have the same name, or one is called like the path of another, as 'a.b' like field "
        "'b' of struct 'a'. Rename one of them.",
        table=table,
    )


FieldEdit = Callable[[NestedField], NestedField | None]


class SchemaNode(NamedTuple):
    """A field and its position in the schema; `ancestors` are field ids, outermost first."""

    field: NestedField
    kind: Literal["column", "element", "key", "value"]
    ancestors: tuple[int, ...]

    @property
    def parent_id(self) -> int | None:
        return self.ancestors[-1] if self.ancestors else None


def nodes_by_id(schema: Schema) -> dict[int, SchemaNode]:
    """Return all fields of a schema, including list elements, map keys and map values."""
    return {node.field.field_id: node for node in _nodes(schema.as_struct(), ())}


def edit_field(schema: Schema, field_id: int, edit: FieldEdit) -> Schema:
    """Return the schema with one field changed, or dropped when `edit` returns None."""
    return with_fields(schema, _edit_struct(schema.as_struct(), field_id, edit))


def with_fields(schema: Schema, struct: StructType) -> Schema:
    """Return the schema with other columns; its id and identifier fields stay."""
    return Schema(*struct.fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


def with_docs(schema: Schema, docs: Mapping[str, str]) -> Schema:
    """Return the schema with docs for some of its columns, by their names."""
    if not docs:
        return schema
    fields = [field.model_copy(update={"doc": docs.get(field.name, field.doc)}) for field in schema.fields]
    return with_fields(schema, StructType(*fields))


def _nodes(field_type: IcebergType, ancestors: tuple[int, ...]) -> Iterator[SchemaNode]:
    match field_type:
        case StructType():
            found = [SchemaNode(field, "column", ancestors) for field in field_type.fields]
        case ListType():
            found = [SchemaNode(field_type.element_field, "element", ancestors)]
        case MapType():
            found = [
                SchemaNode(field_type.key_field, "key", ancestors),
                SchemaNode(field_type.value_field, "value", ancestors),
            ]
        case _:
            found = []
    for node in found:
        yield node
        yield from _nodes(node.field.field_type, (*ancestors, node.field.field_id))


def _edit_struct(struct: StructType, field_id: int, edit: FieldEdit) -> StructType:
    edited = (_edit(field, field_id, edit) for field in struct.fields)
    return StructType(*(field for field in edited if field is not None))


def _edit(field: NestedField, field_id: int, edit: FieldEdit) -> NestedField | None:
    if field.field_id == field_id:
        return edit(field)
    return field.model_copy(update={"field_type": _edit_type(field.field_type, field_id, edit)})


def _edit_type(field_type: IcebergType, field_id: int, edit: FieldEdit) -> IcebergType:
    match field_type:
        case StructType():
            return _edit_struct(field_type, field_id, edit)
        case ListType():
            element = _kept(_edit(field_type.element_field, field_id, edit))
            return ListType(element_id=element.field_id, element=element.field_type, element_required=element.required)
        case MapType():
            key = _kept(_edit(field_type.key_field, field_id, edit))
            value = _kept(_edit(field_type.value_field, field_id, edit))
            return MapType(
                key_id=key.field_id,
                key_type=key.field_type,
                value_id=value.field_id,
                value_type=value.field_type,
                value_required=value.required,
            )
        case _:
            return field_type


def _kept(field: NestedField | None) -> NestedField:
    if field is None:
        raise ValueError("list elements, map keys and map values cannot be dropped")
    return field
