"""What a schema becomes by a list of changes, or why it cannot. Knows metadata only, reads no row.

The changes are made one after the other. PyIceberg's own schema update looks up every name in
the schema as it was, so it can neither rename a column and take its old name for another, nor
notice names that differ only in case, and it would let the scale of a decimal change.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never, cast

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from floe_dagster_iceberg.errors import IncompatibleSchemaChangeError, SchemaEvolutionError
from floe_dagster_iceberg.models import SchemaChange, SchemaChangeType, SchemaEvolution
from floe_dagster_iceberg.table.schema_tree import SchemaNode, edit_field, nodes_by_id, with_fields


@dataclass(frozen=True)
class RequiredColumn:
    """A column that shall be required, in the schema just before."""

    name: str
    field_id: int
    schema: Schema


@dataclass
class EvolvedSchema:
    """What the changes lead to.

    Attributes:
        schema: The schema after all changes.
        made_required: Columns in which no row may hold NULL for that.
    """

    schema: Schema
    made_required: list[RequiredColumn] = field(default_factory=list)


def evolve(table: str, metadata: TableMetadata, evolution: SchemaEvolution) -> EvolvedSchema:
    """Make all changes to the current schema of a table.

    Raises:
        SchemaEvolutionError: A column is not there, or a name is taken.
        IncompatibleSchemaChangeError: A change would break readers or what the table is built on.
    """
    evolver = _Evolver(table, metadata)
    for change in evolution.changes:
        if change.is_incompatible and not evolution.allow_incompatible_changes:
            raise IncompatibleSchemaChangeError(
                table,
                column=change.column_name,
                reason=f"{change.change_type} can break readers and writers; "
                "if that is meant, set allow_incompatible_changes=True",
            )
        evolver.apply(change)
    return evolver.finish()


class _Evolver:
    def __init__(self, table: str, metadata: TableMetadata) -> None:
        self._table, self._metadata = table, metadata
        self._last_column_id = metadata.last_column_id
        self.evolved = EvolvedSchema(metadata.schema())

    @property
    def _schema(self) -> Schema:
        return self.evolved.schema

    def apply(self, change: SchemaChange) -> None:
        match change.change_type:
            case SchemaChangeType.ADD_COLUMN:
                self._add(change)
            case SchemaChangeType.RENAME_COLUMN:
                self._rename(change)
            case SchemaChangeType.WIDEN_TYPE:
                self._widen(change)
            case SchemaChangeType.MAKE_OPTIONAL:
                self._make_optional(change)
            case SchemaChangeType.MAKE_REQUIRED:
                self._make_required(change)
            case SchemaChangeType.DELETE_COLUMN:
                self._delete(change)
            case SchemaChangeType.UPDATE_DOC:
                self._update_doc(change)
            case _:
                assert_never(change.change_type)

    def finish(self) -> EvolvedSchema:
        nodes = nodes_by_id(self._schema)
        still_required = [
            column
            for column in self.evolved.made_required
            if column.field_id in nodes and nodes[column.field_id].field.required
        ]
        return EvolvedSchema(self._schema, still_required)

    def _add(self, change: SchemaChange) -> None:
        if not all(change.path):
            raise SchemaEvolutionError(
                f"'{change.column_name}' cannot name a column of '{self._table}': a part of it is empty.",
                table=self._table,
                column=change.column_name,
            )
        # The whole name is looked up first: a column that is there may hold a dot of its own.
        self._check_name(change, change.column_name, field_id=None)
        added = NestedField(
            field_id=self._next_id(),
            name=change.path[-1],
            field_type=cast("IcebergType", assign_fresh_schema_ids(_new_type(change), self._next_id)),
            required=False,
            doc=change.new_doc or None,
        )
        if len(change.path) == 1:
            self.evolved.schema = with_fields(self._schema, StructType(*self._schema.fields, added))
            return
        parent, struct = self._struct_to_add_to(change, ".".join(change.path[:-1]))
        self._check_name(change, f"{self._schema.find_column_name(parent.field_id)}.{added.name}", field_id=None)
        self._edit(parent, field_type=StructType(*struct.fields, added))

    def _rename(self, change: SchemaChange) -> None:
        node, new_name = self._column(change), change.new_name or ""
        if "." in new_name:
            raise SchemaEvolutionError(
                f"Column '{change.column_name}' of '{self._table}' cannot be named '{new_name}': a dot would make it "
                "look like part of a struct. Give the last part of the name only.",
                table=self._table,
                column=change.column_name,
            )
        parent = "" if node.parent_id is None else f"{self._schema.find_column_name(node.parent_id)}."
        self._check_name(change, f"{parent}{new_name}", field_id=node.field.field_id)
        self._edit(node.field, name=new_name)

    def _widen(self, change: SchemaChange) -> None:
        node, new_type = self._node(change), _new_type(change)
        old_type = node.field.field_type
        if new_type == old_type:
            return
        if not widens(old_type, new_type):
            raise self._incompatible(
                change,
                f"it is {old_type}, which cannot become {new_type}; int widens to long, float to double, "
                "a decimal to more digits of the same scale",
            )
        self._edit(node.field, field_type=new_type)

    def _make_optional(self, change: SchemaChange) -> None:
        node = self._node(change)
        if self._held_by(node.field, self._schema.identifier_field_ids):
            raise self._incompatible(change, "the table's rows are identified by it, so it must stay required")
        self._edit(node.field, required=False)

    def _make_required(self, change: SchemaChange) -> None:
        node = self._node(change)
        if not node.field.required:
            self.evolved.made_required.append(
                RequiredColumn(change.column_name, node.field.field_id, schema=self._schema)
            )
            self._edit(node.field, required=True)

    def _delete(self, change: SchemaChange) -> None:
        node = self._column(change)
        if use := next(self._uses(node.field), None):
            raise self._incompatible(change, use)
        siblings = [other for other in nodes_by_id(self._schema).values() if other.parent_id == node.parent_id]
        if len(siblings) == 1:
            raise self._incompatible(change, "it is the last one there; a table or struct needs a column")
        self.evolved.schema = edit_field(self._schema, node.field.field_id, lambda _: None)

    def _update_doc(self, change: SchemaChange) -> None:
        self._edit(self._column(change).field, doc=change.new_doc or None)

    def _uses(self, column: NestedField) -> Iterator[str]:
        """Why a column cannot go: who is built on it, or on a part of it."""
        if self._held_by(column, self._schema.identifier_field_ids):
            yield "the table's rows are identified by it"
        for spec in self._metadata.partition_specs:
            for partition in spec.fields:
                if self._held_by(column, [partition.source_id]):
                    # Files of earlier specs are read by those specs, so these count too.
                    yield f"partition field '{partition.name}' comes from it, in files of spec {spec.spec_id}"
        if self._held_by(column, [order.source_id for order in self._metadata.sort_order().fields]):
            yield "the table is sorted by it"

    def _held_by(self, column: NestedField, field_ids: list[int]) -> bool:
        """Whether one of the fields is this column or a part of it."""
        nodes = nodes_by_id(self._schema)
        return any(
            field_id in nodes and column.field_id in (field_id, *nodes[field_id].ancestors) for field_id in field_ids
        )

    def _node(self, change: SchemaChange) -> SchemaNode:
        """The field that a change is about; keys of maps, and what is inside them, never change."""
        nodes = nodes_by_id(self._schema)
        try:
            node = nodes[self._schema.find_field(change.column_name).field_id]
        except ValueError:
            raise SchemaEvolutionError(
                f"Table '{self._table}' has no column '{change.column_name}'. "
                f"It has: {', '.join(self._schema.column_names)}.",
                table=self._table,
                column=change.column_name,
            ) from None
        if any(nodes[around].kind == "key" for around in (*node.ancestors, node.field.field_id)):
            raise self._incompatible(change, "it is part of a map's key, and keys cannot change")
        return node

    def _column(self, change: SchemaChange) -> SchemaNode:
        """The field that a change is about, when it must have a name of its own."""
        node = self._node(change)
        if node.kind != "column":
            raise self._incompatible(
                change, f"it is the {node.kind} of a list or map, which has neither name nor doc; change what holds it"
            )
        return node

    def _struct_to_add_to(self, change: SchemaChange, parent_name: str) -> tuple[NestedField, StructType]:
        parent = self._node(change.model_copy(update={"column_name": parent_name})).field
        match parent.field_type:
            case ListType():
                parent = parent.field_type.element_field
            case MapType():
                parent = parent.field_type.value_field
        if not isinstance(parent.field_type, StructType):
            raise self._incompatible(change, f"'{parent_name}' is {parent.field_type}, and only a struct has fields")
        return parent, parent.field_type

    def _check_name(self, change: SchemaChange, full_name: str, *, field_id: int | None) -> None:
        """Refuse a name that another column, or a partition field made from another column, has."""
        for taken_id in self._schema.field_ids:
            taken = self._schema.find_column_name(taken_id) or ""
            if taken_id == field_id or taken.lower() != full_name.lower():
                continue
            fact = "has it already" if taken == full_name else f"has '{taken}', which differs only in case"
            raise SchemaEvolutionError(
                f"Column '{full_name}' cannot be in '{self._table}': the table {fact}. Choose another name.",
                table=self._table,
                column=change.column_name,
            )
        for partition in (one for spec in self._metadata.partition_specs for one in spec.fields):
            own = partition.source_id == field_id and isinstance(partition.transform, IdentityTransform | VoidTransform)
            if partition.name == full_name and not own:
                raise self._incompatible(change, f"a partition field is named '{full_name}'; choose another name")

    def _edit(self, column: NestedField, **changes: object) -> None:
        self.evolved.schema = edit_field(
            self._schema, column.field_id, lambda found: found.model_copy(update=dict(changes))
        )

    def _next_id(self) -> int:
        self._last_column_id += 1
        return self._last_column_id

    def _incompatible(self, change: SchemaChange, reason: str) -> IncompatibleSchemaChangeError:
        return IncompatibleSchemaChangeError(self._table, column=change.column_name, reason=reason)


def _new_type(change: SchemaChange) -> IcebergType:
    if (new_type := change.to_pyiceberg_type()) is None:
        raise AssertionError(f"the model demands a type for {change.change_type}")
    return new_type


def widens(old: IcebergType, new: IcebergType) -> bool:
    """Whether every value of the one type is a value of the other, and Iceberg reads it as such."""
    match old, new:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return bool(old.scale == new.scale and old.precision < new.precision)
        case _:
            return False
