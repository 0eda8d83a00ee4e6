"""Write one partition with and without OpenTelemetry.

A daily asset replaces one day of a table with 30 days, in a process without an OpenTelemetry SDK, and in one that
exports spans and metrics to a collector as configured in compiled artifacts: in batches, over gRPC, from
background threads. The IO manager is timed inside a real Dagster run, as in `write_partition`. A sample is the
mean of several writes, because single writes vary by more than the target.

Target: at most 1.02 times as long.
"""

from collections.abc import Mapping

from benchmarks.collector import open_collector
from benchmarks.contender import Contender
from benchmarks.lake import FrozenTable
from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, Session

OFF, ON = "telemetry off", "telemetry on"
_TABLES = {OFF: "unwatched", ON: "watched"}
_DAYS, _ROWS_OF_OLD_DAYS = 30, 100
_LIMIT = 1.02


def run(session: Session) -> list[Curve]:
    """Measure."""
    sizes, writes = session.size((1_000, 100_000), (100,)), session.size(10, 1)
    watched = session.crew.start(OURS)
    try:
        with open_collector() as endpoint:
            watched.call("watch", endpoint=endpoint)
            workers = {OFF: session.contender(OURS), ON: watched}
            return _measure(session, workers, _fill(session), list(sizes), writes)
    finally:
        watched.close()


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the target."""
    return [
        Target(f"{size:,} rows: {OFF}", curve.ratio(size, ON, to=OFF), _LIMIT)
        for curve in curves
        for size in (1_000, 100_000)
    ]


def _measure(
    session: Session, workers: Mapping[str, Contender], frozen: FrozenTable, sizes: list[int], writes: int
) -> list[Curve]:
    def check(_: int) -> None:
        session.lake.check_equal_rows(*_TABLES.values())
        frozen.tidy(*_TABLES.values())

    return session.measure(
        "one partition",
        "rows",
        sizes,
        lambda rows: {
            name: _turn(session, worker, frozen, name=name, rows=rows, writes=writes)
            for name, worker in workers.items()
        },
        effort=Effort(rounds=25, least=9, seconds=90),
        after=check,
    )


def _fill(session: Session) -> FrozenTable:
    lake, worker = session.lake.settings, session.contender(OURS)
    worker.call("create", lake=lake, table="days")
    worker.call("age", lake=lake, table="days", first=0, last=_DAYS, rows=_ROWS_OF_OLD_DAYS)
    return session.lake.freeze("days")


def _turn(session: Session, worker: Contender, frozen: FrozenTable, *, name: str, rows: int, writes: int) -> Turn:
    def turn() -> Mapping[str, float]:
        what = {"lake": session.lake.settings, "table": _TABLES[name], "number": _DAYS // 2, "rows": rows}
        seconds = 0.0
        for _ in range(writes):
            frozen.thaw(_TABLES[name])
            seconds += worker.call("write_partition", **what, seen=True)["seconds"]
        return {"seconds": seconds / writes}

    return turn
