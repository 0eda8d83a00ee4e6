"""Tables with columns of types that PyIceberg does not know, such as `variant` in format version 3.

PyIceberg refuses the whole table for one such column. Here the column keeps its place in the schema with a type that
only has a name, so that the table's other columns can be read, and Spark can write all of them.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError, model_serializer
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType

VARIANT = "variant"
_KNOWN: TypeAdapter[IcebergType] = TypeAdapter(IcebergType)


class ForeignType(PrimitiveType):
    """A type that PyIceberg does not know, by its name in the table's metadata."""

    # Not a bare string: PyIceberg's validator would look it up among the types that it knows.
    root: tuple[str]

    def __init__(self, name: str) -> None:
        super().__init__(root=(name,))

    @model_serializer
    def ser_model(self) -> str:
        return self.root[0]

    def __str__(self) -> str:
        return self.root[0]

    def __repr__(self) -> str:
        return f"ForeignType({self.root[0]!r})"

    def __getnewargs__(self) -> tuple[str]:
        return self.root

    def minimum_format_version(self) -> TableVersion:
        return 3


class ForeignArrowType(pa.ExtensionType):  # type: ignore[misc]  # PyArrow has no types
    """The same in the schema of rows that Spark has; Arrow never holds such values."""

    def __init__(self, name: str) -> None:
        self.foreign_name = name
        super().__init__(pa.binary(), f"floe.{name}")

    def __hash__(self) -> int:
        return hash(self.foreign_name)

    def __arrow_ext_serialize__(self) -> bytes:
        return self.foreign_name.encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> "ForeignArrowType":
        del storage_type
        return cls(serialized.decode())


def parse_metadata(document: Any) -> TableMetadata:
    """Parse a table's metadata, types that PyIceberg does not know included.

    Raises:
        ValueError: It is not valid for another reason; or PyIceberg's ValidationError.
    """
    if not isinstance(document, dict) or not isinstance(document.get("schemas"), list):
        raise ValueError("this is not the metadata of a table")  # noqa: TRY004 - whatever is wrong with it
    schemas = [_with_foreign_types(schema) for schema in document["schemas"]]
    return TableMetadataUtil.parse_obj({**document, "schemas": schemas})


def foreign_columns(schema: Schema) -> list[str]:
    """Names of the columns that have, or hold, a type that PyIceberg does not know."""
    return [field.name for field in schema.fields if any(isinstance(kind, ForeignType) for kind in _types(field))]


def _types(field: NestedField) -> Iterator[IcebergType]:
    match kind := field.field_type:
        case StructType():
            for inner in kind.fields:
                yield from _types(inner)
        case ListType():
            yield from _types(kind.element_field)
        case MapType():
            yield from _types(kind.key_field)
            yield from _types(kind.value_field)
        case _:
            yield kind


def _with_foreign_types(kind: Any) -> Any:
    """A type as in the metadata file, with an instance in place of each name that PyIceberg does not know."""
    match kind:
        case str():
            return kind if _is_known(kind) else ForeignType(kind)
        case {"type": "struct", "fields": fields}:
            return {**kind, "fields": [{**field, "type": _with_foreign_types(field["type"])} for field in fields]}
        case {"type": "list", "element": element}:
            return {**kind, "element": _with_foreign_types(element)}
        case {"type": "map", "key": key, "value": value}:
            return {**kind, "key": _with_foreign_types(key), "value": _with_foreign_types(value)}
        case _:
            return kind


def _is_known(name: str) -> bool:
    try:
        _KNOWN.validate_python(name)
    except ValidationError:
        return False
    return True
