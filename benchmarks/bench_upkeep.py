"""Plan maintenance of many tables, and expire many snapshots.

Health of up to 500 tables with 12 files in 3 snapshots each, and a plan for compaction, expiry and manifest
rewrite of each of them. PyIceberg by hand is a loop over `inspect.files`, `manifests` and `snapshots`, without
planning.

Expiry of up to 2,000 snapshots, keeping 10, including the files that only the expired ones reference: the
PyIceberg engine against Iceberg's procedure `expire_snapshots` called by hand. Every timed expiry starts with
the same table and all its files.

Targets: 500 tables within 60 s; expiry at least as fast as Spark's.
"""

from collections.abc import Mapping

from benchmarks.lake import FrozenTable
from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, RAW, SPARK, Session

_COMMITS, _DAYS, _KEPT = 3, 10, 10
_EXPIRED = {OURS: "ours", SPARK: "hand"}


class DifferentFilesError(AssertionError):
    """Contenders counted different files."""


def run(session: Session) -> list[Curve]:
    """Measure."""
    return [*_measure_health(session), *_measure_expiry(session)]


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    health, expiry = curves
    return [
        Target("health and plans of 500 tables", health.median(500, OURS), 60, unit="s"),
        Target("expiry of 2,000 snapshots: Spark's", expiry.ratio(2_000, OURS, to=SPARK), 1.0),
    ]


def _measure_health(session: Session) -> list[Curve]:
    sizes = session.size((50, 150, 500), (3,))
    names = [f"table{number:03}" for number in range(max(sizes))]
    session.contender(OURS).call("create_many", lake=session.lake.settings, tables=names, commits=_COMMITS)

    def turns(size: int) -> dict[str, Turn]:
        def measure(name: str) -> Turn:
            def turn() -> Mapping[str, float]:
                what = {"lake": session.lake.settings, "tables": names[:size]}
                measured = session.contender(name).call("measure_tables", **what)
                if measured["files"] != size * _COMMITS * 4:
                    raise DifferentFilesError(f"{name} counted {measured['files']} files in {size} tables.")
                return measured

            return turn

        return {name: measure(name) for name in (OURS, RAW)}

    return session.measure("health and plans", "tables", sizes, turns, effort=Effort(rounds=5, least=2, seconds=30))


def _measure_expiry(session: Session) -> list[Curve]:
    sizes = session.size((100, 500, 2_000), (15,))
    bases = _churn(session, sizes)
    return session.measure(
        "expiry",
        "snapshots",
        sizes,
        lambda size: _expiry_turns(session, bases[size]),
        effort=Effort(rounds=5, least=3, seconds=30),
        after=lambda _: session.lake.check_equal_rows(*_EXPIRED.values()),
    )


def _churn(session: Session, sizes: tuple[int, ...]) -> dict[int, FrozenTable]:
    ours, lake = session.contender(OURS), session.lake.settings
    # Keeping a metadata file for each of 2,000 versions would take gigabytes.
    properties = {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "10",
    }
    ours.call("create", lake=lake, table="churned", properties=properties)
    bases, reached = {}, 0
    for size in sizes:
        ours.call("churn", lake=lake, table="churned", first=reached, last=size, days=_DAYS)
        bases[size], reached = session.lake.freeze("churned"), size
    return bases


def _expiry_turns(session: Session, base: FrozenTable) -> dict[str, Turn]:
    def expire(name: str) -> Turn:
        def turn() -> Mapping[str, float]:
            base.thaw(_EXPIRED[name])
            what = {"lake": session.lake.settings, "table": _EXPIRED[name], "keep": _KEPT}
            measured = session.contender(name).call("expire", **what)
            if (left := len(session.lake.table(_EXPIRED[name]).snapshots())) != _KEPT:
                raise DifferentFilesError(f"{name} left {left} snapshots of {_KEPT}.")
            return measured

        return turn

    return {name: expire(name) for name in _EXPIRED}
