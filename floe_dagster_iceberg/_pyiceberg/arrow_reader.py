"""Data files read into Arrow, with a fast path for files whose columns need no conversion.

PyIceberg converts the Arrow schema of every file, prunes it, binds the filter to it and walks all columns of every
batch, which takes longer than reading a small file. Columns of plain types that are in the file as in the table, or
not at all, need none of it. Other files are read like PyIceberg reads them.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg import expressions as expr, types
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids, translate_column_names
from pyiceberg.io import FileIO, pyarrow as pyiceberg_arrow
from pyiceberg.io.pyarrow import (
    _get_column_projection_values,
    _read_all_delete_files,
    expression_to_pyarrow,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE, FileScanTask
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.config import Config

from floe_dagster_iceberg._pyiceberg.file_io import StoredObject
from floe_dagster_iceberg._pyiceberg.manifest_reader import reading_files
from floe_dagster_iceberg._pyiceberg.parquet import project

Deletes = Sequence[pa.ChunkedArray]
_TEXTS = frozenset({pa.string(), pa.large_string()})
_BYTES = frozenset({pa.binary(), pa.large_binary()})
_PARQUET = ds.ParquetFileFormat(pre_buffer=True, buffer_size=8 * pyiceberg_arrow.ONE_MEGABYTE)
_FIELD_ID = pyiceberg_arrow.PYARROW_PARQUET_FIELD_ID_KEY
_READABLE = frozenset({FileFormat.PARQUET, FileFormat.ORC, FileFormat.PUFFIN})
# Before version 3 Iceberg has no nanoseconds.
_LAST_VERSION_IN_MICROSECONDS = 2


class FileReader:
    """Reads data files of a table, in a schema of the table's and with a filter."""

    def __init__(
        self,
        table_metadata: TableMetadata,
        io: FileIO,
        projected_schema: Schema,
        row_filter: BooleanExpression,
        limit: int | None = None,
    ) -> None:
        self._table_metadata, self._io, self._projected_schema = table_metadata, io, projected_schema
        self._row_filter = bind(table_metadata.schema(), row_filter, case_sensitive=True)
        self._limit = limit

    def to_table(self, tasks: Iterable[FileScanTask]) -> pa.Table:
        """All rows of the tasks, up to the limit."""
        tasks = list(tasks)
        _check_formats(tasks)
        deletes = _read_all_delete_files(self._io, tasks)

        def read(task: FileScanTask) -> list[pa.RecordBatch]:
            return list(_first_rows(self._read(task, deletes.get(task.file.file_path, ())), self._limit))

        # For one file, no thread is faster than this one.
        found = map(read, tasks) if len(tasks) == 1 else ExecutorFactory.get_or_create().map(read, tasks)
        # One table each: text may be large in one file and not in another.
        tables = [pa.Table.from_batches([batch]) for batch in _first_rows(chain.from_iterable(found), self._limit)]
        if not tables:
            # Not by `empty_table`, which knows no nested UUIDs.
            return pa.Table.from_batches([], schema_to_pyarrow(self._projected_schema, include_field_ids=False))
        return pa.concat_tables(tables, promote_options="permissive")

    def stream(self, tasks: Iterable[FileScanTask]) -> Iterator[pa.RecordBatch]:
        """Rows of the tasks, one file after the other, about a row group in memory at a time."""
        tasks = list(tasks)
        _check_formats(tasks)
        for task in tasks:
            with reading_files(self._table_metadata.location):
                deletes = _read_all_delete_files(self._io, [task])
                yield from self._read(task, deletes.get(task.file.file_path, ()))

    def _read(self, task: FileScanTask, deletes: Deletes) -> Iterator[pa.RecordBatch]:
        file = task.file
        opened = self._io.new_input(file.file_path)
        if isinstance(opened, StoredObject):
            yield from self._scan(opened.fragment(_format_of(file), file.file_size_in_bytes), file, deletes)
            return
        with opened.open() as stream:
            yield from self._scan(_format_of(file).make_fragment(stream), file, deletes)

    def _scan(self, fragment: ds.FileFragment, file: DataFile, deletes: Deletes) -> Iterator[pa.RecordBatch]:
        may_be_plain = (
            self._is_plain
            and file.file_format is FileFormat.PARQUET
            and not deletes
            and not self._filters_after_reading
        )
        columns = self._columns_in(fragment.physical_schema, file) if may_be_plain else None
        if columns is not None:
            yield from self._read_plain(fragment, columns)
        else:
            yield from self._read_converted(fragment, file, deletes)

    def _read_converted(self, fragment: ds.FileFragment, file: DataFile, deletes: Deletes) -> Iterator[pa.RecordBatch]:
        """Like PyIceberg's `ArrowScan`, which loses NULL lists and maps of structs."""
        metadata = self._table_metadata
        stored = pyiceberg_arrow.pyarrow_to_schema(
            fragment.physical_schema,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=self._downcasts_nanoseconds,
            format_version=metadata.format_version,
        )
        # The value of a column may also come from the partition of the file.
        by_partition = _get_column_projection_values(
            file, self._projected_schema, metadata.schema(), metadata.specs().get(file.spec_id), stored.field_ids
        )
        row_filter = self._filter_for(stored, by_partition)
        found = prune_columns(stored, self._found_field_ids, select_full_types=False)
        # Positions are those of all rows, so deleted ones go before the filter.
        filters_after = bool(deletes) or self._filters_after_reading
        scanner = ds.Scanner.from_fragment(
            fragment=fragment,
            schema=fragment.physical_schema,
            filter=None if filters_after else row_filter,
            columns=[column.name for column in found.columns],
        )
        batches = _undeleted(scanner.to_batches(), deletes, row_filter) if filters_after else scanner.to_batches()
        for batch in batches:
            if batch.num_rows:
                yield project(
                    batch,
                    file_schema=found,
                    requested_schema=self._projected_schema,
                    downcast_ns_timestamp_to_us=self._downcasts_nanoseconds,
                    projected_missing_fields=by_partition,
                    allow_timestamp_tz_mismatch=True,
                )

    def _filter_for(self, stored: Schema, by_partition: dict[int, Any]) -> pc.Expression | None:
        if self._row_filter == AlwaysTrue():
            return None
        translated = translate_column_names(
            self._row_filter, stored, case_sensitive=True, projected_field_values=by_partition
        )
        return expression_to_pyarrow(bind(stored, translated, case_sensitive=True), stored)

    def _columns_in(self, stored: pa.Schema, file: DataFile) -> list[pa.Field | None] | None:
        """The column of the file for each wanted one, if there is one; None if a column has to be converted."""
        by_id = {(field.metadata or {}).get(_FIELD_ID): field for field in stored}
        if None in by_id:
            return None
        for column, fitting in self._filtered_types:
            field = by_id.get(_key(column))
            if field is None or field.type not in fitting or field.name != column.name:
                return None
        spec = self._table_metadata.specs().get(file.spec_id)
        partition_sources = set() if spec is None else {field.source_id for field in spec.fields}
        found = []
        for column, fitting in self._wanted_types:
            field = by_id.get(_key(column))
            if field is None and not _is_null_where_missing(column, partition_sources):
                return None
            if field is not None and field.type not in fitting:
                return None
            found.append(field)
        return found

    def _read_plain(self, fragment: ds.ParquetFileFragment, columns: list[pa.Field | None]) -> Iterator[pa.RecordBatch]:
        types = [
            schema_to_pyarrow(column.field_type, include_field_ids=False) if field is None else field.type
            for column, field in zip(self._wanted, columns, strict=True)
        ]
        schema = pa.schema([_to_field(column, kind) for column, kind in zip(self._wanted, types, strict=True)])
        scanner = ds.Scanner.from_fragment(
            fragment=fragment,
            schema=fragment.physical_schema,
            filter=self._arrow_filter,
            columns=[field.name for field in columns if field is not None],
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                found = iter(batch.columns)
                arrays = [
                    pa.nulls(batch.num_rows, kind) if field is None else next(found)
                    for kind, field in zip(types, columns, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    @cached_property
    def _wanted(self) -> tuple[types.NestedField, ...]:
        return self._projected_schema.fields

    @cached_property
    def _filtered(self) -> list[types.NestedField]:
        ids = extract_field_ids(self._row_filter)
        return [self._table_metadata.schema().find_field(field_id) for field_id in ids]

    @cached_property
    def _wanted_types(self) -> list[tuple[types.NestedField, frozenset[pa.DataType]]]:
        """The wanted columns, each with the types that need no conversion."""
        return [(field, _types_of(field.field_type)) for field in self._wanted]

    @cached_property
    def _filtered_types(self) -> list[tuple[types.NestedField, frozenset[pa.DataType]]]:
        # Apart from the wanted ones: those may be of an older schema.
        return [(field, _types_of(field.field_type)) for field in self._filtered]

    @cached_property
    def _is_plain(self) -> bool:
        columns = {field.field_id for field in self._table_metadata.schema().fields}
        return (
            bool(self._wanted)
            and all(isinstance(field.field_type, types.PrimitiveType) for field in (*self._wanted, *self._filtered))
            # A dot leads to a field inside a column.
            and all(field.field_id in columns and "." not in field.name for field in self._filtered)
        )

    @cached_property
    def _arrow_filter(self) -> pc.Expression | None:
        is_everything = self._row_filter == AlwaysTrue()
        return None if is_everything else expression_to_pyarrow(self._row_filter, self._table_metadata.schema())

    @cached_property
    def _filters_after_reading(self) -> bool:
        return _may_match_nan(self._row_filter)

    @cached_property
    def _found_field_ids(self) -> set[int]:
        # Lists and maps are selected by what is inside of them.
        schemas = (self._projected_schema, *map(Schema, self._filtered))
        return {
            field_id
            for schema in schemas
            for field_id in schema.field_ids
            if not isinstance(schema.find_type(field_id), types.ListType | types.MapType)
        }

    @cached_property
    def _downcasts_nanoseconds(self) -> bool:
        asked_for = Config().get_bool(DOWNCAST_NS_TIMESTAMP_TO_US_ON_WRITE)
        is_needed = self._table_metadata.format_version <= _LAST_VERSION_IN_MICROSECONDS
        return is_needed if asked_for is None else asked_for


def _may_match_nan(row_filter: BooleanExpression) -> bool:
    """Whether NaN may match. Arrow skips a row group with NaN if all other values are equal, so it must not filter."""
    match row_filter:
        case expr.And(left=left, right=right) | expr.Or(left=left, right=right):
            return _may_match_nan(left) or _may_match_nan(right)
        case expr.BoundIsNaN() | expr.BoundNotEqualTo() | expr.BoundNotIn():
            return isinstance(row_filter.term.ref().field.field_type, types.FloatType | types.DoubleType)
        case expr.Not():
            return True
        case _:
            return False


def _check_formats(tasks: Iterable[FileScanTask]) -> None:
    """Refuse files that PyIceberg cannot read, before any other is read.

    Raises:
        NotImplementedError: The tasks need such a file.
    """
    formats = {file.file_format for task in tasks for file in (task.file, *task.delete_files)}
    if unknown := sorted(str(each.value) for each in formats - _READABLE):
        raise NotImplementedError(f"it has {' and '.join(unknown)} files, which only Spark can read")


def _format_of(file: DataFile) -> ds.FileFormat:
    match file.file_format:
        case FileFormat.PARQUET:
            return _PARQUET
        case FileFormat.ORC:
            return ds.OrcFileFormat()
        case other:
            raise ValueError(f"Unsupported file format: {other}")


def _first_rows(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    if limit is None:
        yield from batches
        return
    for batch in batches:
        yield batch.slice(0, limit)
        limit -= min(limit, batch.num_rows)
        if not limit:
            return


def _undeleted(
    batches: Iterable[pa.RecordBatch], deletes: Deletes, row_filter: pc.Expression | None
) -> Iterator[pa.RecordBatch]:
    """Matching rows whose positions in the file are not among the deleted ones."""
    deleted = pa.chunked_array(list(chain.from_iterable(positions.chunks for positions in deletes)), pa.int64())
    start = 0
    for batch in batches:
        positions = pa.array(range(start, start + batch.num_rows), pa.int64())
        start += batch.num_rows
        live = pa.Table.from_batches([batch]).filter(pc.invert(pc.is_in(positions, value_set=deleted)))
        yield from (live if row_filter is None else live.filter(row_filter)).combine_chunks().to_batches()


def _is_null_where_missing(column: types.NestedField, partition_sources: set[int]) -> bool:
    # The value of a column may also come from the partition of the file.
    return column.optional and column.initial_default is None and column.field_id not in partition_sources


def _types_of(kind: types.IcebergType) -> frozenset[pa.DataType]:
    match kind:
        case types.StringType():
            return _TEXTS
        case types.BinaryType():
            return _BYTES
        case _:
            return frozenset({schema_to_pyarrow(kind, include_field_ids=False)})


def _to_field(column: types.NestedField, kind: pa.DataType) -> pa.Field:
    doc = {pyiceberg_arrow.PYARROW_FIELD_DOC_KEY: column.doc} if column.doc else None
    return pa.field(column.name, kind, nullable=column.optional, metadata=doc)


def _key(column: types.NestedField) -> bytes:
    return str(column.field_id).encode()
