"""Arrow rows into Parquet data files: bounded memory, any partition spec, file sizes as on disk."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import partitioning
from pyiceberg.io import FileIO
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionFieldValue, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import BucketTransform, TruncateTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from floe_dagster_iceberg._pyiceberg.file_io import FloeFileIO
from floe_dagster_iceberg._pyiceberg.manifest_writer import same_nan
from floe_dagster_iceberg._pyiceberg.parquet import project, to_file_schema
from floe_dagster_iceberg.errors import SchemaEvolutionError, WriteError
from floe_dagster_iceberg.table.arrow_input import ArrowRows, RowFilter
from floe_dagster_iceberg.table.storage import delete_files
from floe_dagster_iceberg.table.write.rolling_files import DataFileFactory, EncoderPool, RollingFileWriter, null_error

ROW_GROUP_BYTES = 64 * 1024 * 1024
BUFFER_BYTES = 128 * 1024 * 1024
# Rows are split by partition this many at a time: splitting each small batch would leave a crumb per partition.
SPLIT_BYTES = 32 * 1024 * 1024
# What Arrow takes to hold a column of a few rows.
COLUMN_BYTES = 512
# Below the number of open files that a process may usually have.
MOST_OPEN_FILES = 200
# Encoding less than this takes no longer than starting a thread for it and coming back.
WORTH_A_THREAD_BYTES = 1024 * 1024
# A row group may be this many times too large. More, and two of them would miss a file's target by far.
MUCH_LARGER = 1.3
_RECORD_COUNT = attrgetter("record_count")
_ROW = "__row"


class Partition(partitioning.PartitionKey):
    """A partition's key; unlike PyIceberg's own it allows several fields on one source column."""

    @cached_property
    def partition(self) -> Record:
        stored: list[object] = []
        for value in self.field_values:
            if isinstance(value.field.transform, BucketTransform | VoidTransform):
                # PyIceberg goes by the source column, whose type makes the number of a bucket a time of day, and which
                # may be gone when the field is void.
                stored.append(value.value)
            else:
                held = partitioning.partition_record_value(value.field, value.value, self.schema)
                stored.append(same_nan(held) if isinstance(held, float) else held)
        return Record(*stored)


def split_by_partition(
    batch: pa.RecordBatch, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[Partition | None, pa.RecordBatch]]:
    """Yield each partition of a batch in the table's schema with its rows, in the order they came."""
    if spec.is_unpartitioned():
        yield None, batch
        return
    names = list(map(str, range(len(spec.fields))))
    keys = pa.Table.from_arrays([_partition_values(batch, field, schema) for field in spec.fields], names=names)
    groups = (
        keys.append_column(_ROW, pa.arange(0, batch.num_rows))
        .group_by(names, use_threads=False)
        .aggregate([(_ROW, "list")])
    )
    for group in range(groups.num_rows):
        values = [
            PartitionFieldValue(field=field, value=groups.column(name)[group].as_py())
            for name, field in zip(names, spec.fields, strict=True)
        ]
        partition = Partition(field_values=values, partition_spec=spec, schema=schema)
        if groups.num_rows == 1:
            yield partition, batch
        else:
            # A copy, not a slice: a slice would keep the whole batch in memory until its partition is written.
            yield partition, batch.take(groups.column(f"{_ROW}_list")[group].values)


def _partition_values(batch: pa.RecordBatch, field: PartitionField, schema: Schema) -> pa.Array:
    if isinstance(field.transform, VoidTransform):
        return pa.nulls(batch.num_rows, pa.int32())
    source = schema.find_field(field.source_id)
    top, *path = (schema.find_column_name(field.source_id) or "").split(".")
    column = batch.column(top)
    for name in path:
        column = pc.struct_field(column, name)
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    if pa.types.is_large_binary(column.type):
        # Which PyIceberg cannot truncate; batches are small enough for the other kind.
        column = column.cast(pa.binary())
    values = field.transform.pyarrow_transform(source.field_type)(column)
    if isinstance(field.transform, TruncateTransform) and pa.types.is_decimal(values.type):
        try:
            # The lowest values have more digits once they are rounded down.
            values.validate(full=True)
        except pa.ArrowInvalid:
            raise WriteError(
                f"Partition field '{field.name}' rounds values of a {values.type} column down to more digits than it "
                "holds. Drop such rows, give the column more digits with evolve_schema(), or partition it otherwise."
            ) from None
    return values


@dataclass
class _Part:
    """Buffered rows of one partition, and the writers of its files."""

    writers: list[RollingFileWriter]
    batches: list[pa.RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0
    turn: int = 0


class DataFileWriter:
    """Writes rows into data files of one table and remembers every file it started.

    One buffer for all partitions bounds the memory: when it is full, the largest partition is written as a
    row group. A file is closed when it reaches the table's target size on disk, or when too many others are
    open. Row groups are encoded by other threads while the next rows come in. A partition that has filled a
    file is large: its next files are written side by side, unless their rows are sorted.

    Attributes:
        rows: Rows in the finished files.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        *,
        target_file_size_bytes: int | None = None,
        sort_by: Sequence[str] = (),
        side_by_side: bool = True,
    ) -> None:
        self._metadata, self._io = metadata, io
        self._schema = to_file_schema(metadata.schema())
        self._arrow_schema = schema_to_pyarrow(self._schema)
        # Properties were checked before rows are written.
        properties, default_bytes = metadata.properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        target_bytes = target_file_size_bytes or int(
            properties.get(TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, default_bytes)
        )
        row_group_bytes = int(properties.get(TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES, ROW_GROUP_BYTES))
        # At least two row groups per file: a single one that is a little too large would fill the file alone.
        self._flush_bytes = max(1, min(row_group_bytes, ROW_GROUP_BYTES, target_bytes // 2))
        # Sorted rows make consecutive files that do not overlap; files written side by side would.
        self._side_by_side = side_by_side and not sort_by
        self._sort_by = [(self._column_on_disk(column), "ascending") for column in sort_by]
        self._files, self._encoders = DataFileFactory(metadata, self._schema, io, target_bytes), EncoderPool()
        self._flushes = itertools.count()
        self._unsplit: list[pa.RecordBatch] = []
        self._unsplit_bytes = 0
        self._parts: dict[Record | None, _Part] = {}
        self._buffered_bytes = 0
        self._ending = False
        self.rows = 0

    def write(self, rows: ArrowRows, keep: RowFilter | None = None) -> None:
        """Add rows, those that `keep` returns; they may still be in memory afterwards."""
        # Structs that the rows lack. PyIceberg would fill them so that their required fields hold NULL as well.
        structs = [
            pa.field(column.name, schema_to_pyarrow(column.field_type, include_field_ids=False))
            for column in self._metadata.schema().fields
            if isinstance(column.field_type, StructType) and column.name not in rows.schema.names
        ]
        batch_schema = pyarrow_to_schema(
            pa.schema([*rows.schema, *structs]),
            name_mapping=self._metadata.schema().name_mapping,
            format_version=self._metadata.format_version,
        )
        for batch in rows.batches(keep):
            # Slices of at most about that size; none when the batch is empty.
            length = max(1, -(-batch.num_rows // max(1, -(-batch.nbytes // SPLIT_BYTES))))
            for offset in range(0, batch.num_rows, length):
                projected = self._project(batch.slice(offset, length), structs, batch_schema)
                self._unsplit.append(projected)
                self._unsplit_bytes += _memory(projected)
                if self._unsplit_bytes >= SPLIT_BYTES:
                    self._split()

    @property
    def started(self) -> list[str]:
        """Locations of all files that were begun."""
        return list(self._files.by_location)

    def begin_finish(self) -> None:
        """Start writing the buffered rows, without waiting for it; no more rows may be added."""
        if self._ending:
            return
        self._split()
        in_one_go = (
            self._buffered_bytes < WORTH_A_THREAD_BYTES
            and len(self._parts) == 1
            and not isinstance(self._io, FloeFileIO)
        )
        self._ending = True
        for part in self._parts.values():
            turn = part.turn % len(part.writers)
            for number, writer in enumerate(part.writers):
                rows = self._take_rows(part) if number == turn and part.batches else None
                end = partial(self._encode, writer, rows, closes=True)
                if in_one_go and len(part.writers) == 1:
                    self._encoders.run_inline(writer, end)
                else:
                    self._encoders.start(writer, end)

    def finish(self) -> list[DataFile]:
        """Write the buffered rows and return all data files."""
        self.begin_finish()
        for part in self._parts.values():
            for writer in part.writers:
                writer.wait()
        self._encoders.stop()
        self._parts.clear()
        files = [file for file in self._files.by_location.values() if file is not None]
        self.rows = sum(map(_RECORD_COUNT, files))
        return files

    def discard(self) -> None:
        """Delete every file this writer started; for writes that definitely were not committed."""
        self._encoders.stop()
        for writer in self._writers():
            writer.abort()
        self._parts.clear()
        self._unsplit.clear()
        delete_files(self._io, self.started)

    def _writers(self) -> list[RollingFileWriter]:
        return [writer for part in self._parts.values() for writer in part.writers]

    def _column_on_disk(self, column: str) -> str:
        # Names that Avro does not allow are spelled differently in files.
        return self._schema.find_column_name(self._metadata.schema().find_field(column).field_id) or column

    def _project(self, batch: pa.RecordBatch, structs: Sequence[pa.Field], batch_schema: Schema) -> pa.RecordBatch:
        for column in self._metadata.schema().fields:
            if column.required and column.name in batch.schema.names and batch.column(column.name).null_count:
                raise SchemaEvolutionError(
                    f"Column '{column.name}' is required and the rows hold NULL in it. "
                    "Fill or drop those rows, or make the column optional with evolve_schema().",
                    column=column.name,
                )
        for struct in structs:
            batch = batch.append_column(struct, pa.array([None] * batch.num_rows, struct.type))
        projected = project(
            batch,
            file_schema=batch_schema,
            requested_schema=self._schema,
            include_field_ids=True,
            format_model=FileFormatFactory.get(FileFormat.PARQUET),
        )
        try:
            # Text columns may be string or large_string, depending on how they were read or filled.
            return projected.cast(self._arrow_schema)
        except pa.ArrowInvalid as error:
            raise null_error(error) from None

    def _split(self) -> None:
        rows = pa.Table.from_batches(self._unsplit, schema=self._arrow_schema).combine_chunks()
        self._unsplit, self._unsplit_bytes = [], 0
        for batch in rows.to_batches():
            for partition, rows_of_partition in split_by_partition(batch, self._metadata.spec(), self._schema):
                key = None if partition is None else partition.partition
                part = self._parts.get(key)
                if part is None:
                    part = self._parts[key] = _Part([RollingFileWriter(self._files, partition)])
                size = _memory(rows_of_partition)
                part.batches.append(rows_of_partition)
                part.buffered_bytes += size
                self._buffered_bytes += size
                if part.buffered_bytes >= self._flush_bytes:
                    self._flush(part)
            while self._buffered_bytes >= BUFFER_BYTES:
                self._flush(max(self._parts.values(), key=lambda part: part.buffered_bytes))

    def _flush(self, part: _Part) -> None:
        rows, writer = self._take_rows(part), self._next_writer(part)
        writer.last_used = next(self._flushes)
        self._encoders.start(writer, partial(self._encode, writer, rows))
        self._close_idle_files()

    def _take_rows(self, part: _Part) -> pa.Table:
        rows = pa.Table.from_batches(part.batches, schema=self._arrow_schema)
        self._buffered_bytes -= part.buffered_bytes
        part.batches, part.buffered_bytes = [], 0
        return rows

    def _next_writer(self, part: _Part) -> RollingFileWriter:
        writer = part.writers[part.turn % len(part.writers)]
        part.turn += 1
        writer.wait()
        if writer.filled_a_file and self._side_by_side:
            part.writers += [writer.for_same_partition() for _ in range(self._encoders.count - len(part.writers))]
        return writer

    def _encode(self, writer: RollingFileWriter, rows: pa.Table | None, *, closes: bool = False) -> None:
        if rows is not None:
            if self._sort_by:
                rows = rows.sort_by(self._sort_by)
            # Row groups of about that size in memory; a single one when the rows are not much larger.
            pieces = max(1, math.ceil(rows.nbytes / (MUCH_LARGER * self._flush_bytes)))
            length = -(-rows.num_rows // pieces)
            for offset in range(0, rows.num_rows, length):
                writer.write_row_group(rows.slice(offset, length))
        if closes:
            writer.close()

    def _close_idle_files(self) -> None:
        writing = [writer for writer in self._writers() if writer.may_have_an_open_file]
        if len(writing) > MOST_OPEN_FILES:
            # The half that got no rows for the longest time.
            for writer in sorted(writing, key=lambda writer: writer.last_used)[: MOST_OPEN_FILES // 2]:
                self._encoders.start(writer, writer.close)


def _memory(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes) + COLUMN_BYTES * int(batch.num_columns)
