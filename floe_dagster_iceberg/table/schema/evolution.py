"""Applies a list of schema changes.

Changes are applied one after the other. PyIceberg's own schema update looks up every name in the
original schema, so it cannot rename a column and reuse its old name, does not notice names that
differ only in case, and would let the scale of a decimal change.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never, cast

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import DataScan, FileScanTask, Table, TableProperties, update as updates
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import update_mapping
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.transforms import IdentityTransform, VoidTransform

from floe_dagster_iceberg._pyiceberg.arrow_reader import FileReader
from floe_dagster_iceberg._pyiceberg.transaction import TableTransaction, history_assertions, ref_assertions
from floe_dagster_iceberg.errors import IncompatibleSchemaChangeError, SchemaEvolutionError
from floe_dagster_iceberg.models import SchemaChange, SchemaChangeType, SchemaEvolution
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.schema.convert import SchemaNode, edit_field, nodes_by_id, with_fields


@dataclass(frozen=True)
class RequiredColumn:
    """A column to make required, and the schema before that change."""

    name: str
    field_id: int
    schema: Schema


class _Evolver:
    def __init__(self, table: str, metadata: TableMetadata) -> None:
        self._table, self._metadata = table, metadata
        self._last_column_id = metadata.last_column_id
        self.schema = metadata.schema()
        self._made_required: list[RequiredColumn] = []

    def apply_all(self, evolution: SchemaEvolution) -> None:
        for change in evolution.changes:
            if change.is_incompatible and not evolution.allow_incompatible_changes:
                raise self._incompatible(
                    change,
                    f"{change.change_type} can break readers and writers; "
                    "to do it anyway, set allow_incompatible_changes=True",
                )
            self._apply(change)

    def made_required(self) -> list[RequiredColumn]:
        """Columns that became required and still are after all changes."""
        nodes = nodes_by_id(self.schema)
        return [
            column
            for column in self._made_required
            if column.field_id in nodes and nodes[column.field_id].field.required
        ]

    def _apply(self, change: SchemaChange) -> None:
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

    def _add(self, change: SchemaChange) -> None:
        if not all(change.path):
            raise self._error(
                change, f"'{change.column_name}' cannot name a column of '{self._table}': a part of it is empty."
            )
        # The whole name is looked up first: an existing column may have a dot in its name.
        self._check_name(change, change.column_name, field_id=None)
        added = iceberg.NestedField(
            field_id=self._next_id(),
            name=change.path[-1],
            field_type=cast("iceberg.IcebergType", assign_fresh_schema_ids(_new_type(change), self._next_id)),
            required=False,
            doc=change.new_doc or None,
        )
        if len(change.path) == 1:
            self.schema = with_fields(self.schema, iceberg.StructType(*self.schema.fields, added))
            return
        parent, struct = self._struct_to_add_to(change, ".".join(change.path[:-1]))
        self._check_name(change, f"{self.schema.find_column_name(parent.field_id)}.{added.name}", field_id=None)
        self._edit(parent, field_type=iceberg.StructType(*struct.fields, added))

    def _rename(self, change: SchemaChange) -> None:
        node, new_name = self._column(change), change.new_name or ""
        if "." in new_name:
            raise self._error(
                change,
                f"Column '{change.column_name}' of '{self._table}' cannot be named '{new_name}': a dot would make it "
                "look like part of a struct. Use only the last part of the name.",
            )
        parent = "" if node.parent_id is None else f"{self.schema.find_column_name(node.parent_id)}."
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
        if self._held_by(node.field, self.schema.identifier_field_ids):
            raise self._incompatible(change, "the table's rows are identified by it, so it must stay required")
        self._edit(node.field, required=False)

    def _make_required(self, change: SchemaChange) -> None:
        node = self._node(change)
        if not node.field.required:
            self._made_required.append(RequiredColumn(change.column_name, node.field.field_id, schema=self.schema))
            self._edit(node.field, required=True)

    def _delete(self, change: SchemaChange) -> None:
        node = self._column(change)
        if use := next(self._uses(node.field), None):
            raise self._incompatible(change, use)
        siblings = [other for other in nodes_by_id(self.schema).values() if other.parent_id == node.parent_id]
        if len(siblings) == 1:
            raise self._incompatible(change, "it is the last one; a table or struct needs at least one column")
        self.schema = edit_field(self.schema, node.field.field_id, lambda _: None)

    def _update_doc(self, change: SchemaChange) -> None:
        self._edit(self._column(change).field, doc=change.new_doc or None)

    def _uses(self, column: iceberg.NestedField) -> Iterator[str]:
        """Why a column cannot be dropped: identifier, partitioning or sort order use it or a field nested in it."""
        if self._held_by(column, self.schema.identifier_field_ids):
            yield "the table's rows are identified by it"
        for spec in self._metadata.partition_specs:
            for partition in spec.fields:
                if self._held_by(column, [partition.source_id]):
                    # Files of earlier specs are read by those specs, so these count too.
                    yield f"partition field '{partition.name}' comes from it, in files of spec {spec.spec_id}"
        if self._held_by(column, [order.source_id for order in self._metadata.sort_order().fields]):
            yield "the table is sorted by it"

    def _held_by(self, column: iceberg.NestedField, field_ids: list[int]) -> bool:
        """Whether one of the fields is this column or nested in it."""
        nodes = nodes_by_id(self.schema)
        return any(
            field_id in nodes and column.field_id in (field_id, *nodes[field_id].ancestors) for field_id in field_ids
        )

    def _node(self, change: SchemaChange) -> SchemaNode:
        """The field to change; map keys, and fields nested in them, can never change."""
        nodes = nodes_by_id(self.schema)
        try:
            node = nodes[self.schema.find_field(change.column_name).field_id]
        except ValueError:
            raise self._error(
                change,
                f"Table '{self._table}' has no column '{change.column_name}'. "
                f"It has: {', '.join(self.schema.column_names)}.",
            ) from None
        if any(nodes[around].kind == "key" for around in (*node.ancestors, node.field.field_id)):
            raise self._incompatible(change, "it is part of a map key, and map keys cannot change")
        return node

    def _column(self, change: SchemaChange) -> SchemaNode:
        """The field to change, when only a named column or struct field can be changed that way."""
        node = self._node(change)
        if node.kind != "column":
            raise self._incompatible(
                change, f"it is the {node.kind} of a list or map, without a name or doc; change the list or map itself"
            )
        return node

    def _struct_to_add_to(
        self, change: SchemaChange, parent_name: str
    ) -> tuple[iceberg.NestedField, iceberg.StructType]:
        parent = self._node(change.model_copy(update={"column_name": parent_name})).field
        match parent.field_type:
            case iceberg.ListType():
                parent = parent.field_type.element_field
            case iceberg.MapType():
                parent = parent.field_type.value_field
        if not isinstance(parent.field_type, iceberg.StructType):
            raise self._incompatible(change, f"'{parent_name}' is {parent.field_type}, and only a struct has fields")
        return parent, parent.field_type

    def _check_name(self, change: SchemaChange, full_name: str, *, field_id: int | None) -> None:
        """Reject a name that another column has, or a partition field of another column."""
        for taken_id in self.schema.field_ids:
            taken = self.schema.find_column_name(taken_id) or ""
            if taken_id == field_id or taken.lower() != full_name.lower():
                continue
            fact = "already has it" if taken == full_name else f"has '{taken}', which differs only in case"
            raise self._error(
                change, f"Column '{full_name}' cannot be in '{self._table}': the table {fact}. Choose another name."
            )
        for partition in (one for spec in self._metadata.partition_specs for one in spec.fields):
            own = partition.source_id == field_id and isinstance(partition.transform, IdentityTransform | VoidTransform)
            if partition.name == full_name and not own:
                raise self._incompatible(change, f"a partition field is named '{full_name}'; choose another name")

    def _edit(self, column: iceberg.NestedField, **changes: object) -> None:
        self.schema = edit_field(self.schema, column.field_id, lambda found: found.model_copy(update=dict(changes)))

    def _next_id(self) -> int:
        self._last_column_id += 1
        return self._last_column_id

    def _error(self, change: SchemaChange, message: str) -> SchemaEvolutionError:
        return SchemaEvolutionError(message, table=self._table, column=change.column_name)

    def _incompatible(self, change: SchemaChange, reason: str) -> IncompatibleSchemaChangeError:
        return IncompatibleSchemaChangeError(self._table, column=change.column_name, reason=reason)


def _new_type(change: SchemaChange) -> iceberg.IcebergType:
    if (new_type := change.to_pyiceberg_type()) is None:
        raise AssertionError(f"the model requires a type for {change.change_type}")
    return new_type


def widens(old: iceberg.IcebergType, new: iceberg.IcebergType) -> bool:
    """Whether Iceberg can promote the old type to the new one without changing a value."""
    match old, new:
        case (iceberg.IntegerType(), iceberg.LongType()) | (iceberg.FloatType(), iceberg.DoubleType()):
            return True
        case iceberg.DecimalType(), iceberg.DecimalType():
            return bool(old.scale == new.scale and old.precision < new.precision)
        case _:
            return False


def _refuse_nulls(table: Table, metadata: TableMetadata, column: RequiredColumn) -> None:
    """Check that no row of any branch has NULL in a column that is made required.

    A file is read only where its column statistics cannot decide.

    Raises:
        IncompatibleSchemaChangeError: A row has NULL in it.
    """
    top_level_ids = {field.field_id for field in column.schema.fields}
    for task in _files_of_branches(table, metadata):
        nulls = (task.file.null_value_counts or {}).get(column.field_id)
        if nulls == 0:
            continue
        # Statistics include deleted rows, and fields of structs that are NULL themselves.
        is_certain = nulls is not None and not task.delete_files and column.field_id in top_level_ids
        if is_certain or _file_holds_null(table, metadata, task, column):
            raise IncompatibleSchemaChangeError(
                table_name(table),
                column=column.name,
                reason="it cannot be required while rows have NULL in it or were written before it was added; "
                "fill it first",
            )


def _files_of_branches(table: Table, metadata: TableMetadata) -> Iterator[FileScanTask]:
    seen: set[tuple[str, frozenset[str]]] = set()
    for ref in metadata.refs.values():
        if ref.snapshot_ref_type is not SnapshotRefType.BRANCH:
            continue
        scan = DataScan(table_metadata=metadata, io=table.io, snapshot_id=ref.snapshot_id)
        for task in scan.plan_files():
            version = (task.file.file_path, frozenset(file.file_path for file in task.delete_files))
            if version not in seen:
                seen.add(version)
                yield task


def _file_holds_null(table: Table, metadata: TableMetadata, task: FileScanTask, column: RequiredColumn) -> bool:
    ids = (*nodes_by_id(column.schema)[column.field_id].ancestors, column.field_id)
    top = column.schema.find_field(ids[0])
    scan = FileReader(table_metadata=metadata, io=table.io, projected_schema=Schema(top), row_filter=AlwaysTrue())
    return any(_holds_null(batch.column(0), top.field_type, ids[1:]) for batch in scan.stream([task]))


def _holds_null(values: pa.Array, field_type: iceberg.IcebergType, ids: Sequence[int]) -> bool:
    """Whether the field at the end of a path of ids is NULL in a parent that is not NULL."""
    if not ids:
        return bool(values.null_count)
    present = values.drop_null()
    match field_type:
        case iceberg.StructType():
            position = next(at for at, field in enumerate(field_type.fields) if field.field_id == ids[0])
            return _holds_null(present.field(position), field_type.fields[position].field_type, ids[1:])
        case iceberg.MapType():
            # Keys are never NULL and never change, so the path goes through the value.
            first, last = present.offsets[0].as_py(), present.offsets[-1].as_py()
            return _holds_null(present.items.slice(first, last - first), field_type.value_type, ids[1:])
        case iceberg.ListType():
            return _holds_null(present.flatten(), field_type.element_type, ids[1:])
        case _:
            raise AssertionError(f"{field_type} has no nested fields")


_TOP_LEVEL = -1


def stage_schema_evolution(transaction: TableTransaction, table: str, evolution: SchemaEvolution) -> None:
    """Stage the changed schema; nothing if the table already has it.

    Raises:
        SchemaEvolutionError: A column does not exist, or a name is taken.
        IncompatibleSchemaChangeError: A change would break readers, or the table's identifier, partitioning or
            sort order.
    """
    metadata = transaction.table_metadata
    evolver = _Evolver(table, metadata)
    evolver.apply_all(evolution)
    if evolver.schema == metadata.schema():
        return
    made_required = evolver.made_required()
    for column in made_required:
        _refuse_nulls(transaction.table, metadata, column)
    requirements: list[updates.TableRequirement] = [
        updates.AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        updates.AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id),
    ]
    if made_required:
        requirements += _same_rows(transaction)
    transaction.stage(
        [*_set_schema(metadata, evolver.schema), *_set_name_mapping(metadata, evolver.schema)], requirements
    )


def _set_schema(metadata: TableMetadata, schema: Schema) -> list[updates.TableUpdate]:
    known = next((earlier.schema_id for earlier in metadata.schemas if earlier == schema), None)
    if known is not None:
        return [updates.SetCurrentSchemaUpdate(schema_id=known)]
    new = Schema(
        *schema.fields,
        schema_id=1 + max(earlier.schema_id for earlier in metadata.schemas),
        identifier_field_ids=schema.identifier_field_ids,
    )
    return [updates.AddSchemaUpdate.model_validate({"schema": new}), updates.SetCurrentSchemaUpdate(schema_id=-1)]


def _same_rows(transaction: TableTransaction) -> list[updates.TableRequirement]:
    """Requirements that fail the commit if rows were written after the NULL check."""
    metadata = transaction.table_metadata
    no_main = [] if MAIN_BRANCH in metadata.refs else [updates.AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None)]
    return [*no_main, *ref_assertions(metadata), *history_assertions(transaction, snapshot_ids=(), all_refs=True)]


def _set_name_mapping(metadata: TableMetadata, schema: Schema) -> list[updates.TableUpdate]:
    """Update the table's name mapping, if it has one: files without field ids are read with it."""
    mapping = metadata.name_mapping()
    if mapping is None:
        return []
    before, after = nodes_by_id(metadata.schema()), nodes_by_id(schema)
    renamed = {
        field_id: node.field
        for field_id, node in after.items()
        if field_id in before and before[field_id].field.name != node.field.name
    }
    added: dict[int, list[iceberg.NestedField]] = {}
    for field_id, node in after.items():
        if field_id not in before and (node.parent_id is None or node.parent_id in before):
            added.setdefault(_TOP_LEVEL if node.parent_id is None else node.parent_id, []).append(node.field)
    updated = update_mapping(mapping, renamed, added)
    return [updates.SetPropertiesUpdate(updates={TableProperties.DEFAULT_NAME_MAPPING: updated.model_dump_json()})]
