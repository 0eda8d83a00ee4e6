"""Read one partition of many, with all 30 columns or 3 of them.

Tables with 365 and 3,650 days, written with a hundred days per commit. Our IO manager and the peer's are timed
inside a real Dagster run that loads one day as an Arrow table. PyIceberg by hand is an asset that calls
`load_table`, `scan` and `to_arrow` itself. "ours" has already loaded this version of the table, and "raw
PyIceberg" has an open catalog. "new process" has no caches, and its time includes the connection to the
catalog, as in a run with its own process; the peer connects in every run. The limit is
`pyarrow.parquet.read_table` of the one file with that day.

Targets: at most 1.05 times as long as PyIceberg by hand, in each of the two cases, and 0.8 times as long as the
peer.
"""

from collections.abc import Mapping, Sequence

from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import LIMIT, NEW_PROCESS, OURS, PEER, RAW, RAW_NEW_PROCESS, Session
from benchmarks.workers.rows import day_of

_COLUMNS = 30
_PROJECTIONS = {"all 30 columns": None, "3 of 30 columns": ["id", "day", "m0"]}


class WrongRowsError(AssertionError):
    """A contender read the wrong rows."""


def run(session: Session) -> list[Curve]:
    """Measure."""
    days, rows = session.size((365, 3650), (3, 5)), session.size(1_000, 10)
    for count in days:
        session.contender(OURS).call(
            "fill_wide", lake=session.lake.settings, table=f"wide{count}", days=count, rows=rows, columns=_COLUMNS
        )
    return [curve for title in _PROJECTIONS for curve in _measure(session, title, days, rows)]


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    return [
        Target(f"{mine}, {curve.title}, {days:,} days: {other}", curve.ratio(days, mine, to=other), limit)
        for mine, raw in ((OURS, RAW), (NEW_PROCESS, RAW_NEW_PROCESS))
        for curve in curves
        for days in (365, 3650)
        for other, limit in ((raw, 1.05), (PEER, 0.8))
    ]


def _measure(session: Session, title: str, days: Sequence[int], rows: int) -> list[Curve]:
    return session.measure(
        title,
        "days in the table",
        days,
        lambda count: _turns(session, count, rows, _PROJECTIONS[title]),
        effort=Effort(rounds=25, least=5, seconds=20, warm_ups=2),
    )


def _turns(session: Session, days: int, rows: int, columns: list[str] | None) -> dict[str, Turn]:
    table, number = f"wide{days}", days // 2

    def checked(measured: Mapping[str, float]) -> Mapping[str, float]:
        if (measured["rows"], measured["columns"]) != (rows, len(columns or range(_COLUMNS))):
            raise WrongRowsError(f"Read {measured['rows']} of {rows} rows, with {measured['columns']} columns.")
        return measured

    def read(worker: str, **how: bool) -> Turn:
        what = {"lake": session.lake.settings, "table": table, "number": number, "columns": columns}
        return lambda: checked(session.contender(worker).call("read_partition", **what, **how))

    file = _file_of(session, table, number)
    limit = session.contender(LIMIT)
    return {
        OURS: read(OURS, seen=True),
        NEW_PROCESS: read(OURS, seen=False),
        RAW: read(RAW, seen=True),
        RAW_NEW_PROCESS: read(RAW, seen=False),
        PEER: read(PEER),
        LIMIT: lambda: checked(limit.call("read_parquet", file=file, columns=columns)),
    }


def _file_of(session: Session, table: str, number: int) -> str:
    tasks = session.lake.table(table).scan(row_filter=f"day = '{day_of(number).isoformat()}'").plan_files()
    return next(iter(tasks)).file.file_path.removeprefix("file://")
