"""Backfill many days of 1,000 rows, from the first run to the last.

Whole Dagster runs are timed, in one process: ours in a single run, with Arrow and with Spark; ours and the
peer's with a run a day, which is all the peer can do. By hand it is an asset that calls
`writeTo(...).overwrite(...)` itself, for the same frame in the same Spark session. Starting processes is not
counted, which favours the run a day: most deployments start one for each.

Targets at 365 days: the single Arrow run takes at most 1/20 of the peer's runs, the single Spark run at most
1.1 times of what it takes by hand.
"""

from collections.abc import Mapping

from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, PEER, SPARK, Session

ARROW, PER_DAY, WITH_SPARK = f"{OURS}, one run", f"{OURS}, a run a day", f"{OURS}, one run on Spark"
_FEWEST = 30
_TABLES = {ARROW: "arrow", WITH_SPARK: "spark", SPARK: "hand", PER_DAY: "daily", PEER: "peer"}


def run(session: Session) -> list[Curve]:
    """Measure."""
    rows = session.size(1_000, 10)
    return session.measure(
        f"{rows:,} rows a day",
        "days",
        session.size((_FEWEST, 90, 365), (3,)),
        lambda days: _turns(session, days, rows),
        effort=lambda days: Effort(rounds=3, least=2, seconds=40, warm_ups=int(days == _FEWEST)),
        after=lambda _: _check(session),
    )


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    return [
        Target("365 days, one Arrow run: the peer's 365 runs", curves[0].ratio(365, ARROW, to=PEER), 0.05),
        Target("365 days, one Spark run: by hand", curves[0].ratio(365, WITH_SPARK, to=SPARK), 1.1),
    ]


def _turns(session: Session, days: int, rows: int) -> dict[str, Turn]:
    def fill(name: str, worker: str, **how: bool) -> Turn:
        def turn() -> Mapping[str, float]:
            session.lake.drop(_TABLES[name])
            if worker == SPARK:
                # By hand somebody has made the table before, so it is there for both.
                session.contender(OURS).call("create", lake=session.lake.settings, table=_TABLES[name])
            what = {"lake": session.lake.settings, "table": _TABLES[name], "days": days, "rows": rows}
            return session.contender(worker).call("backfill", **what, **how)

        return turn

    return {
        ARROW: fill(ARROW, OURS, single_run=True),
        WITH_SPARK: fill(WITH_SPARK, SPARK, by_hand=False),
        SPARK: fill(SPARK, SPARK, by_hand=True),
        PER_DAY: fill(PER_DAY, OURS, single_run=False),
        PEER: fill(PEER, PEER),
    }


def _check(session: Session) -> None:
    session.lake.check_equal_rows(*(table for name, table in _TABLES.items() if session.has_peer or name != PEER))
