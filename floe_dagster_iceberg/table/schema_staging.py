"""An evolved schema on its way into the table, with everything that it was checked against."""

from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import update_mapping
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.types import NestedField

from floe_dagster_iceberg.models import SchemaEvolution
from floe_dagster_iceberg.table._pyiceberg import (
    AssertRefSnapshotId,
    TableTransaction,
    history_assertions,
    ref_assertions,
)
from floe_dagster_iceberg.table.required_columns import refuse_nulls
from floe_dagster_iceberg.table.schema_changes import evolve
from floe_dagster_iceberg.table.schema_tree import nodes_by_id

_TOP_LEVEL = -1


def stage_schema_evolution(transaction: TableTransaction, table: str, evolution: SchemaEvolution) -> None:
    """Stage the schema that the changes lead to; nothing if the table has it already.

    Raises:
        SchemaEvolutionError: The changes cannot be made, for the reason it gives.
    """
    metadata = transaction.table_metadata
    evolved = evolve(table, metadata, evolution)
    if evolved.schema == metadata.schema():
        return
    for column in evolved.made_required:
        refuse_nulls(transaction.table, metadata, column)
    requirements: list[TableRequirement] = [
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id),
    ]
    if evolved.made_required:
        requirements += _same_rows(transaction)
    transaction.stage(
        [*_set_schema(metadata, evolved.schema), *_set_name_mapping(metadata, evolved.schema)], requirements
    )


def _set_schema(metadata: TableMetadata, schema: Schema) -> list[TableUpdate]:
    known = next((earlier.schema_id for earlier in metadata.schemas if earlier == schema), None)
    if known is not None:
        return [SetCurrentSchemaUpdate(schema_id=known)]
    new = Schema(
        *schema.fields,
        schema_id=1 + max(earlier.schema_id for earlier in metadata.schemas),
        identifier_field_ids=schema.identifier_field_ids,
    )
    return [AddSchemaUpdate.model_validate({"schema": new}), SetCurrentSchemaUpdate(schema_id=-1)]


def _same_rows(transaction: TableTransaction) -> list[TableRequirement]:
    """Requirements that nobody wrote a row since NULLs were looked for."""
    metadata = transaction.table_metadata
    no_main = [] if MAIN_BRANCH in metadata.refs else [AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None)]
    return [*no_main, *ref_assertions(metadata), *history_assertions(transaction, snapshot_ids=(), all_refs=True)]


def _set_name_mapping(metadata: TableMetadata, schema: Schema) -> list[TableUpdate]:
    """Keep the table's name mapping, if it has one, in step: files without field ids are read by it."""
    mapping = metadata.name_mapping()
    if mapping is None:
        return []
    before, after = nodes_by_id(metadata.schema()), nodes_by_id(schema)
    renamed = {
        field_id: node.field
        for field_id, node in after.items()
        if field_id in before and before[field_id].field.name != node.field.name
    }
    added: dict[int, list[NestedField]] = {}
    for field_id, node in after.items():
        if field_id not in before and (node.parent_id is None or node.parent_id in before):
            added.setdefault(_TOP_LEVEL if node.parent_id is None else node.parent_id, []).append(node.field)
    updated = update_mapping(mapping, renamed, added)
    return [SetPropertiesUpdate(updates={TableProperties.DEFAULT_NAME_MAPPING: updated.model_dump_json()})]
