"""The rows in which two sets of rows differ, exactly and in bounded memory.

Rows are counted: added ones as 1, removed ones as -1, and what is left is the difference. If there are more than fit
into memory, they are first split by a hash into files of a temporary folder. Equal rows are in the same file.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType

from floe_dagster_iceberg.table.write.merge_source import comparable

ROWS_IN_MEMORY: Final = 1_000_000
_MOST_BUCKETS: Final = 256
_LARGEST_HASH: Final = 2**31 - 1
_HASH: Final[BucketTransform[Any]] = BucketTransform(_LARGEST_HASH)
_SIGN: Final = "__sign"
_ROW: Final = "__row"


class RowDifference:
    """Collects rows with a sign, and returns those that do not cancel each other out.

    Args:
        expected_rows: How many rows will be added, at most.
        columns: The columns by which rows are equal; others are carried along.
        rows_in_memory: How many rows are compared at once.
    """

    def __init__(self, expected_rows: int, columns: Sequence[str], *, rows_in_memory: int = ROWS_IN_MEMORY) -> None:
        self._columns = list(columns)
        self._buckets = min(-(-expected_rows // rows_in_memory), _MOST_BUCKETS)
        self._in_memory: list[pa.Table] = []
        self._folder: TemporaryDirectory[str] | None = None
        self._writers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if self._buckets > 1:
            self._folder = TemporaryDirectory(prefix="floe-changes-")
        return self

    def __exit__(self, *_: object) -> None:
        self._close_writers()
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, rows: pa.Table, sign: int) -> None:
        """Add rows (1) or removed rows (-1)."""
        signed = rows.append_column(_SIGN, pa.repeat(pa.scalar(sign, pa.int64()), rows.num_rows))
        if self._folder is None:
            self._in_memory.append(signed)
            return
        buckets = _buckets_of(rows.select(self._columns), self._buckets)
        for bucket in buckets.unique().to_pylist():
            if bucket not in self._writers:
                self._writers[bucket] = pa.ipc.new_file(f"{self._folder.name}/{bucket:03}.arrow", signed.schema)
            self._writers[bucket].write_table(signed.filter(pc.equal(buckets, bucket)))

    def rows(self) -> Iterator[tuple[int, pa.Table]]:
        """The rows that are left, with their sign, each as often as it is left."""
        if self._folder is None:
            if self._in_memory:
                yield from self._remaining(pa.concat_tables(self._in_memory))
            return
        self._close_writers()
        for path in sorted(Path(self._folder.name).iterdir()):
            with pa.memory_map(str(path)) as source:
                yield from self._remaining(pa.ipc.open_file(source).read_all())

    def _remaining(self, signed: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        keys = key_columns(signed.select(self._columns))
        left = (
            keys.append_column(_SIGN, signed.column(_SIGN))
            .append_column(_ROW, pa.arange(0, signed.num_rows))
            .group_by(keys.column_names)
            .aggregate([(_SIGN, "sum"), (_ROW, "max")])
        )
        for sign in (-1, 1):
            kept = left.filter(pc.greater(pc.multiply(left.column(f"{_SIGN}_sum"), sign), 0))
            rows = kept.column(f"{_ROW}_max").to_pylist()
            counts = kept.column(f"{_SIGN}_sum").to_pylist()
            found = sorted(row for row, count in zip(rows, counts, strict=True) for _ in range(abs(count)))
            if found:
                yield sign, signed.take(pa.array(found, pa.int64())).drop_columns(_SIGN)

    def _close_writers(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def key_columns(rows: pa.Table) -> pa.Table:
    """Columns that Arrow can group by, under names that no column has; lists, maps and structs become text."""
    flat = comparable(rows)
    columns = [
        pa.array(map(repr, column.to_pylist()), pa.large_string()) if pa.types.is_nested(column.type) else column
        for column in flat.columns
    ]
    return pa.Table.from_arrays(columns, names=[f"key_{number}" for number in range(len(columns))])


def _buckets_of(rows: pa.Table, number: int) -> pa.ChunkedArray:
    """A bucket for each row, the same for equal rows; how well it spreads only decides about memory."""
    total: Any = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    for column in comparable(rows).columns:
        if (hashed := _hash(column.combine_chunks())) is not None:
            total = pc.bit_wise_and(pc.add(pc.multiply(total, 31), hashed), _LARGEST_HASH)
    return pc.subtract(total, pc.multiply(pc.divide(total, number), number))


def _hash(column: pa.Array) -> pa.Array | None:
    """Iceberg's hash for bucket partitions; None for types that have none."""
    if pa.types.is_floating(column.type):
        column = column.view(pa.int32() if column.type == pa.float32() else pa.int64())
    elif pa.types.is_boolean(column.type):
        column = column.cast(pa.int32())
    elif pa.types.is_nested(column.type) or pa.types.is_null(column.type):
        return None
    # The type of the source is not used for it.
    return pc.fill_null(_HASH.pyarrow_transform(LongType())(column), 0).cast(pa.int64())
