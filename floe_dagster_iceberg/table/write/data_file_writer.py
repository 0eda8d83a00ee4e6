"""Arrow rows into Parquet data files: bounded memory, any partition spec, file sizes as on disk."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from floe_dagster_iceberg._pyiceberg.parquet import project_batch
from floe_dagster_iceberg.errors import SchemaEvolutionError, ValidationError
from floe_dagster_iceberg.table.arrow_input import ArrowRows, RowFilter
from floe_dagster_iceberg.table.storage import delete_files
from floe_dagster_iceberg.table.write.partitioner import Partition, PartitionSplitter
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
        properties = metadata.properties
        self._metadata, self._io = metadata, io
        self._schema: Schema = sanitize_column_names(metadata.schema())
        self._arrow_schema = schema_to_pyarrow(self._schema)
        self._splitter = PartitionSplitter(metadata.spec(), self._schema)
        default_bytes = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        target_bytes = target_file_size_bytes or _size(
            properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, default_bytes
        )
        row_group_bytes = _size(properties, TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES, ROW_GROUP_BYTES)
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
        structs = self._missing_structs(rows.schema)
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
        in_one_go = self._buffered_bytes < WORTH_A_THREAD_BYTES and len(self._parts) == 1
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

    def _missing_structs(self, given: pa.Schema) -> list[pa.Field]:
        """Structs that the rows lack. PyIceberg would fill them so that their required fields hold NULL as well."""
        return [
            pa.field(column.name, schema_to_pyarrow(column.field_type, include_field_ids=False))
            for column in self._metadata.schema().fields
            if isinstance(column.field_type, StructType) and column.name not in given.names
        ]

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
        projected = project_batch(batch, batch_schema=batch_schema, table_schema=self._schema)
        try:
            # Text columns may be string or large_string, depending on how they were read or filled.
            return projected.cast(self._arrow_schema)
        except pa.ArrowInvalid as error:
            raise null_error(error) from None

    def _split(self) -> None:
        rows = pa.Table.from_batches(self._unsplit, schema=self._arrow_schema).combine_chunks()
        self._unsplit, self._unsplit_bytes = [], 0
        for batch in rows.to_batches():
            for partition, rows_of_partition in self._splitter.split(batch):
                self._buffer(partition, rows_of_partition)
            while self._buffered_bytes >= BUFFER_BYTES:
                self._flush(max(self._parts.values(), key=lambda part: part.buffered_bytes))

    def _buffer(self, partition: Partition | None, rows: pa.RecordBatch) -> None:
        key = None if partition is None else partition.partition
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = _Part([RollingFileWriter(self._files, partition)])
        size = _memory(rows)
        part.batches.append(rows)
        part.buffered_bytes += size
        self._buffered_bytes += size
        if part.buffered_bytes >= self._flush_bytes:
            self._flush(part)

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


def _size(properties: Mapping[str, str], key: str, default: int) -> int:
    given = properties.get(key, str(default))
    if not given.isdecimal() or int(given) == 0:
        raise ValidationError(f"Table property '{key}' is '{given}', which is not a number of bytes.")
    return int(given)


def _memory(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes) + COLUMN_BYTES * int(batch.num_columns)
