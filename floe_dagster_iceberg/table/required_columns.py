"""Whether rows that are there allow a column to become required."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from floe_dagster_iceberg.errors import IncompatibleSchemaChangeError
from floe_dagster_iceberg.table._pyiceberg import FileReader
from floe_dagster_iceberg.table.names import table_name
from floe_dagster_iceberg.table.schema_changes import RequiredColumn
from floe_dagster_iceberg.table.schema_tree import nodes_by_id


def refuse_nulls(table: Table, metadata: TableMetadata, column: RequiredColumn) -> None:
    """Look for a row of any branch that holds NULL in a column that shall be required.

    Column statistics decide where they can; only files that they leave open are read.

    Raises:
        IncompatibleSchemaChangeError: There is one.
    """
    for task in _files_of_branches(table, metadata):
        nulls = (task.file.null_value_counts or {}).get(column.field_id)
        if nulls == 0:
            continue
        # Statistics count rows that delete files take away, and fields of structs that are NULL as a whole.
        is_certain = nulls is not None and not task.delete_files and column.field_id in _top_level_ids(column.schema)
        if is_certain or _file_holds_null(table, metadata, task, column):
            raise IncompatibleSchemaChangeError(
                table_name(table),
                column=column.name,
                reason="it cannot be required while rows hold NULL in it, or were written before it was added; "
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


def _top_level_ids(schema: Schema) -> set[int]:
    return {field.field_id for field in schema.fields}


def _file_holds_null(table: Table, metadata: TableMetadata, task: FileScanTask, column: RequiredColumn) -> bool:
    ids = (*nodes_by_id(column.schema)[column.field_id].ancestors, column.field_id)
    top = column.schema.find_field(ids[0])
    scan = FileReader(table_metadata=metadata, io=table.io, projected_schema=Schema(top), row_filter=AlwaysTrue())
    return any(_holds_null(batch.column(0), top.field_type, ids[1:]) for batch in scan.stream([task]))


def _holds_null(values: pa.Array, field_type: IcebergType, ids: Sequence[int]) -> bool:
    """Whether the field at the end of a path of ids is NULL anywhere that all around it is not."""
    if not ids:
        return bool(values.null_count)
    present = values.drop_null()
    match field_type:
        case StructType():
            position = next(at for at, field in enumerate(field_type.fields) if field.field_id == ids[0])
            return _holds_null(present.field(position), field_type.fields[position].field_type, ids[1:])
        case MapType():
            # Keys are never NULL and never change, so the path can only go through the value.
            first, last = present.offsets[0].as_py(), present.offsets[-1].as_py()
            return _holds_null(present.items.slice(first, last - first), field_type.value_type, ids[1:])
        case ListType():
            return _holds_null(present.flatten(), field_type.element_type, ids[1:])
        case _:
            raise AssertionError(f"{field_type} holds no other field")
