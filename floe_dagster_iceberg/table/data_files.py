"""Arrow rows into Parquet data files: bounded memory, any partition spec, sizes as they are on disk."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import StructType

from floe_dagster_iceberg.errors import SchemaEvolutionError, ValidationError
from floe_dagster_iceberg.table._pyiceberg import project_batch
from floe_dagster_iceberg.table.arrow_rows import ArrowRows
from floe_dagster_iceberg.table.file_lanes import EncodingThreads, FileLane, FilesOfWrite, refusing_inner_nulls
from floe_dagster_iceberg.table.partition_split import PartitionSplitter

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


@dataclass
class _Part:
    """Rows of one partition that wait, and the lanes that take them to disk."""

    lanes: list[FileLane]
    batches: list[pa.RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0
    turn: int = 0


class DataFileWriter:
    """Writes rows into data files of one table and remembers every file it started.

    Memory is bounded by a buffer over all partitions, not by the size of the data: when the
    buffer is full the largest partition goes to disk as a row group. A file is closed when it
    reaches the table's target size as counted on disk, or when too many others are open.
    Row groups are encoded by other threads, while the next rows come in. A partition that has
    filled a file is large: its next files are written side by side, unless their rows are to be in order.
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
        target_bytes = target_file_size_bytes or _size(
            properties,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
        )
        row_group_bytes = _size(properties, TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES, ROW_GROUP_BYTES)
        # At least two row groups make a file, or one that is a little too large for its file would be one by itself.
        self._flush_bytes = max(1, min(row_group_bytes, ROW_GROUP_BYTES, target_bytes // 2))
        # Files that follow each other do not overlap when the rows are in order; files side by side would.
        self._side_by_side = side_by_side and not sort_by
        self._sort_by = [(self._column_on_disk(column), "ascending") for column in sort_by]
        self._files, self._threads = FilesOfWrite(metadata, self._schema, io, target_bytes), EncodingThreads()
        self._flushes = itertools.count()
        self._unsplit: list[pa.RecordBatch] = []
        self._unsplit_bytes = 0
        self._parts: dict[Record | None, _Part] = {}
        self._buffered_bytes = 0
        self._ending = False

    def write(self, rows: ArrowRows) -> None:
        """Take rows in; they may or may not be on disk afterwards."""
        structs = self._missing_structs(rows.schema)
        batch_schema = pyarrow_to_schema(
            pa.schema([*rows.schema, *structs]),
            name_mapping=self._metadata.schema().name_mapping,
            format_version=self._metadata.format_version,
        )
        for batch in rows.batches():
            for piece in _pieces(batch, SPLIT_BYTES):
                self._refuse_nulls(piece)
                self._gather(self._projected(piece, structs, batch_schema))

    @property
    def rows(self) -> int:
        """Rows in the finished files."""
        return sum(file.record_count for file in self._files.finished)

    @property
    def started(self) -> list[str]:
        """Where files are, or were about to be."""
        return self._files.started

    def begin_finish(self) -> None:
        """Begin to write what is left, and return before much of it is written; no more rows may come."""
        if self._ending:
            return
        self._split()
        small = self._buffered_bytes < WORTH_A_THREAD_BYTES
        self._ending = True
        endings = [ending for part in self._parts.values() for ending in self._endings(part)]
        if small and len(endings) == 1:
            ((lane, end),) = endings
            self._threads.do_here(lane, end)
        else:
            for lane, end in endings:
                self._threads.start(lane, end)

    def finish(self) -> list[DataFile]:
        """Write what is left and return all data files."""
        self.begin_finish()
        for lane in self._lanes():
            lane.settle()
        self._threads.stop()
        self._parts.clear()
        # Threads finish them in any order.
        order = {location: number for number, location in enumerate(self.started)}
        return sorted(self._files.finished, key=lambda file: order[file.file_path])

    def discard(self) -> None:
        """Delete every file this writer started; for writes that definitely did not land."""
        self._threads.stop()
        for lane in self._lanes():
            lane.abandon()
        self._parts.clear()
        self._unsplit.clear()
        delete_files(self._io, self.started)

    def _lanes(self) -> list[FileLane]:
        return [lane for part in self._parts.values() for lane in part.lanes]

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

    def _projected(self, batch: pa.RecordBatch, structs: Sequence[pa.Field], batch_schema: Schema) -> pa.RecordBatch:
        for struct in structs:
            batch = batch.append_column(struct, pa.array([None] * batch.num_rows, struct.type))
        projected = project_batch(batch, batch_schema=batch_schema, table_schema=self._schema)
        with refusing_inner_nulls():
            # Columns come as string or large_string, whatever they were read or filled in as.
            return projected.cast(self._arrow_schema)

    def _refuse_nulls(self, batch: pa.RecordBatch) -> None:
        for column in self._metadata.schema().fields:
            if column.required and column.name in batch.schema.names and batch.column(column.name).null_count:
                raise SchemaEvolutionError(
                    f"Column '{column.name}' is required and the rows hold NULL in it. "
                    "Fill or drop those rows, or make the column optional with evolve_schema().",
                    column=column.name,
                )

    def _gather(self, batch: pa.RecordBatch) -> None:
        self._unsplit.append(batch)
        self._unsplit_bytes += _memory(batch)
        if self._unsplit_bytes >= SPLIT_BYTES:
            self._split()

    def _split(self) -> None:
        rows = pa.Table.from_batches(self._unsplit, schema=self._arrow_schema).combine_chunks()
        self._unsplit, self._unsplit_bytes = [], 0
        for batch in rows.to_batches():
            self._take_in(batch)

    def _take_in(self, batch: pa.RecordBatch) -> None:
        for partition, rows in self._splitter.split(batch):
            key = None if partition is None else partition.partition
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = _Part([FileLane(self._files, partition)])
            part.batches.append(rows)
            part.buffered_bytes += _memory(rows)
            self._buffered_bytes += _memory(rows)
            if part.buffered_bytes >= self._flush_bytes:
                self._flush(part)
                self._close_idle_files()
        while self._buffered_bytes >= BUFFER_BYTES:
            self._flush(max(self._parts.values(), key=lambda part: part.buffered_bytes))
            self._close_idle_files()

    def _flush(self, part: _Part) -> None:
        rows, lane = self._take_out(part), self._next_lane(part)
        lane.last_used = next(self._flushes)
        self._threads.start(lane, partial(self._encode, lane, rows))

    def _take_out(self, part: _Part) -> pa.Table:
        rows = pa.Table.from_batches(part.batches, schema=self._arrow_schema)
        self._buffered_bytes -= part.buffered_bytes
        part.batches, part.buffered_bytes = [], 0
        return rows

    def _next_lane(self, part: _Part) -> FileLane:
        lane = part.lanes[part.turn % len(part.lanes)]
        part.turn += 1
        lane.settle()
        if lane.filled_a_file and self._side_by_side:
            part.lanes += [lane.sibling() for _ in range(self._threads.count - len(part.lanes))]
        return lane

    def _encode(self, lane: FileLane, rows: pa.Table) -> None:
        if self._sort_by:
            rows = rows.sort_by(self._sort_by)
        for chunk in _slices(rows, self._flush_bytes):
            lane.write_row_group(chunk)

    def _endings(self, part: _Part) -> Iterator[tuple[FileLane, Callable[[], None]]]:
        """What is left to do for a partition, lane by lane."""
        turn = part.turn % len(part.lanes)
        for number, lane in enumerate(part.lanes):
            rows = self._take_out(part) if number == turn and part.batches else None
            yield lane, partial(self._end, lane, rows)

    def _end(self, lane: FileLane, rows: pa.Table | None) -> None:
        if rows is not None:
            self._encode(lane, rows)
        lane.close()

    def _close_idle_files(self) -> None:
        writing = [lane for lane in self._lanes() if lane.may_have_an_open_file]
        if len(writing) > MOST_OPEN_FILES:
            # Half of them at once, those that got no rows for the longest time.
            for lane in sorted(writing, key=lambda lane: lane.last_used)[: MOST_OPEN_FILES // 2]:
                self._threads.start(lane, lane.close)


def delete_files(io: FileIO, locations: Sequence[str]) -> list[str]:
    """Delete files, as many as can be; returns those that could not."""
    left: list[str] = []
    for location in locations:
        try:
            io.delete(location)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(location)
    return left


def _size(properties: Mapping[str, str], key: str, default: int) -> int:
    given = properties.get(key, str(default))
    if not given.isdecimal() or int(given) == 0:
        raise ValidationError(f"Table property '{key}' is '{given}', which is no number of bytes. Set it to one.")
    return int(given)


def _memory(batch: pa.RecordBatch) -> int:
    return int(batch.nbytes) + COLUMN_BYTES * int(batch.num_columns)


def _pieces(batch: pa.RecordBatch, target_bytes: int) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of at most about the target size; none when it is empty."""
    length = max(1, -(-batch.num_rows // max(1, -(-batch.nbytes // target_bytes))))
    for offset in range(0, batch.num_rows, length):
        yield batch.slice(offset, length)


def _slices(rows: pa.Table, target_bytes: int) -> Iterator[pa.Table]:
    """Pieces of about the target size, in memory; one piece when it is not much larger than that."""
    pieces = max(1, math.ceil(rows.nbytes / (MUCH_LARGER * target_bytes)))
    length = -(-rows.num_rows // pieces)
    for offset in range(0, rows.num_rows, length):
        yield rows.slice(offset, length)
