"""Upsert keys into a large table; about half of them exist, spread over all files.

Orders over 30 days, with one file per day and million rows. Ours is the table manager's `upsert`, by hand it is
PyIceberg's `table.upsert` and Spark's `MERGE INTO`. Every timed upsert starts with the same version of the
table. The warm-up runs on a small one.

Target: at most 0.5 times as long as `table.upsert`.
"""

import math
from collections.abc import Mapping

from benchmarks.lake import FrozenTable
from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, RAW, SPARK, Session

DAYS, FEW = 30, 300
_TABLES = {OURS: "ours", RAW: "raw", SPARK: "merged"}
_WORK = {OURS: "upsert", RAW: "upsert", SPARK: "merge"}


def run(session: Session) -> list[Curve]:
    """Measure."""
    warm_up = fill(session, FEW)
    _measure(session, {FEW: warm_up}, FEW // 10)
    bases = {size: fill(session, size) for size in session.size((1_000_000, 5_000_000), (600,))}
    return [curve for keys in session.size((10_000, 100_000), (20,)) for curve in _measure(session, bases, keys)]


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    return [
        Target(f"{curve.title} into {size:,} rows: table.upsert", curve.ratio(size, OURS, to=RAW), 0.5)
        for curve in curves
        for size in (1_000_000, 5_000_000)
    ]


def _measure(session: Session, bases: Mapping[int, FrozenTable], keys: int) -> list[Curve]:
    return session.measure(
        f"{keys:,} keys",
        "rows in the table",
        list(bases),
        lambda size: _turns(session, bases[size], size, keys),
        # PyIceberg takes minutes for the larger ones.
        effort=Effort(rounds=3, least=1, seconds=30, warm_ups=0),
        after=lambda size: _check(session, bases[size]),
    )


def fill(session: Session, size: int) -> FrozenTable:
    """A table of this size, frozen."""
    table = f"base{size}"
    session.contender(OURS).call("fill_orders", lake=session.lake.settings, table=table, rows=size, days=DAYS)
    return session.lake.freeze(table)


def spread(keys: int, size: int) -> list[int]:
    """A range of ids, of which about half exist; the step is coprime to the days, so that they are spread over all."""
    step = next(step for step in range(2 * size // keys, 0, -1) if math.gcd(step, DAYS) == 1)
    return [1, 1 + keys * step, step]


def _turns(session: Session, base: FrozenTable, size: int, keys: int) -> dict[str, Turn]:
    ids = spread(keys, size)

    def upsert(name: str) -> Turn:
        def turn() -> Mapping[str, float]:
            base.thaw(_TABLES[name])
            what = {"lake": session.lake.settings, "table": _TABLES[name], "ids": ids, "days": DAYS}
            return session.contender(name).call(_WORK[name], **what)

        return turn

    return {name: upsert(name) for name in _TABLES}


def _check(session: Session, base: FrozenTable) -> None:
    session.lake.check_equal_rows(*_TABLES.values())
    base.tidy(*_TABLES.values())
