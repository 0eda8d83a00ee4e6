"""Backfill many days of 1,000 rows.

Whole Dagster runs are timed, in one process: ours in a single run, with Arrow and with Spark; ours and the
peer's with one run per day, because the peer does not support single-run backfills. Spark by hand is an asset
that calls `writeTo(...).overwrite(...)` itself, for the same DataFrame in the same Spark session. Process start
is not counted, which favours one run per day: most deployments start a process for each.

Targets at 365 days: the single Arrow run takes at most 1/20 of the peer's runs, the single Spark run at most
1.1 times as long as Spark by hand.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, PEER, SPARK, Session

ARROW, PER_DAY, WITH_SPARK = f"{OURS}, one run", f"{OURS}, a run a day", f"{OURS}, one run on Spark"
_TABLES = {ARROW: "arrow", WITH_SPARK: "spark", SPARK: "hand", PER_DAY: "daily", PEER: "peer"}


def run(session: Session) -> list[Curve]:
    """Measure."""
    rows = session.size(1_000, 10)
    return [
        *_measure(session, f"{rows:,} rows a day", rows, _turns, Effort(rounds=3, least=2, seconds=40)),
        # The JVM gets faster with every run, so these take more turns.
        *_measure(session, f"{rows:,} rows a day, on Spark", rows, _spark_turns, Effort(rounds=7, seconds=90)),
    ]


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    arrow, spark = curves
    return [
        Target("365 days, one Arrow run: the peer's 365 runs", arrow.ratio(365, ARROW, to=PEER), 0.05),
        Target("365 days, one Spark run: by hand", spark.ratio(365, WITH_SPARK, to=SPARK), 1.1),
    ]


def _measure(
    session: Session, title: str, rows: int, turns: Callable[[Session, int, int], dict[str, Turn]], effort: Effort
) -> list[Curve]:
    days = session.size((30, 90, 365), (3,))
    return session.measure(
        title,
        "days",
        days,
        lambda count: turns(session, count, rows),
        # Without a warm-up, because the peer's 365 runs take minutes.
        effort=lambda count: replace(effort, warm_ups=int(count == days[0] or turns is _spark_turns)),
        after=lambda count: _check(session, turns(session, count, rows)),
    )


def _turns(session: Session, days: int, rows: int) -> dict[str, Turn]:
    return {
        ARROW: _turn(session, ARROW, OURS, days, rows, single_run=True),
        PER_DAY: _turn(session, PER_DAY, OURS, days, rows, single_run=False),
        PEER: _turn(session, PEER, PEER, days, rows),
    }


def _spark_turns(session: Session, days: int, rows: int) -> dict[str, Turn]:
    return {
        WITH_SPARK: _turn(session, WITH_SPARK, SPARK, days, rows, by_hand=False),
        SPARK: _turn(session, SPARK, SPARK, days, rows, by_hand=True),
    }


def _turn(session: Session, name: str, worker: str, days: int, rows: int, **how: bool) -> Turn:
    def turn() -> Mapping[str, float]:
        session.lake.drop(_TABLES[name])
        if worker == SPARK:
            # By hand the table has to exist, so it exists for both.
            session.contender(OURS).call("create", lake=session.lake.settings, table=_TABLES[name])
        what = {"lake": session.lake.settings, "table": _TABLES[name], "days": days, "rows": rows}
        return session.contender(worker).call("backfill", **what, **how)

    return turn


def _check(session: Session, turns: Mapping[str, Turn]) -> None:
    session.lake.check_equal_rows(*(_TABLES[name] for name in turns if session.has_peer or name != PEER))
