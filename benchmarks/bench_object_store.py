"""Write and read one day on an object store and a REST catalog.

The store is an S3 server and the catalog Iceberg's own REST server, each behind a proxy at which every request waits:
5, 25 or 50 ms at the store, and three fifths of that at the catalog. Requests of one client run side by side. The table
has 200 days, written by one commit each, and for a second series 10; days have 1,000 rows.

Every contender works on its own table. Ours and the peer's are IO managers in Dagster runs, without Dagster's own time.
PyIceberg by hand is an asset that calls `load_table` and then `overwrite`, `append` or `scan`, with an open catalog, or
`create_table` and `append`. "ours" has used the table before, "ours, new process" forgets its connections, clients and
everything it has read. The requests are those that the proxies pass on; "one after the other" is the longest chain of
requests of which none overlaps another.

Targets at 25 ms: replacing a day takes at most 0.25 times as long as PyIceberg, 0.35 times in a new process; at most 10
requests, 6 of them one after the other. Appending at most 0.35 times as long with at most 7 requests, loading at most
0.5 times with at most 7 requests, the first write of a table at most 0.4 times. At most 0.3 times as long as the peer.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from support.distant_lake import DistantLake
from support.servers.running import Servers

from benchmarks.contender import Contender
from benchmarks.measure import Effort, Turn
from benchmarks.results import Curve, Target
from benchmarks.session import NEW_PROCESS, OURS, PEER, RAW, Session

_ROWS = 1_000
_OLD, _YOUNG = 200, 10
MILLISECONDS = 25
_CATALOG_SHARE = 0.6
_EFFORT = Effort(rounds=7, least=4, seconds=20)
_TABLES = {OURS: "ours", NEW_PROCESS: "new_process", RAW: "raw", PEER: "peer"}
UNITS = {"seconds": "s", "requests": "requests", "depth": "requests one after the other"}
_UNMERGED = {"commit.manifest-merge.enabled": "false"}
# By the operation: targets against PyIceberg, in a new process, and for the number of requests and their depth.
_LIMITS: dict[str, tuple[float, float | None, int | None, int | None]] = {
    "replace a day": (0.25, 0.35, 10, 6),
    "append a day": (0.35, None, 7, None),
    "load a day": (0.5, None, 7, None),
    "first write": (0.4, None, None, None),
}
_AGAINST_PEER = 0.3


@dataclass
class DistantField:
    """The lake, and the contenders' processes."""

    session: Session
    lake: DistantLake
    stack: ExitStack
    _workers: dict[str, Contender] = field(default_factory=dict)
    _new_tables: Iterator[int] = field(default_factory=count)

    @property
    def settings(self) -> dict[str, str]:
        """The lake in PyIceberg's words."""
        storage = self.lake.place.storage_config
        return {
            "type": "rest",
            "uri": self.lake.place.catalog_config["uri"],
            "s3.endpoint": storage["endpoint"],
            "s3.region": storage["region"],
            "s3.access-key-id": storage["access_key_id"],
            "s3.secret-access-key": storage["secret_access_key"],
        }

    def call(self, contender: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        """Run an operation in a contender's own process."""
        if contender not in self._workers:
            # One that forgets everything needs a process of its own.
            self._workers[contender] = self.session.crew.start(OURS if contender == NEW_PROCESS else contender)
            self.stack.callback(self._workers[contender].close)
        return self._workers[contender].call(operation, lake=self.settings, **arguments)

    def turn(self, contender: str, milliseconds: int, operation: str, **arguments: Any) -> Turn:
        """A timed operation at a latency, with its requests."""

        def take() -> Mapping[str, float]:
            what = {**arguments, "table": arguments.get("table") or f"first_{next(self._new_tables)}"}
            return self.timed(contender, milliseconds, operation, **what)

        return take

    def timed(self, contender: str, milliseconds: int, operation: str, **arguments: Any) -> Mapping[str, float]:
        """Run an operation at a latency; its seconds, and its requests."""
        seconds = milliseconds / 1000
        self.lake.set_latency(storage_seconds=seconds, catalog_seconds=seconds * _CATALOG_SHARE)
        with self.lake.log.recorded() as log:
            measured = self.call(contender, operation, **arguments)
        self.lake.set_latency(storage_seconds=0, catalog_seconds=0)
        deletions = sum("delete" in each.path.rpartition("?")[2] or each.method == "DELETE" for each in log.requests)
        return {**measured, "requests": len(log.requests), "depth": log.depth, "deletions": deletions}

    def age(self, commits: int) -> None:
        """Create the contenders' tables anew, with a day per commit."""
        for contender, table in _TABLES.items():
            name, properties = f"{table}_{commits}", {} if contender in (OURS, NEW_PROCESS) else _UNMERGED
            self.call(OURS, "create", table=name, properties=properties)
            self.call(OURS, "age", table=name, first=0, last=commits, rows=_ROWS)


def run(session: Session) -> list[Curve]:
    """Measure."""
    with open_field(session) as field:
        old, young = session.size(_OLD, 4), session.size(_YOUNG, 2)
        latencies = session.size((5, MILLISECONDS, 50), (1,))
        curves: list[Curve] = []
        for commits, at in ((old, latencies), (young, session.size((MILLISECONDS,), ()))):
            if not at:
                continue
            field.age(commits)
            for operation, turns in _operations(field, commits).items():
                title = f"{operation}, {commits} commits"
                curves += session.measure(title, "ms a request", at, turns, effort=_EFFORT, units=UNITS)
        return curves


def judge(curves: list[Curve]) -> list[Target]:
    """Compare with the targets."""
    return [target for curve in curves for target in _targets(curve)]


def _targets(curve: Curve) -> Iterator[Target]:
    operation = curve.title.partition(",")[0]
    if operation not in _LIMITS:
        return
    against_raw, new_process, requests, depth = _LIMITS[operation]
    what = f"{curve.title}, {MILLISECONDS} ms"
    if curve.unit == "s":
        yield Target(f"{what}: {RAW}", curve.ratio(MILLISECONDS, OURS, to=RAW), against_raw)
        if new_process is not None:
            yield Target(f"{what}, new process: {RAW}", curve.ratio(MILLISECONDS, NEW_PROCESS, to=RAW), new_process)
        yield Target(f"{what}: {PEER}", curve.ratio(MILLISECONDS, OURS, to=PEER), _AGAINST_PEER)
        return
    limit = requests if curve.unit == "requests" else depth
    if limit is not None:
        yield Target(f"{what}: {curve.unit}", curve.median(MILLISECONDS, OURS), limit, unit="requests")


def _operations(field: DistantField, commits: int) -> dict[str, Callable[[int], dict[str, Turn]]]:
    day = {"number": commits // 2, "rows": _ROWS}
    tables = {contender: f"{table}_{commits}" for contender, table in _TABLES.items()}

    def all_of(operation: str, *, knows_seen: bool = True, **arguments: Any) -> Callable[[int], dict[str, Turn]]:
        def turns(milliseconds: int) -> dict[str, Turn]:
            found = {}
            for contender, table in tables.items():
                seen = {"seen": contender != NEW_PROCESS} if knows_seen and contender in (OURS, NEW_PROCESS) else {}
                if operation == "read_partition" and contender == RAW:
                    seen = {"seen": True}
                if knows_seen or contender != NEW_PROCESS:
                    found[contender] = field.turn(contender, milliseconds, operation, table=table, **arguments, **seen)
            return found

        return turns

    def upsert(milliseconds: int) -> dict[str, Turn]:
        return {name: field.turn(name, milliseconds, "upsert_day", table=tables[name], **day) for name in (OURS, RAW)}

    def first_write(milliseconds: int) -> dict[str, Turn]:
        new = {"number": 0, "rows": _ROWS}
        return {
            OURS: field.turn(OURS, milliseconds, "write_partition", seen=True, **new),
            RAW: field.turn(RAW, milliseconds, "first_write", **new),
            PEER: field.turn(PEER, milliseconds, "write_partition", **new),
        }

    return {
        "replace a day": all_of("write_partition", number=day["number"], rows=_ROWS),
        "load a day": all_of("read_partition", number=day["number"], columns=None),
        "append a day": all_of("append_day", knows_seen=False, number=commits + 1, rows=_ROWS),
        "first write": first_write,
        "upsert a day": upsert,
    }


@contextmanager
def open_field(session: Session) -> Iterator[DistantField]:
    """The lake for the length of the block."""
    # The S3 server of the tests takes no checksums that it has not asked for; contenders inherit this.
    for variable in ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION"):
        os.environ[variable] = "when_required"
    folder = session.lake.folder / "servers"
    folder.mkdir()
    with (
        Servers.below(folder) as servers,
        DistantLake.open(servers, "rest", folder) as lake,
        ExitStack() as stack,
    ):
        lake.place.connect().create_namespace("bench")
        yield DistantField(session, lake, stack)
