"""The fields of a schema at any depth, by id: finding one, replacing one, leaving one out."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

FieldEdit = Callable[[NestedField], NestedField | None]


class SchemaNode(NamedTuple):
    """A field and where it is.

    Attributes:
        field: The field; elements, keys and values are told as fields too.
        kind: What it is to the type that holds it.
        ancestors: Ids of the fields around it, outermost first.
    """

    field: NestedField
    kind: Literal["column", "element", "key", "value"]
    ancestors: tuple[int, ...]

    @property
    def parent_id(self) -> int | None:
        """Id of the field that holds it; None for a column of the table itself."""
        return self.ancestors[-1] if self.ancestors else None


def nodes_by_id(schema: Schema) -> dict[int, SchemaNode]:
    """All fields of a schema."""
    return {node.field.field_id: node for node in _nodes(schema.as_struct(), ())}


def edit_field(schema: Schema, field_id: int, edit: FieldEdit) -> Schema:
    """The schema with one field changed, or without it when `edit` returns None."""
    return with_fields(schema, _edit_struct(schema.as_struct(), field_id, edit))


def with_fields(schema: Schema, struct: StructType) -> Schema:
    """The schema with other columns, its identifier kept."""
    return Schema(*struct.fields, schema_id=schema.schema_id, identifier_field_ids=schema.identifier_field_ids)


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
        raise ValueError("a list has an element, a map a key and a value: they cannot be left out")
    return field
