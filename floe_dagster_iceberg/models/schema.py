"""Schema and configuration of a table, and changes to its schema."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, Self

from pydantic import Field, model_validator
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType

from floe_dagster_iceberg.models.base import FrozenModel, Items, first_duplicate
from floe_dagster_iceberg.models.fields import (
    ColumnType,
    ElementType,
    FieldType,
    ListOf,
    MapOf,
    SchemaField,
    StructOf,
    to_pyiceberg_type,
)
from floe_dagster_iceberg.models.identifiers import Namespace, TableIdentifier, TableName
from floe_dagster_iceberg.models.partitioning import PartitionField, PartitionSpec, PartitionTransform

# Engines compare NaN and signed zeros differently, so Iceberg forbids floating point here.
_IDENTIFYING_TYPES: Final = frozenset(FieldType) - {FieldType.FLOAT, FieldType.DOUBLE}


class TableSchema(FrozenModel):
    """The columns of a table with their stable ids."""

    fields: Items[SchemaField] = Field(min_length=1, description="The columns, in order.")
    identifier_field_ids: Items[int] = Field(default=(), description="Ids of the columns that identify a row.")
    schema_id: int = Field(default=0, ge=0, description="Id of this schema among the table's schemas.")

    @model_validator(mode="after")
    def _check_unique_columns(self) -> Self:
        columns = [each for field in self.fields for each in _walk(field.field_type, field.field_id, (field.name,))]
        if (field_id := first_duplicate(field_id for _, field_id in columns)) is not None:
            raise ValueError(f"field id {field_id} is used twice: every column, element, key and value needs its own")
        if (path := first_duplicate(path for path, _ in columns)) is not None:
            raise ValueError(f"column '{'.'.join(path)}' is there twice: names must differ among siblings")
        return self

    @model_validator(mode="after")
    def _check_identifier_fields(self) -> Self:
        columns = {field.field_id: field for field in self.fields}
        for field_id in self.identifier_field_ids:
            field = columns.get(field_id)
            if field is None:
                raise ValueError(f"identifier field id {field_id} is no top-level column: ids are {sorted(columns)}")
            if not field.required or not _can_identify(field):
                raise ValueError(
                    f"column '{field.name}' cannot identify a row: "
                    "it must be required and primitive, but neither float nor double"
                )
        return self

    @property
    def column_ids(self) -> frozenset[int]:
        """Ids of everything with one value per row: columns and fields of structs, nothing inside lists and maps."""
        return frozenset(_column_ids(self.fields))

    def to_pyiceberg_schema(self) -> Schema:
        """Convert to a PyIceberg schema with the same ids."""
        return Schema(
            *(field.to_pyiceberg_field() for field in self.fields),
            schema_id=self.schema_id,
            identifier_field_ids=list(self.identifier_field_ids),
        )

    @classmethod
    def from_pyiceberg_schema(cls, schema: Schema) -> Self:
        """Convert from a PyIceberg schema with the same ids.

        Raises:
            ValueError: The type of a column is not supported.
        """
        return cls(
            fields=[SchemaField.from_pyiceberg_field(field) for field in schema.fields],
            identifier_field_ids=schema.identifier_field_ids,
            schema_id=schema.schema_id,
        )


def _can_identify(field: SchemaField) -> bool:
    return isinstance(field.field_type, FieldType) and field.field_type in _IDENTIFYING_TYPES


def _column_ids(fields: Iterable[SchemaField]) -> Iterator[int]:
    for field in fields:
        yield field.field_id
        if isinstance(field.field_type, StructOf):
            yield from _column_ids(field.field_type.fields)


def _walk(field_type: ElementType, field_id: int, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Path and id of a column and of everything inside it."""
    yield path, field_id
    match field_type:
        case StructOf(fields=fields):
            for field in fields:
                yield from _walk(field.field_type, field.field_id, (*path, field.name))
        case ListOf():
            yield from _walk(field_type.element, field_type.element_id, (*path, "element"))
        case MapOf():
            yield from _walk(field_type.key, field_type.key_id, (*path, "key"))
            yield from _walk(field_type.value, field_type.value_id, (*path, "value"))


class TableConfig(FrozenModel):
    """Everything needed to create a table."""

    namespace: Namespace = Field(description="Namespace; nested levels are joined by dots.")
    table_name: TableName = Field(description="Name of the table inside its namespace.")
    table_schema: TableSchema = Field(description="The columns.")
    partition_spec: PartitionSpec | None = Field(default=None, description="How files are split; none if not given.")
    location: str | None = Field(
        default=None, min_length=1, description="Root of the table; the catalog's choice if not given."
    )
    properties: dict[str, str] = Field(
        default_factory=dict, description="Table properties, over the manager's defaults."
    )

    @model_validator(mode="after")
    def _check_partition_spec(self) -> Self:
        for field in self.partition_spec.fields if self.partition_spec else ():
            _check_partition_field(field, self.table_schema)
        return self

    @property
    def identifier(self) -> TableIdentifier:
        """Namespace and name together."""
        return TableIdentifier(namespace=self.namespace, name=self.table_name)


def _check_partition_field(field: PartitionField, table_schema: TableSchema) -> None:
    ids = table_schema.column_ids
    if field.source_field_id not in ids:
        raise ValueError(
            f"partition field '{field.name}' reads field id {field.source_field_id}, which is no column with one value "
            f"per row: ids are {sorted(ids)}"
        )
    schema = table_schema.to_pyiceberg_schema()
    source = schema.find_field(field.source_field_id)
    transform = field.to_pyiceberg_transform()
    if not transform.can_transform(source.field_type):
        raise ValueError(
            f"partition field '{field.name}': {transform} cannot be applied to '{source.name}' "
            f"of type {source.field_type}"
        )
    # Filters find partitions by name, so only an identity partition may have the name of its column.
    conflicts = field.name in schema.column_names
    if conflicts and (field.transform is not PartitionTransform.IDENTITY or schema.find_field(field.name) != source):
        raise ValueError(
            f"partition field '{field.name}' is named like the column '{field.name}' without being its identity: "
            "choose another name"
        )


class SchemaChangeType(StrEnum):
    """The kinds of change to a schema."""

    ADD_COLUMN = "add_column"
    RENAME_COLUMN = "rename_column"
    WIDEN_TYPE = "widen_type"
    MAKE_OPTIONAL = "make_optional"
    MAKE_REQUIRED = "make_required"
    DELETE_COLUMN = "delete_column"
    UPDATE_DOC = "update_doc"


# By kind of change: its required arguments, then its optional ones.
_ARGUMENTS: Final[dict[SchemaChangeType, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    SchemaChangeType.ADD_COLUMN: (("new_type",), ("new_doc", "precision", "scale", "length")),
    SchemaChangeType.RENAME_COLUMN: (("new_name",), ()),
    SchemaChangeType.WIDEN_TYPE: (("new_type",), ("precision", "scale", "length")),
    SchemaChangeType.MAKE_OPTIONAL: ((), ()),
    SchemaChangeType.MAKE_REQUIRED: ((), ()),
    SchemaChangeType.DELETE_COLUMN: ((), ()),
    SchemaChangeType.UPDATE_DOC: (("new_doc",), ()),
}
_ALL_ARGUMENTS: Final = ("new_type", "new_name", "new_doc", "precision", "scale", "length")
_INCOMPATIBLE: Final = frozenset({SchemaChangeType.DELETE_COLUMN, SchemaChangeType.MAKE_REQUIRED})


class SchemaChange(FrozenModel):
    """One change to one column.

    A new column is always optional, because existing rows have no value for it.
    """

    change_type: SchemaChangeType = Field(description="What happens to the column.")
    column_name: str = Field(min_length=1, description="The column; dots reach into structs, as in 'address.city'.")
    new_type: ColumnType | None = Field(default=None, description="Type of an added or widened column.")
    new_name: str | None = Field(default=None, min_length=1, description="New name, without the path to it.")
    new_doc: str | None = Field(default=None, description="New documentation; empty text clears it.")
    precision: int | None = Field(default=None, description="Digits of a decimal.")
    scale: int | None = Field(default=None, description="Digits after the point of a decimal.")
    length: int | None = Field(default=None, description="Length in bytes of a fixed column.")

    @model_validator(mode="after")
    def _check_arguments(self) -> Self:
        needed, optional = _ARGUMENTS[self.change_type]
        for argument in _ALL_ARGUMENTS:
            given = getattr(self, argument) is not None
            if argument in needed and not given:
                raise ValueError(f"{self.change_type} of '{self.column_name}' needs {argument}")
            if given and argument not in (*needed, *optional):
                raise ValueError(f"{self.change_type} of '{self.column_name}' takes no {argument}; leave it out")
        return self

    @model_validator(mode="after")
    def _check_type_arguments(self) -> Self:
        self.to_pyiceberg_type()
        return self

    @property
    def path(self) -> tuple[str, ...]:
        """The column name in parts, as PyIceberg's schema update takes it."""
        return tuple(self.column_name.split("."))

    @property
    def is_incompatible(self) -> bool:
        """Whether the change can break existing readers or writers."""
        return self.change_type in _INCOMPATIBLE

    def to_pyiceberg_type(self) -> IcebergType | None:
        """`new_type` as a PyIceberg type; None for changes without a type."""
        if self.new_type is None:
            return None
        try:
            return to_pyiceberg_type(self.new_type, precision=self.precision, scale=self.scale, length=self.length)
        except ValueError as error:
            raise ValueError(f"{self.change_type} of '{self.column_name}': {error}") from error


class SchemaEvolution(FrozenModel):
    """Changes that are applied together: all of them in one commit, or none."""

    changes: Items[SchemaChange] = Field(min_length=1, description="The changes, in order.")
    allow_incompatible_changes: bool = Field(
        default=False, description="Whether columns may be deleted or made required, which can break readers."
    )
