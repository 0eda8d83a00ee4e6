"""Rows that are read while others are being written come in order, and not too many of them."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from floe_dagster_iceberg.table.maintenance.compaction import in_larger_pieces, read_ahead

MIB = 1024 * 1024


def test_results_come_in_the_order_of_the_items() -> None:
    def read(number: int) -> int:
        time.sleep(0.02 if number == 0 else 0)
        return number

    assert list(read_ahead(read, range(50), size=lambda _: 1, threads=4)) == list(range(50))


def test_of_large_items_no_more_are_read_than_there_are_threads_for() -> None:
    begun: list[int] = []
    results = read_ahead(begun.append, range(10), size=lambda _: 64 * MIB, threads=2)

    next(results)
    time.sleep(0.05)

    assert len(begun) <= 3
    results.close()


def test_small_items_are_read_while_a_result_is_used() -> None:
    all_read = threading.Event()
    results = read_ahead(
        lambda number: all_read.set() if number == 9 else None, range(40), size=lambda _: MIB, threads=1
    )

    with ThreadPoolExecutor(1) as consumer:
        consumer.submit(next, results).result()
        assert all_read.wait(timeout=10)


def test_what_cannot_be_read_is_raised_in_its_turn() -> None:
    def read(number: int) -> int:
        if number == 3:
            raise FileNotFoundError(number)
        return number

    results = read_ahead(read, range(10), size=lambda _: 1, threads=2)

    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(FileNotFoundError):
        next(results)


def test_small_tables_become_few_with_the_same_rows() -> None:
    tables = [pa.table({"id": [number]}) for number in range(100)]

    (joined,) = in_larger_pieces(tables)

    assert joined.column("id").to_pylist() == list(range(100))
    assert joined.column("id").num_chunks == 1


def test_tables_of_different_schemas_stay_apart() -> None:
    plain, large = pa.table({"a": ["x"]}), pa.table({"a": pa.array(["y"], pa.large_string())})

    assert [piece.num_rows for piece in in_larger_pieces([plain, plain, large, plain])] == [2, 1, 1]
