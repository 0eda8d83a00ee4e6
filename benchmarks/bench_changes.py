"""Read the day that was appended last to a table of up to 2,000 days, with Spark.

`scan_changes` in mode `appends`, opened as a DataFrame, against Spark's incremental read by hand
(`start-snapshot-id`, `end-snapshot-id`) in the same Spark session. Both collect the rows as an Arrow table. Ours also
loads the table's metadata and checks that nothing but appends is in the range, which the read by hand leaves out.

Target: at most 1.2 times as long as by hand.
"""

from collections.abc import Mapping

from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, SPARK, Session


class WrongRowsError(AssertionError):
    """A contender read the wrong rows."""


def run(session: Session) -> list[Curve]:
    """Measure."""
    rows = session.size(10_000, 10)
    return session.measure(
        f"one day of {rows:,} rows",
        "days in the table",
        session.size((200, 2_000), (3,)),
        lambda days: _turns(session, days, rows),
        effort=Effort(rounds=15, least=5, seconds=30, warm_ups=2),
    )


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the target."""
    return [Target("2,000 days: by hand", curves[0].ratio(2_000, OURS, to=SPARK), 1.2)]


def _turns(session: Session, days: int, rows: int) -> dict[str, Turn]:
    table = f"days{days}"
    session.contender(OURS).call("fill_days", lake=session.lake.settings, table=table, days=days, rows=rows)

    def read(name: str) -> Turn:
        def turn() -> Mapping[str, float]:
            worker, what = session.contender(SPARK), {"lake": session.lake.settings, "table": table}
            measured = worker.call("read_last_append", **what, by_hand=name == SPARK)
            if measured["rows"] != rows:
                raise WrongRowsError(f"Read {measured['rows']} rows instead of {rows}.")
            return measured

        return turn

    return {name: read(name) for name in (OURS, SPARK)}
