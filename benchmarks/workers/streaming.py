"""A long stream of rows, and the time and memory of writing it."""

import itertools
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.workers.rows import orders

_BATCHES_IN_STORE = 4
_STATUS = Path("/proc/self/status")


def time_stream(
    write: Callable[[pa.RecordBatchReader], object], *, total_bytes: int, batch_rows: int
) -> Mapping[str, Any]:
    """Write a stream of the given size in memory; return the seconds and the additional memory of the process.

    The process must not have written one before: the most memory it ever had is all that can be asked for.
    """
    reader = _open_stream(total_bytes, batch_rows)
    before, started = peak_mib(), time.perf_counter()
    write(reader)
    return {"seconds": time.perf_counter() - started, "peak_mib": peak_mib() - before}


def _open_stream(total_bytes: int, batch_rows: int) -> pa.RecordBatchReader:
    """Repeat the same few batches, so that creating them costs nothing."""
    store = [
        orders(number * batch_rows, batch_rows, days=1).combine_chunks().to_batches()[0]
        for number in range(_BATCHES_IN_STORE)
    ]
    batches = -(-total_bytes // store[0].nbytes)
    return pa.RecordBatchReader.from_batches(store[0].schema, itertools.islice(itertools.cycle(store), batches))


def peak_mib() -> float:
    """The peak memory of this process."""
    try:
        status = _STATUS.read_text()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    # Not ru_maxrss: on Linux a process inherits the peak of its parent.
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
