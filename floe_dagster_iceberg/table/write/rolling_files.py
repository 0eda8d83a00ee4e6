"""Data files of one write: started, rolled over at their target size, encoded by a pool of threads.

Columns whose values hardly repeat (ids, amounts, texts) get no Parquet dictionary: it would be as long as the
column, make the file larger and take half as long again to write.
"""

import itertools
import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

import pyarrow as pa
from pyiceberg.io import FileIO, OutputFile
from pyiceberg.io.pyarrow import ParquetFormatWriter
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from floe_dagster_iceberg._pyiceberg import parquet
from floe_dagster_iceberg._pyiceberg.parquet import BloomFilters
from floe_dagster_iceberg.errors import SchemaEvolutionError

# With fewer rows there is nothing to gain.
FEWEST_ROWS: Final = 20_000
# Twice as many values as a dictionary can hold: Parquet gives up at 2 MB.
MOST_VALUES: Final = 2**20
# Blocks of adjacent rows, because equal values often are adjacent, spread over all rows, because not always.
_BLOCKS: Final = 16
_BLOCK_ROWS: Final = 128


def unrepeated_columns(rows: pa.Table) -> set[str]:
    """Columns of plain types whose values, judged by a sample, occur less than twice each."""
    if rows.num_rows < FEWEST_ROWS:
        return set()
    step = (rows.num_rows - _BLOCK_ROWS) // (_BLOCKS - 1)
    sample = pa.concat_tables([rows.slice(number * step, _BLOCK_ROWS) for number in range(_BLOCKS)])
    return {
        field.name
        for field in sample.schema
        if _has_plain_values(field.type) and _hardly_repeats(sample.column(field.name), rows.num_rows)
    }


def _has_plain_values(kind: pa.DataType) -> bool:
    # Booleans have no dictionary in the first place.
    return not (pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind))


def _hardly_repeats(sample: pa.ChunkedArray, rows: int) -> bool:
    """Whether at least half of the values are different: of n values drawn from d, about n² / 2d are repeated."""
    if isinstance(sample.type, pa.BaseExtensionType):
        sample = sample.cast(sample.type.storage_type)
    values = len(sample) - sample.null_count
    repeated = values - len(sample.drop_null().unique())
    # Rows without a value count for nothing.
    return bool(values) and bool(repeated * min(rows, MOST_VALUES) <= values * len(sample))


# A row group waits in memory for each.
MOST_THREADS: Final = 4
# A row group of more than this, compressed, is uploaded before the next one is encoded.
MOST_UPLOADING_BYTES: Final = 16 * 1024 * 1024


class DataFileFactory:
    """The data files of one write.

    Attributes:
        by_location: Each of them, in the order they were begun; None while a file is incomplete.
    """

    def __init__(self, metadata: TableMetadata, schema: Schema, io: FileIO, target_bytes: int) -> None:
        self.target_bytes = target_bytes
        self._metadata, self._schema, self._io = metadata, schema, io
        self._locations = load_location_provider(metadata.location, metadata.properties)
        self._write_id, self._counter = uuid.uuid4(), itertools.count()
        self._bloom_filters = BloomFilters(metadata, schema)
        self.by_location: dict[str, DataFile | None] = {}

    def start(self, partition: PartitionKey | None, first_rows: pa.Table) -> tuple[OutputFile, ParquetFormatWriter]:
        """Begin a file; its first rows decide how its columns are encoded."""
        name = f"{next(self._counter):05d}-0-{self._write_id}.parquet"
        location = self._locations.new_data_location(name, partition)
        self.by_location[location] = None
        output = self._io.new_output(location)
        writer = parquet.open_parquet_writer(
            output,
            self._schema,
            self._metadata.properties,
            without_dictionary=unrepeated_columns(first_rows),
            bloom_filters=self._bloom_filters.options(first_rows.num_rows),
        )
        return output, writer

    def finish(self, output: OutputFile, writer: ParquetFormatWriter, partition: PartitionKey | None) -> None:
        """Close a file and add it to the write."""
        statistics, length = parquet.finish(writer)
        self.by_location[output.location] = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=output.location,
            file_format=FileFormat.PARQUET,
            partition=partition.partition if partition is not None else Record(),
            file_size_in_bytes=length,
            sort_order_id=None,
            spec_id=self._metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )


class RollingFileWriter:
    """Files of one partition, one after the other.

    Attributes:
        encoding: The encoding task that is running for it.
        last_used: Number of the flush that last added rows.
        filled_a_file: Whether one file reached its target size.
    """

    def __init__(self, files: DataFileFactory, partition: PartitionKey | None) -> None:
        self._files, self._partition = files, partition
        self._file: tuple[OutputFile, ParquetFormatWriter] | None = None
        self.encoding: Future[None] | None = None
        self.last_used = 0
        self.filled_a_file = False
        self._lock, self._aborted = threading.Lock(), False

    @property
    def may_have_an_open_file(self) -> bool:
        """Whether a file is open, or about to be opened by a thread."""
        return self._file is not None or (self.encoding is not None and not self.encoding.done())

    def for_same_partition(self) -> "RollingFileWriter":
        return RollingFileWriter(self._files, self._partition)

    def write_row_group(self, rows: pa.Table) -> None:
        """Add a row group, to a new file if none is open; a full file is closed."""
        if self._file is None:
            self._file = self._files.start(self._partition, rows)
        _, writer = self._file
        before = parquet.bytes_written(writer)
        try:
            writer.write(rows)
        except pa.ArrowInvalid as error:
            raise null_error(error) from None
        after = parquet.bytes_written(writer)
        if after - before >= MOST_UPLOADING_BYTES:
            parquet.wait_for_uploads(writer)
        # Half a row group too small is as far from the target as half a row group too large.
        if after + (after - before) // 2 >= self._files.target_bytes:
            self.filled_a_file = True
            self.close()

    def close(self) -> None:
        """Finish the open file, if any."""
        if self._file is not None:
            self._files.finish(*self._file, self._partition)
            # Not before: `abort` needs it until it is closed.
            self._file = None

    def work(self, task: Callable[[], None]) -> None:
        """Run a task in the calling thread, unless the writer was aborted."""
        with self._lock:
            if not self._aborted:
                task()

    def wait(self) -> None:
        """Wait for the running task; raises its error."""
        if self.encoding is not None:
            # A failure stays, for the next call.
            self.encoding.result()
            self.encoding = None

    def abort(self) -> None:
        """Abandon the open file once the running task has ended; later tasks do nothing."""
        with self._lock:
            self._aborted = True
            if self._file is not None:
                parquet.close_quietly(self._file[1])
                self._file = None


class EncoderPool:
    """Encoder threads, started with the first task; a task never waits in a queue."""

    def __init__(self) -> None:
        self.count = min(os.cpu_count() or 1, MOST_THREADS)
        self._pool: ThreadPoolExecutor | None = None
        self._at_work: set[Future[None]] = set()

    def start(self, writer: RollingFileWriter, work: Callable[[], None]) -> None:
        """Run a task of a writer in a thread; blocks until one is free."""
        writer.wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=self.count, thread_name_prefix="floe-encode")
        if len(self._at_work) >= self.count:
            _, self._at_work = wait(self._at_work, return_when=FIRST_COMPLETED)
        writer.encoding = self._pool.submit(writer.work, work)
        self._at_work.add(writer.encoding)

    def run_inline(self, writer: RollingFileWriter, work: Callable[[], None]) -> None:
        """Run a task in this thread; its error is raised by the writer's `wait`, like those of the others."""
        writer.wait()
        done: Future[None] = Future()
        try:
            writer.work(work)
        except Exception as error:  # noqa: BLE001 - raised by `wait`
            done.set_exception(error)
        else:
            done.set_result(None)
        writer.encoding = done

    def stop(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._pool, self._at_work = None, set()


def null_error(error: Exception) -> Exception:
    """The error to raise for Arrow's: columns were checked for NULL before, so it is about a nested field."""
    if "non-nullable" not in str(error):
        return error
    return SchemaEvolutionError(
        f"A field that is required inside its column holds NULL ({error}). "
        "Fill it, or make the field optional with evolve_schema()."
    )
