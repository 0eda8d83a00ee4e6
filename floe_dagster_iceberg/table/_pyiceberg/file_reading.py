"""Data files into Arrow, quickly where their columns are just what is asked for.

For every file PyIceberg turns the Arrow schema into one of its own, prunes that, binds the filter to it and walks
all columns of every batch, which takes longer than reading a small file. None of it is needed for columns of
plain types that are in the file as the table has them, or not at all. What is left goes PyIceberg's way.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.io.pyarrow import (
    ONE_MEGABYTE,
    PYARROW_FIELD_DOC_KEY,
    PYARROW_PARQUET_FIELD_ID_KEY,
    ArrowScan,
    _get_file_format,
    _read_all_delete_files,
    expression_to_pyarrow,
    schema_to_pyarrow,
)
from pyiceberg.manifest import FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.types import BinaryType, IcebergType, NestedField, PrimitiveType, StringType

from floe_dagster_iceberg.table.damaged_files import reading_files

Deletes = dict[str, list[pa.ChunkedArray]]

_TEXTS = frozenset({pa.string(), pa.large_string()})
_BYTES = frozenset({pa.binary(), pa.large_binary()})


class FileReader(ArrowScan):
    """PyIceberg's reader of data files, with a shorter way for those that need no conversion."""

    _needs_conversion = False

    def to_record_batches(self, tasks: Iterable[FileScanTask]) -> Iterator[pa.RecordBatch]:
        tasks = list(tasks)
        if len(tasks) > 1 or self._limit is not None:
            return super().to_record_batches(tasks)
        # For one file no thread is quicker than this one.
        return self._record_batches_from_scan_tasks_and_deletes(tasks, _read_all_delete_files(self._io, tasks))

    def stream(self, tasks: Iterable[FileScanTask]) -> Iterator[pa.RecordBatch]:
        """Rows of the tasks, one file after the other, a row group or so in memory at a time."""
        for task in tasks:
            with reading_files(self._table_metadata.location):
                deletes = _read_all_delete_files(self._io, [task])
                yield from self._record_batches_from_scan_tasks_and_deletes([task], deletes)

    def _record_batches_from_scan_tasks_and_deletes(
        self, tasks: Iterable[FileScanTask], deletes_per_file: Deletes
    ) -> Iterator[pa.RecordBatch]:
        if self._limit is not None:
            yield from super()._record_batches_from_scan_tasks_and_deletes(tasks, deletes_per_file)
            return
        for task in tasks:
            if self._may_be_as_asked_for(task, deletes_per_file):
                with self._io.new_input(task.file.file_path).open() as stream:
                    fragment = _PARQUET.make_fragment(stream)
                    columns = self._columns_in(fragment.physical_schema, task)
                    if columns is not None:
                        yield from self._read(fragment, columns)
                        continue
                # Opening every file twice would cost more than is won by the others.
                self._needs_conversion = True
            yield from super()._record_batches_from_scan_tasks_and_deletes([task], deletes_per_file)

    def _may_be_as_asked_for(self, task: FileScanTask, deletes: Deletes) -> bool:
        file = task.file
        is_whole = file.file_format is FileFormat.PARQUET and not deletes.get(file.file_path)
        return is_whole and self._is_plain and not self._needs_conversion and not self._dictionary_columns

    def _columns_in(self, stored: pa.Schema, task: FileScanTask) -> list[pa.Field | None] | None:
        """For each wanted column that of the file, if it has one; None if a column has to be converted."""
        by_id = {(field.metadata or {}).get(PYARROW_PARQUET_FIELD_ID_KEY): field for field in stored}
        if None in by_id:
            return None
        for column, types in self._filtered_types:
            field = by_id.get(_key(column))
            if field is None or field.type not in types or field.name != column.name:
                return None
        spec = self._table_metadata.specs().get(task.file.spec_id)
        partition_sources = set() if spec is None else {field.source_id for field in spec.fields}
        found = []
        for column, types in self._wanted_types:
            field = by_id.get(_key(column))
            if field is None and not _is_null_where_missing(column, partition_sources):
                return None
            if field is not None and field.type not in types:
                return None
            found.append(field)
        return found

    def _read(self, fragment: ds.ParquetFileFragment, columns: list[pa.Field | None]) -> Iterator[pa.RecordBatch]:
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
                there = iter(batch.columns)
                arrays = [
                    pa.nulls(batch.num_rows, kind) if field is None else next(there)
                    for kind, field in zip(types, columns, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    @cached_property
    def _wanted(self) -> tuple[NestedField, ...]:
        return self._projected_schema.fields

    @cached_property
    def _filtered(self) -> list[NestedField]:
        ids = extract_field_ids(self._bound_row_filter)
        return [self._table_metadata.schema().find_field(field_id) for field_id in ids]

    @cached_property
    def _wanted_types(self) -> list[tuple[NestedField, frozenset[pa.DataType]]]:
        """The wanted columns, each with what it may be in a file so that nothing has to be converted."""
        return [(field, _types_of(field.field_type)) for field in self._wanted]

    @cached_property
    def _filtered_types(self) -> list[tuple[NestedField, frozenset[pa.DataType]]]:
        # Apart from the wanted ones: those may be of an older schema.
        return [(field, _types_of(field.field_type)) for field in self._filtered]

    @cached_property
    def _is_plain(self) -> bool:
        columns = {field.field_id for field in self._table_metadata.schema().fields}
        return (
            bool(self._wanted)
            and all(isinstance(field.field_type, PrimitiveType) for field in (*self._wanted, *self._filtered))
            # A dot leads to a field inside a column.
            and all(field.field_id in columns and "." not in field.name for field in self._filtered)
        )

    @cached_property
    def _arrow_filter(self) -> pc.Expression | None:
        row_filter = self._bound_row_filter
        is_everything = row_filter == AlwaysTrue()
        return None if is_everything else expression_to_pyarrow(row_filter, self._table_metadata.schema())


_PARQUET = _get_file_format(FileFormat.PARQUET, pre_buffer=True, buffer_size=8 * ONE_MEGABYTE)


def _is_null_where_missing(column: NestedField, partition_sources: set[int]) -> bool:
    # The value of a column may also be told by the partition of the file.
    return column.optional and column.initial_default is None and column.field_id not in partition_sources


def _types_of(kind: IcebergType) -> frozenset[pa.DataType]:
    match kind:
        case StringType():
            return _TEXTS
        case BinaryType():
            return _BYTES
        case _:
            return frozenset({schema_to_pyarrow(kind, include_field_ids=False)})


def _to_field(column: NestedField, kind: pa.DataType) -> pa.Field:
    doc = {PYARROW_FIELD_DOC_KEY: column.doc} if column.doc else None
    return pa.field(column.name, kind, nullable=column.optional, metadata=doc)


def _key(column: NestedField) -> bytes:
    return str(column.field_id).encode()
