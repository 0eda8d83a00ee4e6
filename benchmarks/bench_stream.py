"""Append a stream of up to 2 GB: time and memory.

A `RecordBatchReader` is appended to an unpartitioned table with the table manager and with PyIceberg's `append`.
The limit writes the same batches with `pyarrow.parquet.ParquetWriter`. Each of them is a new process, whose
memory is measured relative to just before the write. Sizes are those of the rows in memory.

Targets at 2 GB: at most 512 MiB more memory, and at most 1.5 times as long as the limit.
"""

from collections.abc import Mapping

from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import LIMIT, OURS, RAW, Session

_MEGABYTE = 1_000_000
_TABLES = {OURS: "ours", RAW: "raw"}


class LostRowsError(AssertionError):
    """Contenders ended with different numbers of rows."""


def run(session: Session) -> list[Curve]:
    """Measure."""
    return session.measure(
        "a stream",
        "MB",
        session.size((250, 1_000, 2_000), (2,)),
        lambda size: _turns(session, size),
        effort=Effort(rounds=3, least=2, seconds=60, warm_ups=0),
        after=lambda _: _check(session),
        units={"seconds": "s", "peak_mib": "MiB above the start"},
    )


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    seconds, memory = curves
    return [
        Target("2 GB: memory above the start", memory.median(2_000, OURS), 512, unit="MiB"),
        Target("2 GB: Parquet limit", seconds.ratio(2_000, OURS, to=LIMIT), 1.5),
    ]


def _turns(session: Session, size: int) -> dict[str, Turn]:
    what = {"total_bytes": size * _MEGABYTE, "batch_rows": session.size(64_000, 1_000)}

    def append(name: str) -> Turn:
        def turn() -> Mapping[str, float]:
            table = _TABLES[name]
            session.lake.drop(table)
            session.contender(OURS).call("create", lake=session.lake.settings, table=table, partitioned=False)
            return _in_new_process(session, name, "stream", lake=session.lake.settings, table=table, **what)

        return turn

    folder = str(session.lake.folder)
    return {
        OURS: append(OURS),
        RAW: append(RAW),
        LIMIT: lambda: _in_new_process(session, LIMIT, "stream_parquet", folder=folder, **what),
    }


def _in_new_process(session: Session, name: str, operation: str, **arguments: object) -> Mapping[str, float]:
    worker = session.crew.start(name)
    try:
        return worker.call(operation, **arguments)
    finally:
        worker.close()


def _check(session: Session) -> None:
    counts = {name: session.lake.table(table).scan().count() for name, table in _TABLES.items()}
    if len(set(counts.values())) != 1:
        raise LostRowsError(f"Contenders have different numbers of rows: {counts}.")
    session.lake.delete_files(*_TABLES.values())
