"""Merge changes into a large table: about half of the keys exist, a tenth of the rows delete, and none may be older.

The table and the keys are those of the upsert benchmark. Ours is the table manager's `merge` with `delete_when` and
`order_by`, "ours, upsert" its `upsert` of the same rows, which compares only keys and values. By hand it is Spark's
`MERGE INTO` with the same rules. Every timed merge starts with the same version of the table.

Target: at most 1.3 times as long as the upsert, and less than Spark's MERGE.
"""

from collections.abc import Mapping

from benchmarks.bench_upsert import DAYS, FEW, fill, spread
from benchmarks.lake import FrozenTable
from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, SPARK, Session

UPSERT = f"{OURS}, upsert"
_TABLES = {OURS: "ours", UPSERT: "upserted", SPARK: "merged"}
_WORK = {OURS: (OURS, "merge"), UPSERT: (OURS, "upsert"), SPARK: (SPARK, "merge_changes")}


def run(session: Session) -> list[Curve]:
    """Measure."""
    warm_up = fill(session, FEW)
    _measure(session, {FEW: warm_up}, FEW // 10)
    bases = {size: fill(session, size) for size in session.size((1_000_000, 5_000_000), (600,))}
    return _measure(session, bases, *session.size((100_000,), (20,)))


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    limits = {UPSERT: ("our upsert", 1.3), SPARK: ("Spark's MERGE", 1.0)}
    return [
        Target(f"{curve.title} into {size:,} rows: {name}", curve.ratio(size, OURS, to=other), limit)
        for curve in curves
        for size in (1_000_000, 5_000_000)
        for other, (name, limit) in limits.items()
    ]


def _measure(session: Session, bases: Mapping[int, FrozenTable], keys: int) -> list[Curve]:
    return session.measure(
        f"{keys:,} keys",
        "rows in the table",
        list(bases),
        lambda size: _turns(session, bases[size], size, keys),
        effort=Effort(rounds=3, least=1, seconds=30, warm_ups=0),
        after=lambda size: _check(session, bases[size]),
    )


def _turns(session: Session, base: FrozenTable, size: int, keys: int) -> dict[str, Turn]:
    ids = spread(keys, size)

    def merge(name: str) -> Turn:
        contender, work = _WORK[name]

        def turn() -> Mapping[str, float]:
            base.thaw(_TABLES[name])
            what = {"lake": session.lake.settings, "table": _TABLES[name], "ids": ids, "days": DAYS}
            return session.contender(contender).call(work, **what)

        return turn

    return {name: merge(name) for name in _TABLES}


def _check(session: Session, base: FrozenTable) -> None:
    session.lake.check_equal_rows(_TABLES[OURS], _TABLES[SPARK])
    base.tidy(*_TABLES.values())
