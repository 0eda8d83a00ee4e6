"""Write up to 10 million rows over 30 days with Spark.

One run of a daily asset over all 30 days, with the IO manager timed inside it, against
`writeTo(...).overwrite(...)` of the same DataFrame in the same Spark session (`local[*]`). Both replace the rows
of those days in an existing table; ours also checks for rows outside of them.

Target: at most 1.1 times as long as by hand.
"""

from collections.abc import Mapping

from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, SPARK, Session

_DAYS = 30
_TABLES = {OURS: "ours", SPARK: "hand"}


def run(session: Session) -> list[Curve]:
    """Measure."""
    return session.measure(
        f"{_DAYS} days",
        "rows",
        session.size((1_000_000, 3_000_000, 10_000_000), (300,)),
        lambda rows: _turns(session, rows),
        effort=Effort(rounds=7, least=3, seconds=45),
        after=lambda _: _check(session),
    )


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the target."""
    return [Target("10,000,000 rows: by hand", curves[0].ratio(10_000_000, OURS, to=SPARK), 1.1)]


def _turns(session: Session, rows: int) -> dict[str, Turn]:
    for table in _TABLES.values():
        session.contender(OURS).call("create", lake=session.lake.settings, table=table)

    def write(name: str) -> Turn:
        what = {"lake": session.lake.settings, "table": _TABLES[name], "rows": rows, "days": _DAYS}

        def turn() -> Mapping[str, float]:
            return session.contender(SPARK).call("write", **what, by_hand=name == SPARK)

        return turn

    return {name: write(name) for name in _TABLES}


def _check(session: Session) -> None:
    session.lake.check_equal_rows(*_TABLES.values())
    session.lake.delete_files(*_TABLES.values())
