"""Append to one table from many writers: commits and time.

Up to 16 processes append 10 times each, at the same time, to one table: our IO manager and the peer's in Dagster
runs, and PyIceberg's `append` by hand, each with its default number of retries. The catalog's database timeout
is long enough to not cause failures. A write counts as lost if it reports success and its rows do not exist
exactly once, or the other way round. The times of ours and the peer's include a Dagster run per write.

Target: 160 of 160 committed, nothing lost.
"""

from collections import Counter
from collections.abc import Mapping

from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, PEER, RAW, Session
from benchmarks.workers.race import ROWS_OF_A_WRITE
from benchmarks.workers.rows import day_of

_EACH = 10
_TABLES = {OURS: "ours", RAW: "raw", PEER: "peer"}
_MOST = 16


def run(session: Session) -> list[Curve]:
    """Measure."""
    return session.measure(
        "10 appends each",
        "writers",
        session.size((4, 8, _MOST), (2,)),
        lambda writers: _turns(session, writers),
        effort=Effort(rounds=2, least=1, seconds=20, warm_ups=0),
        units={"seconds": "s", "committed": "writes committed", "lost": "writes lost or doubled"},
    )


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    _, committed, lost = curves
    return [
        Target("16 writers: committed", committed.median(_MOST, OURS), _MOST * _EACH, unit="writes", at_least=True),
        Target("16 writers: lost or doubled", lost.median(_MOST, OURS), 0, unit="writes"),
    ]


def _turns(session: Session, writers: int) -> dict[str, Turn]:
    def write(name: str) -> Turn:
        def turn() -> Mapping[str, float]:
            table = _TABLES[name]
            session.lake.drop(table)
            session.contender(OURS).call("create", lake=session.lake.settings, table=table, partitioned=False)
            what = {"lake": session.lake.settings, "table": table, "writers": writers, "each": session.size(_EACH, 2)}
            measured = session.contender(name).call("write_together", **what)
            committed = set(measured["committed"])
            return {
                "seconds": measured["seconds"],
                "committed": len(committed),
                "lost": _lost(session, table, committed),
            }

        return turn

    return {name: write(name) for name in _TABLES}


def _lost(session: Session, table: str, committed: set[int]) -> int:
    """The number of writes whose result does not match the table."""
    days = session.lake.table(table).scan(selected_fields=("day",)).to_arrow().column("day").to_pylist()
    found = Counter(days)
    numbers = {day_of(number): number for number in range(10_000)}
    wrong = {numbers[day] for day, count in found.items() if numbers[day] not in committed or count != ROWS_OF_A_WRITE}
    return len(wrong | {number for number in committed if day_of(number) not in found})
