"""Compact up to 1,000 files of 1 MB.

The default policy on the PyIceberg engine and on the Spark engine, including planning and measuring, against
Iceberg's procedure `rewrite_data_files` called by hand in the same Spark session (`local[*]`). The target file
size is 128 MiB for all of them. Every timed rewrite starts with the same version of the table.

Targets at 1,000 files: the PyIceberg engine at most 0.5 times as long as the procedure, the Spark engine at
most 1.05 times.
"""

from collections.abc import Mapping

from benchmarks.lake import FrozenTable
from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, RAW, SPARK, Session

PYICEBERG_ENGINE, SPARK_ENGINE = f"{OURS}, PyIceberg engine", f"{OURS}, Spark engine"
_TABLES = {PYICEBERG_ENGINE: "ours", SPARK_ENGINE: "spark", SPARK: "hand"}


def run(session: Session) -> list[Curve]:
    """Measure."""
    file_bytes = session.size(1_000_000, 50_000)
    bases: dict[int, FrozenTable] = {}

    def turns(files: int) -> Mapping[str, Turn]:
        what = {"table": f"small{files}", "files": files, "file_bytes": file_bytes}
        session.contender(RAW).call("fill_small_files", lake=session.lake.settings, **what)
        bases[files] = session.lake.freeze(f"small{files}")
        return _turns(session, bases[files])

    return session.measure(
        "files of 1 MB",
        "files",
        session.size((100, 300, 1_000), (8,)),
        turns,
        effort=Effort(rounds=5, least=2, seconds=45),
        after=lambda files: _check(session, bases[files]),
    )


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    return [
        Target(f"1,000 files, {name.partition(', ')[2]}: the procedure", curves[0].ratio(1_000, name, to=SPARK), limit)
        for name, limit in ((PYICEBERG_ENGINE, 0.5), (SPARK_ENGINE, 1.05))
    ]


def _turns(session: Session, base: FrozenTable) -> dict[str, Turn]:
    def compact(name: str, worker: str, **how: bool) -> Turn:
        def turn() -> Mapping[str, float]:
            base.thaw(_TABLES[name])
            what = {"lake": session.lake.settings, "table": _TABLES[name]}
            return session.contender(worker).call("compact", **what, **how)

        return turn

    return {
        PYICEBERG_ENGINE: compact(PYICEBERG_ENGINE, OURS),
        SPARK_ENGINE: compact(SPARK_ENGINE, SPARK, by_hand=False),
        SPARK: compact(SPARK, SPARK, by_hand=True),
    }


def _check(session: Session, base: FrozenTable) -> None:
    session.lake.check_equal_rows(*_TABLES.values())
    session.lake.delete_files(*_TABLES.values())
    base.discard()
