"""Maintain tables, and write with Spark, on an object store and a REST catalog.

The lake of the benchmark `object_store`, at 25 ms a request to the store and 15 ms to the catalog.

- Health of 100 tables with 3 snapshots each: ours, as many tables at a time as the default budget allows, and one after
  the other.
- Compaction of 500 files of 200 KB: ours with the PyIceberg engine, and Iceberg's procedure called by hand. Every
  rewrite starts with the same version of the table.
- Expiry of a snapshot whose 5,000 files nothing else references.
- Replacing and loading a day of 60 with Spark: ours, and the statements that one would write by hand, in one session.

Targets: health at most a sixth of one table after the other; compaction at most 0.4 times as long as the procedure; at
most 12 requests that delete; a replacement by Spark at most 1.15 times as long as by hand, with at most 17 requests.
"""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.bench_object_store import MILLISECONDS, UNITS, DistantField, open_field
from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import OURS, RAW, SPARK, Session

_ONE_BY_ONE, _ON_SPARK = f"{OURS}, one after the other", f"{OURS}, Spark"
_COMMITS, _FILES_PER_COMMIT, _DAYS, _ROWS = 3, 100, 60, 1_000
_EFFORT = Effort(rounds=5, least=2, seconds=60)
_ONCE = Effort(rounds=1, least=1, seconds=0, warm_ups=0)


def run(session: Session) -> list[Curve]:
    """Measure."""
    sizes = {"files": session.size(5_000, 20), "days": session.size(_DAYS, 2)}
    with open_field(session) as field:
        return [
            *_measure(session, "health", "tables", session.size(100, 3), lambda size: _health(field, size)),
            *_measure(session, "compaction", "files", session.size(500, 8), lambda size: _compaction(field, size)),
            *_measure(session, "expiry", "files", sizes["files"], lambda size: _expiry(field, size), effort=_ONCE),
            *_measure(session, "Spark replaces a day", "days", sizes["days"], lambda days: _spark(field, days)),
            *_measure(session, "Spark loads a day", "days", sizes["days"], lambda days: _spark_load(field, days)),
        ]


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    found = {(curve.title, curve.unit): (curve, curve.points[0].x) for curve in curves}

    def ratio(title: str, mine: str, theirs: str) -> float | None:
        curve, x = found[title, UNITS["seconds"]]
        return curve.ratio(x, mine, to=theirs)

    def requests(title: str, mine: str, unit: str = UNITS["requests"]) -> float | None:
        curve, x = found[title, unit]
        return curve.median(x, mine)

    replaced = "Spark replaces a day"
    return [
        Target("health of 100 tables: one after the other", ratio("health", OURS, _ONE_BY_ONE), 1 / 6),
        Target("compaction of 500 files: the procedure", ratio("compaction", OURS, SPARK), 0.4),
        Target("deletion of 5,000 files: requests", requests("expiry", OURS, "deletions"), 12, unit="requests"),
        Target(f"{replaced}: by hand", ratio(replaced, _ON_SPARK, SPARK), 1.15),
        Target(f"{replaced}: requests", requests(replaced, _ON_SPARK), 17, unit="requests"),
    ]


def _measure(
    session: Session,
    title: str,
    axis: str,
    size: int,
    turns: Callable[[int], Mapping[str, Turn]],
    *,
    effort: Effort = _EFFORT,
) -> list[Curve]:
    return session.measure(title, axis, (size,), turns, effort=effort, units={**UNITS, "deletions": "deletions"})


def _health(field: DistantField, size: int) -> dict[str, Turn]:
    names = [f"health{number:03}" for number in range(size)]
    field.call(OURS, "create_many", tables=names, commits=_COMMITS)

    def measure(**how: int) -> Turn:
        return lambda: field.timed(OURS, MILLISECONDS, "measure_fleet", tables="bench.health*", **how)

    return {OURS: measure(), _ONE_BY_ONE: measure(at_once=1)}


def _compaction(field: DistantField, size: int) -> dict[str, Turn]:
    tables = {OURS: "compacted_by_us", SPARK: "compacted_by_hand"}
    file_bytes = field.session.size(200_000, 20_000)
    for table in tables.values():
        field.call(RAW, "fill_small_files", table=table, files=size, file_bytes=file_bytes)
        field.call(OURS, "tag_head", table=table)

    def compact(contender: str, **how: bool) -> Turn:
        def turn() -> Mapping[str, float]:
            field.call(OURS, "go_back_to_tag", table=tables[contender])
            return field.timed(contender, MILLISECONDS, "compact", table=tables[contender], **how)

        return turn

    return {OURS: compact(OURS), SPARK: compact(SPARK, by_hand=True)}


def _expiry(field: DistantField, size: int) -> dict[str, Turn]:
    field.call(OURS, "fill_and_replace", table="expired", files=size, files_per_commit=_FILES_PER_COMMIT)
    return {OURS: lambda: field.timed(OURS, MILLISECONDS, "expire", table="expired", keep=1)}


def _spark(field: DistantField, days: int) -> dict[str, Turn]:
    tables = {_ON_SPARK: "spark_ours", SPARK: "spark_hand"}
    for table in tables.values():
        field.call(OURS, "create", table=table)
        field.call(OURS, "age", table=table, first=0, last=days, rows=_ROWS)
    return {name: _of_session(field, "write_day", table, days, name == SPARK) for name, table in tables.items()}


def _spark_load(field: DistantField, days: int) -> dict[str, Turn]:
    return {name: _of_session(field, "read_day", "spark_ours", days, name == SPARK) for name in (_ON_SPARK, SPARK)}


def _of_session(field: DistantField, operation: str, table: str, days: int, by_hand: bool) -> Turn:  # noqa: FBT001
    arguments: dict[str, Any] = {"table": table, "number": days // 2, "rows": _ROWS, "by_hand": by_hand}
    return lambda: field.timed(SPARK, MILLISECONDS, operation, **arguments)
