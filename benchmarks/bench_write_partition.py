"""Write one partition of an old table.

A daily asset replaces one day of a table with 10, 100, 500 and 2,000 days, each written by its own commit. Our
IO manager and the peer's are timed inside a real Dagster run, without Dagster's own time. PyIceberg by hand is an
asset that calls `load_table` and `overwrite` itself, with an open catalog. "ours, new process" opens the table
for the first time and has to connect, as in a run with its own process; "ours" has opened it before, as in a
process that works through a backfill. The limit is the same rows written as one Parquet file by
`pyarrow.parquet.write_table`, which builds a dictionary for every column.

The old tables are created by our own writer. The one for PyIceberg and the peer has
`commit.manifest-merge.enabled=false`, so that its manifests are as they would have written them. Every timed
write starts with the same version of the table.

The targets are about the cost of a commit, which dominates at 1,000 rows; with a million rows, writing the
Parquet file dominates for all contenders. At 10 days: at most 0.7 times as long as PyIceberg and 0.6 times as
long as the peer; at 500 days: at most 0.12 times as long as either; from 10 to 2,000 days: at most 4 times slower.
"""

import itertools
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from benchmarks.lake import FrozenTable
from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import LIMIT, NEW_PROCESS, OURS, PEER, RAW, Session

# The table of each contender.
_TABLES = {OURS: "ours", NEW_PROCESS: "new_process", RAW: "raw", PEER: "peer"}
_ROWS_OF_OLD_DAYS = 100
_OLDEST = 2000
# PyIceberg takes seconds per write there.
_SLOW = Effort(rounds=9, least=4, seconds=1, warm_ups=0)
History = Mapping[str, FrozenTable]


def run(session: Session) -> list[Curve]:
    """Measure."""
    ages = session.size((10, 100, 500, _OLDEST), (3, 6))
    histories = _age_tables(session, ages)
    sizes = session.size((1_000, 100_000, 1_000_000), (100,))
    return [curve for rows in sizes for curve in _measure(session, histories, rows)]


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets, at every number of rows and for both of ours."""
    return [target for curve in curves for mine in (OURS, NEW_PROCESS) for target in _targets(curve, mine)]


def _targets(curve: Curve, mine: str) -> list[Target]:
    what = f"{curve.title}, {mine}"
    against = [
        Target(
            f"{what}, {days} days: {other}",
            curve.ratio(days, mine, to=other),
            limit,
            floor=curve.ratio(days, LIMIT, to=other),
        )
        for days, other, limit in ((10, RAW, 0.7), (10, PEER, 0.6), (500, RAW, 0.12), (500, PEER, 0.12))
    ]
    growth = curve.growth(mine, start=10, end=_OLDEST)
    return [*against, Target(f"{what}, 2,000 days: itself at 10", growth, 4.0)]


def _measure(session: Session, histories: Mapping[int, History], rows: int) -> list[Curve]:
    return session.measure(
        f"{rows:,} rows",
        "days in the table",
        list(histories),
        lambda age: _turns(session, histories[age], age // 2, rows),
        effort=lambda age: _SLOW if age == _OLDEST else Effort(rounds=9, least=5, seconds=15),
        after=lambda age: _check(session, histories[age]),
    )


def _age_tables(session: Session, ages: tuple[int, ...]) -> dict[int, History]:
    # Two thousand commits to each take minutes, so both are created in parallel.
    lake, second = session.lake.settings, session.crew.start(OURS)
    session.contender(OURS).call("create", lake=lake, table="merged")
    unmerged = {"commit.manifest-merge.enabled": "false"}
    session.contender(OURS).call("create", lake=lake, table="plain", properties=unmerged)
    workers = {"merged": session.contender(OURS), "plain": second}
    histories: dict[int, History] = {}
    with ThreadPoolExecutor() as threads:
        for first, last in itertools.pairwise((0, *ages)):
            days = {"lake": lake, "first": first, "last": last, "rows": _ROWS_OF_OLD_DAYS}
            aging = [threads.submit(worker.call, "age", table=table, **days) for table, worker in workers.items()]
            for done in aging:
                done.result()
            merged, plain = session.lake.freeze("merged"), session.lake.freeze("plain")
            histories[last] = {OURS: merged, NEW_PROCESS: merged, RAW: plain, PEER: plain}
    second.close()
    return histories


def _turns(session: Session, history: History, number: int, rows: int) -> dict[str, Turn]:
    def write(name: str, worker: str, **how: bool) -> Turn:
        def turn() -> Mapping[str, float]:
            history[name].thaw(_TABLES[name])
            what = {"lake": session.lake.settings, "table": _TABLES[name], "number": number, "rows": rows}
            return session.contender(worker).call("write_partition", **what, **how)

        return turn

    def limit() -> Mapping[str, float]:
        folder = str(session.lake.folder)
        return session.contender(LIMIT).call("write_parquet", folder=folder, number=number, rows=rows)

    return {
        OURS: write(OURS, OURS, seen=True),
        NEW_PROCESS: write(NEW_PROCESS, OURS, seen=False),
        RAW: write(RAW, RAW),
        PEER: write(PEER, PEER),
        LIMIT: limit,
    }


def _check(session: Session, history: History) -> None:
    names = [table for name, table in _TABLES.items() if session.has_peer or name != PEER]
    session.lake.check_equal_rows(*names)
    for frozen in {id(each): each for each in history.values()}.values():
        frozen.tidy(*names)
