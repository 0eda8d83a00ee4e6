"""Many processes that write to one table at the same time, forked from one that has imported everything."""

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.workers.rows import daily_rows

ROWS_OF_A_WRITE = 10
_PATIENCE_SECONDS = 600


def race(append: Callable[[pa.Table], bool], *, writers: int, each: int) -> Mapping[str, Any]:
    """Let every writer append several times; return the duration and the writes that reported success.

    A write is known by its number, which is also the day of its rows.
    """
    fork = multiprocessing.get_context("fork")
    start = fork.Barrier(writers + 1)
    with tempfile.TemporaryDirectory() as folder:
        notes = [Path(folder) / str(writer) for writer in range(writers)]
        processes = [
            fork.Process(target=_write, args=(append, writer, each, start, notes[writer])) for writer in range(writers)
        ]
        for process in processes:
            process.start()
        start.wait(_PATIENCE_SECONDS)
        started = time.perf_counter()
        for process in processes:
            process.join(_PATIENCE_SECONDS)
            process.kill()
        seconds = time.perf_counter() - started
        committed = [number for note in notes if note.exists() for number in json.loads(note.read_text())]
    return {"seconds": seconds, "committed": sorted(committed)}


def _write(append: Callable[[pa.Table], bool], writer: int, each: int, start: Any, note: Path) -> None:
    numbers = range(writer * each, (writer + 1) * each)
    start.wait(_PATIENCE_SECONDS)
    note.write_text(json.dumps([number for number in numbers if append(daily_rows(number, ROWS_OF_A_WRITE))]))
