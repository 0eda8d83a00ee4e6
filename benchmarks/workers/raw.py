"""PyIceberg by hand, and the limit: the same rows as plain Parquet files. Does not import this package."""

import itertools
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from dagster import mem_io_manager
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import And, EqualTo, GreaterThanOrEqual, LessThan, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DateType, DoubleType, IntegerType, LongType, NestedField, StringType
from sqlalchemy.exc import OperationalError

from benchmarks.workers.pipeline import Pipeline, Stopwatch
from benchmarks.workers.protocol import serve
from benchmarks.workers.race import race
from benchmarks.workers.rows import daily_rows, day_of, orders_of, wide_rows
from benchmarks.workers.streaming import time_stream

_CATALOGS: dict[str, Catalog] = {}
# PyIceberg's defaults.
_COMPRESSION: Any = {"compression": "zstd", "compression_level": 3}
_ROW_GROUP = 1024 * 1024
_FILES_PER_COMMIT, _WIDE = 50, 30


def new_catalog(lake: Mapping[str, str]) -> Catalog:
    """A new catalog, as in a new process."""
    return load_catalog("floe", **{"type": "sql", **lake})


def open_catalog(lake: Mapping[str, str]) -> Catalog:
    """One catalog per lake, kept open as by-hand code would."""
    if lake["uri"] not in _CATALOGS:
        _CATALOGS[lake["uri"]] = new_catalog(lake)
    return _CATALOGS[lake["uri"]]


def _in_a_run(table: str, number: int, work: Callable[[], object]) -> Mapping[str, Any]:
    """Seconds of an asset's own storage code."""
    return Pipeline(mem_io_manager, Stopwatch()).by_hand(table, work, day=day_of(number).isoformat())


def write_partition(lake: Mapping[str, str], table: str, number: int, rows: int) -> Mapping[str, Any]:
    """Replace one day."""
    frame, catalog = daily_rows(number, rows, version=1), open_catalog(lake)

    def overwrite() -> None:
        where = EqualTo(term=Reference("day"), value=literal(day_of(number)))
        catalog.load_table(("bench", table)).overwrite(frame, overwrite_filter=where)

    return _in_a_run(table, number, overwrite)


def read_partition(
    lake: Mapping[str, str], table: str, number: int, columns: list[str] | None, *, seen: bool
) -> Mapping[str, Any]:
    """Load one day, with an open catalog or a new one."""
    known, found = open_catalog(lake), list[pa.Table]()

    def read() -> None:
        catalog = known if seen else new_catalog(lake)
        where = And(
            GreaterThanOrEqual(term=Reference("day"), value=literal(day_of(number))),
            LessThan(term=Reference("day"), value=literal(day_of(number) + timedelta(days=1))),
        )
        scan = catalog.load_table(("bench", table)).scan(row_filter=where, selected_fields=tuple(columns or ("*",)))
        found.append(scan.to_arrow())

    measured = _in_a_run(table, number, read)
    return {**measured, "rows": found[0].num_rows, "columns": found[0].num_columns}


def append_day(lake: Mapping[str, str], table: str, number: int, rows: int) -> Mapping[str, Any]:
    """Append the rows of one day."""
    frame, catalog = daily_rows(number, rows), open_catalog(lake)
    return _in_a_run(table, number, lambda: catalog.load_table(("bench", table)).append(frame))


def first_write(lake: Mapping[str, str], table: str, number: int, rows: int) -> Mapping[str, Any]:
    """Create a table and append the rows of one day."""
    frame, catalog = daily_rows(number, rows), open_catalog(lake)
    by_day = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=DayTransform(), name="day_day"))
    kinds = (LongType(), DateType(), DoubleType(), IntegerType(), StringType(), StringType())
    columns = enumerate(zip(frame.column_names, kinds, strict=True), start=1)
    schema = Schema(*(NestedField(number, name, kind, required=False) for number, (name, kind) in columns))

    def create() -> None:
        catalog.create_table(("bench", table), schema, partition_spec=by_day).append(frame)

    return _in_a_run(table, number, create)


def upsert_day(lake: Mapping[str, str], table: str, number: int, rows: int) -> Mapping[str, Any]:
    """Update all rows of one day by their keys."""
    frame, catalog = daily_rows(number, rows, version=1), open_catalog(lake)
    started = time.perf_counter()
    catalog.load_table(("bench", table)).upsert(frame, join_cols=["id", "day"])
    return {"seconds": time.perf_counter() - started}


def upsert(lake: Mapping[str, str], table: str, ids: list[int], days: int) -> Mapping[str, Any]:
    """Update and add rows by key."""
    frame, catalog = orders_of(pa.array(range(*ids), pa.int64()), days=days, version=1), open_catalog(lake)
    started = time.perf_counter()
    catalog.load_table(("bench", table)).upsert(frame, join_cols=["id"])
    return {"seconds": time.perf_counter() - started}


def stream(lake: Mapping[str, str], table: str, total_bytes: int, batch_rows: int) -> Mapping[str, Any]:
    """Append a long stream."""
    target = open_catalog(lake).load_table(("bench", table))
    return time_stream(target.append, total_bytes=total_bytes, batch_rows=batch_rows)


def stream_parquet(folder: str, total_bytes: int, batch_rows: int) -> Mapping[str, Any]:
    """Write the same stream as a file: the lower limit."""

    def write(reader: pa.RecordBatchReader) -> None:
        with pq.ParquetWriter(Path(folder) / "limit.parquet", reader.schema, **_COMPRESSION) as file:
            # Row groups of the size of `write_table`; one per batch would take longer.
            batches = max(1, _ROW_GROUP // batch_rows)
            while group := list(itertools.islice(reader, batches)):
                file.write_table(pa.Table.from_batches(group))

    return time_stream(write, total_bytes=total_bytes, batch_rows=batch_rows)


def write_parquet(folder: str, number: int, rows: int) -> Mapping[str, Any]:
    """Write the rows of a day as a file."""
    frame = daily_rows(number, rows, version=1)
    started = time.perf_counter()
    pq.write_table(frame, Path(folder) / "limit.parquet", **_COMPRESSION)
    return {"seconds": time.perf_counter() - started}


def read_parquet(file: str, columns: list[str] | None) -> Mapping[str, Any]:
    """Read the file that holds a day."""
    started = time.perf_counter()
    found = pq.read_table(file, columns=columns, partitioning=None)
    return {"seconds": time.perf_counter() - started, "rows": found.num_rows, "columns": found.num_columns}


def measure_tables(lake: Mapping[str, str], tables: list[str]) -> Mapping[str, Any]:
    """Inspect files, manifests and snapshots of every table, as a maintenance script would."""
    catalog = open_catalog(lake)
    started = time.perf_counter()
    files = 0
    for name in tables:
        table = catalog.load_table(("bench", name))
        files += table.inspect.files().num_rows
        table.inspect.manifests()
        table.inspect.snapshots()
    return {"seconds": time.perf_counter() - started, "files": files}


def fill_small_files(lake: Mapping[str, str], table: str, files: int, file_bytes: int) -> Mapping[str, Any]:
    """Create a table with a number of files of about the given size."""
    rows = _rows_in(file_bytes)
    one_file = wide_rows(0, rows, _WIDE)
    split = {TableProperties.WRITE_TARGET_FILE_SIZE_BYTES: str(one_file.nbytes)}
    target = open_catalog(lake).create_table(("bench", table), one_file.schema, properties=split)
    for number, start in enumerate(range(0, files, _FILES_PER_COMMIT)):
        target.append(wide_rows(number, rows * min(_FILES_PER_COMMIT, files - start), _WIDE))
    with target.transaction() as transaction:
        transaction.remove_properties(*split)
    return {}


def write_together(lake: Mapping[str, str], table: str, writers: int, each: int) -> Mapping[str, Any]:
    """Append from many processes at once."""

    def append(rows: pa.Table) -> bool:
        # After a fork, every process needs its own connection.
        catalog = new_catalog(lake)
        try:
            catalog.load_table(("bench", table)).append(rows)
        except (CommitFailedException, OperationalError):
            return False
        finally:
            catalog.close()
        return True

    return race(append, writers=writers, each=each)


def _rows_in(file_bytes: int) -> int:
    """The number of wide rows in a Parquet file of that size."""
    rows = 1_000
    for _ in range(3):
        file = pa.BufferOutputStream()
        pq.write_table(wide_rows(1, rows, _WIDE), file, **_COMPRESSION)
        rows = max(1, file_bytes * rows // int(file.tell()))
    return rows


if __name__ == "__main__":
    serve(
        {
            operation.__name__: operation
            for operation in (
                write_partition,
                read_partition,
                append_day,
                first_write,
                upsert_day,
                upsert,
                stream,
                stream_parquet,
                write_parquet,
                read_parquet,
                measure_tables,
                fill_small_files,
                write_together,
            )
        }
    )
