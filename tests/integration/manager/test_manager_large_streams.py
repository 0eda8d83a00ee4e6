"""Streams longer than a file: files of the size that was asked for, side by side once there is much to write."""

import threading
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from support.faulty_io import failing, faulty_lake
from support.lake import Lake
from support.place import Place
from support.table_facts import live_files, reachable_files

from floe_dagster_iceberg.errors import WriteError
from floe_dagster_iceberg.models import CompactionStrategy, MaintenanceStatus, TableIdentifier, WriteMode
from floe_dagster_iceberg.models.partition_slice import ALL_ROWS
from floe_dagster_iceberg.table.arrow_input import ArrowRows
from floe_dagster_iceberg.table.commit.commit import CommitBudget
from floe_dagster_iceberg.table.manager import IcebergTableManager
from floe_dagster_iceberg.table.write.exactly_once import write_once
from floe_dagster_iceberg.table.write.rolling_files import MOST_THREADS
from floe_dagster_iceberg.table.write.row_scope import RowScope
from floe_dagster_iceberg.table.write.write import TableWrite

T = "bronze.numbers"
TARGET = 8_000_000
ROWS = 500_000
BATCHES = 20
SCHEMA = pa.schema([("n", pa.int64()), ("noise", pa.float64())])


def batches(count: int) -> Iterator[pa.RecordBatch]:
    noise = np.random.default_rng(7)
    for start in range(0, count * ROWS, ROWS):
        yield pa.record_batch([np.arange(start, start + ROWS), noise.random(ROWS)], schema=SCHEMA)


def stream(count: int = BATCHES) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, batches(count))


@pytest.fixture
def lake(place: Place) -> Iterator[Lake]:
    with faulty_lake(place) as lake:
        yield lake


@pytest.fixture
def manager(lake: Lake) -> IcebergTableManager:
    manager = IcebergTableManager(lake.catalog)
    manager.create_table(T, SCHEMA, properties={"write.target-file-size-bytes": str(TARGET)})
    return manager


def encoding_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("floe-encode")]


def sizes(lake: Lake) -> list[int]:
    return sorted(file.file_size_in_bytes for file in live_files(lake.table(T)).values())


def test_all_but_the_last_file_of_each_thread_are_of_the_size_that_was_asked_for(
    lake: Lake, manager: IcebergTableManager
) -> None:
    manager.append(T, stream())

    nearly_all = sizes(lake)[MOST_THREADS:]
    assert len(nearly_all) > 5
    assert all(0.6 * TARGET < size < 1.4 * TARGET for size in nearly_all)
    numbers = lake.table(T).scan().to_arrow()["n"].to_numpy()
    assert np.array_equal(np.sort(numbers), np.arange(BATCHES * ROWS))
    assert not encoding_threads()


def test_what_fits_into_one_file_is_one_file_in_the_order_it_came_in(lake: Lake, manager: IcebergTableManager) -> None:
    manager.append(T, stream(1))

    assert len(sizes(lake)) == 1
    assert np.array_equal(lake.table(T).scan().to_arrow()["n"].to_numpy(), np.arange(ROWS))


def test_the_same_stream_becomes_the_same_files(lake: Lake, manager: IcebergTableManager) -> None:
    manager.append(T, stream())
    first = sizes(lake)
    manager.overwrite(T, stream())

    assert sizes(lake) == first


def test_files_of_rows_in_order_follow_each_other(lake: Lake, manager: IcebergTableManager) -> None:
    table, scope = TableIdentifier.from_string(T), RowScope(ALL_ROWS)
    write = TableWrite(table, WriteMode.APPEND, scope, "key", sort_by=("n",))
    write_once(lake.catalog, ArrowRows(stream().read_all()), write, CommitBudget(retries=0, base_delay_seconds=0.1))

    ranges = sorted(
        (file["readable_metrics"]["n"]["lower_bound"], file["readable_metrics"]["n"]["upper_bound"])
        for file in lake.table(T).inspect.files().to_pylist()
    )
    assert len(ranges) > 10
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    del manager


def test_a_compacted_partition_has_one_file_that_is_not_full(lake: Lake, manager: IcebergTableManager) -> None:
    for _ in range(4):
        manager.append(T, stream(2))
    strategy = CompactionStrategy(target_file_size_bytes=12_000_000, max_concurrent_file_group_rewrites=1)

    manager.compact_table(T, strategy)

    assert all(size > 0.75 * 12_000_000 for size in sizes(lake)[1:])
    assert manager.compact_table(T, strategy).status is MaintenanceStatus.SKIPPED


@pytest.mark.lakes
@pytest.mark.parametrize("kth", [1, 3, 9])
def test_a_file_that_fails_in_a_thread_fails_the_write_and_leaves_nothing(
    lake: Lake, manager: IcebergTableManager, kth: int
) -> None:
    with failing("*.parquet", kth=kth), pytest.raises(WriteError):
        manager.append(T, stream())

    assert lake.files() == reachable_files(lake.table(T))
    assert not encoding_threads()


@pytest.mark.lakes
def test_a_stream_that_breaks_leaves_nothing(lake: Lake, manager: IcebergTableManager) -> None:
    def breaking() -> Iterator[pa.RecordBatch]:
        yield from batches(BATCHES // 2)
        raise OSError("the source went away")

    with pytest.raises(WriteError, match="the source went away"):
        manager.append(T, pa.RecordBatchReader.from_batches(SCHEMA, breaking()))

    assert lake.files() == reachable_files(lake.table(T))
