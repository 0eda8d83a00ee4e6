"""Parquet data files: their writers and their columns, through PyIceberg's Arrow half."""
# ruff: noqa: SLF001 - private parts are what this folder is for

import inspect
import math
from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import OutputFile
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import (
    ArrowAccessor,
    ArrowProjectionVisitor,
    DataFileStatistics,
    ParquetFormatWriter,
    _pyarrow_to_schema_without_ids,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, sanitize_column_names, visit_with_partner
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import TableVersion
from pyiceberg.types import BooleanType, ListType, MapType

from floe_dagster_iceberg._pyiceberg.foreign_types import ForeignArrowType, ForeignType
from floe_dagster_iceberg.errors import ValidationError

_BLOOM_FILTERS: Final = "bloom_filter_options"
_UNKNOWN_TO_PYICEBERG = (TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES, "write.parquet.bloom-filter-")


def to_file_schema(schema: Schema) -> Schema:
    """The schema with column names as they are in files, where Avro's rules hold.

    Raises:
        ValidationError: A column has no name.
    """
    try:
        return sanitize_column_names(schema)
    except ValueError:
        if all(field.name for field in schema.fields):
            raise
        raise ValidationError(
            "The table has a column without a name, and no engine can write files with it. Rename it in the table's "
            "metadata, or copy the other columns to a new table."
        ) from None


def open_parquet_writer(
    output: OutputFile,
    schema: Schema,
    properties: dict[str, str],
    *,
    without_dictionary: Collection[str],
    bloom_filters: Mapping[str, Mapping[str, float]],
) -> ParquetFormatWriter:
    """A writer of one Parquet data file whose columns carry the schema's field ids.

    Some columns are written without a dictionary, some with Bloom filters; releases of PyArrow that cannot write
    Bloom filters write none.
    """
    model = FileFormatFactory.get(FileFormat.PARQUET)
    # PyIceberg would warn that it does not know them. DataFileWriter honours them; and filters of warnings belong to
    # the whole process, whose other threads run the user's code.
    known = {key: value for key, value in properties.items() if not key.startswith(_UNKNOWN_TO_PYICEBERG)}
    writer = model.create_writer(output, schema, known)
    if not isinstance(writer, ParquetFormatWriter):
        raise TypeError(f"PyIceberg's Parquet writer is a {type(writer).__name__}")
    if without_dictionary:
        paths = parquet_path_to_id_mapping(writer._file_schema)
        writer._parquet_writer_kwargs["use_dictionary"] = [path for path in paths if path not in without_dictionary]
    if bloom_filters and _BLOOM_FILTERS in inspect.signature(pq.ParquetWriter).parameters:
        writer._parquet_writer_kwargs[_BLOOM_FILTERS] = bloom_filters
    return writer


def bytes_written(writer: ParquetFormatWriter) -> int:
    """Bytes of the file so far, as they are on disk."""
    return 0 if writer._fos is None else int(writer._fos.tell())


def finish(writer: ParquetFormatWriter) -> tuple[DataFileStatistics, int]:
    """Finish the file; returns its statistics and its length, for which an object store would have to be asked."""
    if writer._writer is None or writer._fos is None:
        raise ValueError("Cannot finish a file without rows")
    writer._writer.close()
    length = int(writer._fos.tell())
    return writer.close(), length


def wait_for_uploads(writer: ParquetFormatWriter) -> None:
    """Wait until the parts of the file so far are uploaded; Arrow would keep any number of them in memory."""
    if writer._fos is not None:
        writer._fos.flush()  # type: ignore[attr-defined]  # of Arrow's streams


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
    """The batch in the order and types of another schema, missing optional columns filled with NULL.

    Settings are those of `ArrowProjectionVisitor`.
    """
    visitor, accessor = _NullSafeProjection(file_schema, **settings), ArrowAccessor(file_schema)
    return pa.RecordBatch.from_struct_array(visit_with_partner(requested_schema, batch, visitor, accessor))


def _own_offsets(nested: pa.Array) -> pa.Array:
    # Arrow takes no mask together with a slice of offsets, which a slice of a batch has.
    return pa.array(nested.offsets.to_numpy())


def arrow_schema_without_ids(schema: pa.Schema, *, format_version: TableVersion) -> Schema:
    """The Iceberg schema an Arrow schema stands for, field ids not assigned yet."""
    foreign: dict[str, ForeignType] = {}
    for at, field in enumerate(schema):
        if isinstance(field.type, ForeignArrowType):
            foreign[field.name] = ForeignType(field.type.foreign_name)
            schema = schema.set(at, field.with_type(pa.binary()))
    converted = _pyarrow_to_schema_without_ids(schema, format_version=format_version)
    if not foreign:
        return converted
    return Schema(
        *(
            field.model_copy(update={"field_type": foreign[field.name]}) if field.name in foreign else field
            for field in converted.fields
        )
    )


_PREFIX: Final = "write.parquet.bloom-filter-"
_ENABLED: Final = f"{_PREFIX}enabled.column."
_FPP: Final = f"{_PREFIX}fpp.column."
_NDV: Final = f"{_PREFIX}ndv.column."
_MAX_BYTES: Final = f"{_PREFIX}max-bytes"
# Iceberg's own defaults.
_DEFAULT_FPP: Final = 0.01
_DEFAULT_MAX_BYTES: Final = 1024 * 1024
# The smallest one that Parquet has.
_MIN_BYTES: Final = 32


class BloomFilters:
    """Which columns of a table get a Bloom filter in every row group, and how large it may become."""

    def __init__(self, metadata: TableMetadata, file_schema: Schema) -> None:
        properties = metadata.properties
        self._columns: dict[str, tuple[float, int | None]] = {}
        for key, value in properties.items():
            column = key.removeprefix(_ENABLED)
            if column == key:
                continue
            self._max_bytes = int(_number(properties, _MAX_BYTES, "a number of bytes") or _DEFAULT_MAX_BYTES)
            path = _path(metadata.schema(), column, file_schema) if value.lower() == "true" else None
            if path is not None:
                fpp = _number(properties, f"{_FPP}{column}", "a probability between 0 and 1", below=1)
                ndv = _number(properties, f"{_NDV}{column}", "a number of values")
                self._columns[path] = fpp or _DEFAULT_FPP, None if ndv is None else int(ndv)

    def options(self, rows: int) -> dict[str, dict[str, float]]:
        """Arrow's settings of a file whose row groups have about this many rows, by column.

        Arrow makes a filter smaller when a column turns out to have fewer values, but never larger.
        """
        if not self._columns:
            return {}
        return {
            path: {"fpp": fpp, "ndv": max(1, min(ndv or rows, _most_values(self._max_bytes, fpp)))}
            for path, (fpp, ndv) in self._columns.items()
        }


def _path(schema: Schema, column: str, file_schema: Schema) -> str | None:
    """The column in a Parquet file; None if it can have no filter, or is gone: Iceberg ignores it too."""
    try:
        field = schema.find_field(column)
    except ValueError:
        return None
    if isinstance(field.field_type, BooleanType):
        return None
    paths = parquet_path_to_id_mapping(file_schema)
    return next((path for path, field_id in paths.items() if field_id == field.field_id), None)


def _most_values(max_bytes: int, fpp: float) -> int:
    """How many values a filter of at most so many bytes, always a power of two, can hold."""
    size = 2 ** int(math.log2(max(max_bytes, _MIN_BYTES)))
    return int(size * -math.log(1 - fpp ** (1 / 8)))


def _number(properties: Mapping[str, str], key: str, meaning: str, *, below: float = math.inf) -> float | None:
    if (given := properties.get(key)) is None:
        return None
    try:
        number = float(given) if below < math.inf else int(given)
    except ValueError:
        number = 0
    if not 0 < number < below:
        raise ValidationError(f"Table property '{key}' is '{given}', which is not {meaning}.")
    return number
