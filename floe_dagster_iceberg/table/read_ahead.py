"""Small files read while the rows of others are being written."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

import pyarrow as pa

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Whoever takes rows in works on a piece of this size about as long as on one of a hundredth of it.
_PIECE_BYTES: Final = 32 * 1024 * 1024
# As much as is encoded in one go, so that reading does not have to stop meanwhile; a few times that in memory.
_WAITING_BYTES: Final = 32 * 1024 * 1024


def read_ahead(
    read: Callable[[Item], Answer], items: Iterable[Item], *, size: Callable[[Item], int], threads: int
) -> Iterator[Answer]:
    """Read one item after the other; while an answer is used, the next ones are read.

    Args:
        read: Reads an item; called in other threads.
        items: What is to be read.
        size: Bytes of an item. Few large answers wait to be used, or many small ones.
        threads: How many are read at once.
    """
    waiting: deque[tuple[Future[Answer], int]] = deque()
    waiting_bytes = 0
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for item in items:
            waiting.append((pool.submit(read, item), size(item)))
            waiting_bytes += size(item)
            while len(waiting) > threads and waiting_bytes > _WAITING_BYTES:
                answer, taken = waiting.popleft()
                waiting_bytes -= taken
                yield answer.result()
        while waiting:
            yield waiting.popleft()[0].result()


def in_larger_pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in fewer tables; neighbours with different schemas stay apart."""
    gathered: list[pa.Table] = []
    for table in tables:
        if gathered and table.schema != gathered[0].schema:
            yield _joined(gathered)
            gathered = []
        gathered.append(table)
        if sum(each.nbytes for each in gathered) >= _PIECE_BYTES:
            yield _joined(gathered)
            gathered = []
    if gathered:
        yield _joined(gathered)


def _joined(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
