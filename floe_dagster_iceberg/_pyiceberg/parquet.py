"""Parquet data files: their writers and their columns, through PyIceberg's Arrow half."""
# ruff: noqa: SLF001 - private parts are what this folder is for

from collections.abc import Collection
from typing import Any

import pyarrow as pa
from pyiceberg.io import OutputFile
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import (
    ArrowAccessor,
    ArrowProjectionVisitor,
    ParquetFormatWriter,
    _pyarrow_to_schema_without_ids,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, visit_with_partner
from pyiceberg.table import TableProperties
from pyiceberg.typedef import TableVersion
from pyiceberg.types import ListType, MapType

_UNKNOWN_TO_PYICEBERG = (TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES, "write.parquet.bloom-filter-")


def open_parquet_writer(output: OutputFile, schema: Schema, properties: dict[str, str]) -> ParquetFormatWriter:
    """A writer of one Parquet data file whose columns carry the schema's field ids."""
    model = FileFormatFactory.get(FileFormat.PARQUET)
    # PyIceberg would warn that it does not know them. Row-group bytes are honoured by DataFileWriter; and filters of
    # warnings belong to the whole process, whose other threads run the user's code.
    known = {key: value for key, value in properties.items() if not key.startswith(_UNKNOWN_TO_PYICEBERG)}
    writer = model.create_writer(output, schema, known)
    if not isinstance(writer, ParquetFormatWriter):
        raise TypeError(f"PyIceberg's Parquet writer is a {type(writer).__name__}")
    return writer


def leave_without_dictionary(writer: ParquetFormatWriter, columns: Collection[str]) -> None:
    """Write some columns without a dictionary; for a writer without rows."""
    if columns:
        paths = parquet_path_to_id_mapping(writer._file_schema)
        writer._parquet_writer_kwargs["use_dictionary"] = [path for path in paths if path not in columns]


def bytes_written(writer: ParquetFormatWriter) -> int:
    """Bytes of the file so far, as they are on disk."""
    return 0 if writer._fos is None else int(writer._fos.tell())


def close_quietly(writer: ParquetFormatWriter) -> None:
    """Close a writer whose file is about to be deleted."""
    if writer._writer is not None:
        # Or Arrow would try to finish the file when it is garbage-collected, and fail.
        writer._writer.is_open = False
    if writer._fos is not None:
        try:
            writer._fos.close()
        except (OSError, ValueError, pa.ArrowException):
            return


class _NullSafeProjection(ArrowProjectionVisitor):
    """PyIceberg's projection, which makes a NULL list or map of structs an empty one (apache/iceberg-python#3833)."""

    def list(self, list_type: ListType, lists: pa.Array | None, values: pa.Array | None) -> pa.Array | None:
        if not isinstance(values, pa.StructArray) or not isinstance(lists, pa.ListArray | pa.LargeListArray):
            return super().list(list_type, lists, values)
        values = self._cast_if_needed(list_type.element_field, values)
        copied = pa.LargeListArray.from_arrays(_own_offsets(lists), values, mask=lists.is_null())
        make = pa.large_list if isinstance(lists, pa.LargeListArray) else pa.list_
        return copied.cast(make(self._construct_field(list_type.element_field, values.type)))

    def map(
        self, map_type: MapType, maps: pa.Array | None, keys: pa.Array | None, values: pa.Array | None
    ) -> pa.Array | None:
        if not isinstance(values, pa.StructArray) or not isinstance(maps, pa.MapArray) or keys is None:
            return super().map(map_type, maps, keys, values)
        keys = self._cast_if_needed(map_type.key_field, keys)
        values = self._cast_if_needed(map_type.value_field, values)
        key_field = self._construct_field(map_type.key_field, keys.type)
        value_field = self._construct_field(map_type.value_field, values.type)
        arrow_type = pa.map_(key_field, value_field)
        return pa.MapArray.from_arrays(_own_offsets(maps), keys, values, arrow_type, mask=maps.is_null())


def project(batch: pa.RecordBatch, *, file_schema: Schema, requested_schema: Schema, **settings: Any) -> pa.RecordBatch:
    """The batch in the order and types of another schema; settings are those of `ArrowProjectionVisitor`."""
    visitor, accessor = _NullSafeProjection(file_schema, **settings), ArrowAccessor(file_schema)
    return pa.RecordBatch.from_struct_array(visit_with_partner(requested_schema, batch, visitor, accessor))


def project_batch(batch: pa.RecordBatch, *, batch_schema: Schema, table_schema: Schema) -> pa.RecordBatch:
    """The batch in the table's column order and types, with field ids, missing optional columns filled with NULL."""
    model = FileFormatFactory.get(FileFormat.PARQUET)
    return project(
        batch, file_schema=batch_schema, requested_schema=table_schema, include_field_ids=True, format_model=model
    )


def _own_offsets(nested: pa.Array) -> pa.Array:
    # Arrow takes no mask together with a slice of offsets, which a slice of a batch has.
    return pa.array(nested.offsets.to_numpy())


def arrow_schema_without_ids(schema: pa.Schema, *, format_version: TableVersion) -> Schema:
    """The Iceberg schema an Arrow schema stands for, field ids not assigned yet."""
    return _pyarrow_to_schema_without_ids(schema, format_version=format_version)
