"""A session of a benchmark: its own lake, the contenders' processes, and the number of rounds."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.contender import Contender
from benchmarks.lake import Lake
from benchmarks.measure import QUICK, Effort, Turn, take_turns
from benchmarks.peer.environment import ensure_peer
from benchmarks.results import Curve, Point

T = TypeVar("T")

OURS, RAW, PEER, SPARK, LIMIT = "ours", "raw PyIceberg", "peer", "Spark by hand", "Parquet limit"
NEW_PROCESS, RAW_NEW_PROCESS = f"{OURS}, new process", f"{RAW}, new process"
_MODULES = {
    OURS: "benchmarks.workers.ours",
    RAW: "benchmarks.workers.raw",
    PEER: "benchmarks.peer.worker",
    SPARK: "benchmarks.workers.spark",
    LIMIT: "benchmarks.workers.raw",
}


@dataclass
class Crew:
    """The contenders' processes.

    Attributes:
        folder: Folder of their logs.
    """

    folder: Path
    _contenders: dict[str, Contender] = field(default_factory=dict)

    def contender(self, name: str) -> Contender:
        """A contender's process, started when it is first needed."""
        module = _MODULES[name]
        if module not in self._contenders:
            self._contenders[module] = self.start(name)
        return self._contenders[module]

    def start(self, name: str) -> Contender:
        """Start a new process, which the caller has to close."""
        python = ensure_peer() if name == PEER else None
        return Contender(name, _MODULES[name], self.folder, python=python)

    def close(self) -> None:
        """Stop all of them."""
        for contender in self._contenders.values():
            contender.close()
        self._contenders.clear()


@dataclass
class Session:
    """One run of a benchmark.

    Attributes:
        lake: An empty lake.
        crew: The contenders' processes.
        quick: Whether this is a smoke test with tiny sizes.
        has_peer: Whether the peer takes part.
    """

    lake: Lake
    crew: Crew
    quick: bool = False
    has_peer: bool = True

    def contender(self, name: str) -> Contender:
        """A contender's process, kept until the end of the benchmark."""
        return self.crew.contender(name)

    def size(self, full: T, quick: T) -> T:
        """The size for a full or a quick run."""
        return quick if self.quick else full

    def effort(self, effort: Effort) -> Effort:
        """The given effort, or the smallest for a quick run."""
        return QUICK if self.quick else effort

    def measure(
        self,
        title: str,
        axis: str,
        sizes: Sequence[int],
        turns: Callable[[int], Mapping[str, Turn]],
        *,
        effort: Effort | Callable[[int], Effort] = Effort(),  # noqa: B008 - frozen
        after: Callable[[int], object] = lambda _: None,
        units: Mapping[str, str] | None = None,
    ) -> list[Curve]:
        """Let contenders take turns at every size.

        Args:
            title: What all sizes have in common.
            axis: What the sizes count.
            sizes: The sizes.
            turns: Prepares a size and returns the contenders' turns. The peer's is skipped if it does not take part.
            effort: Number of rounds, optionally depending on the size.
            after: Called after each size, before the contenders' tables are reset.
            units: The measured quantities and their units; default: seconds.

        Returns:
            One curve for each unit.
        """
        measured = units or {"seconds": "s"}
        points: dict[str, list[Point]] = {name: [] for name in measured}
        for size in sizes:
            taking_part = {name: turn for name, turn in turns(size).items() if self.has_peer or name != PEER}
            wanted = self.effort(effort(size) if callable(effort) else effort)
            samples = take_turns(f"{title}, {size:,} {axis}", _only(taking_part, measured), wanted)
            after(size)
            for name in measured:
                found = {contender: [sample[name] for sample in each] for contender, each in samples.items()}
                points[name].append(Point(size, found))
        return [Curve(title, axis, unit, points[name]) for name, unit in measured.items()]


@contextmanager
def open_crew() -> Iterator[Crew]:
    """Contenders' processes, stopped at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="floe-bench-crew-") as folder:
        crew = Crew(Path(folder))
        try:
            yield crew
        finally:
            crew.close()


@contextmanager
def open_session(crew: Crew, *, quick: bool, has_peer: bool) -> Iterator[Session]:
    """A session on a temporary lake."""
    with tempfile.TemporaryDirectory(prefix="floe-bench-lake-") as folder:
        lake = Lake(Path(folder))
        try:
            yield Session(lake, crew, quick=quick, has_peer=has_peer)
        finally:
            lake.close()


def _only(turns: Mapping[str, Turn], measured: Mapping[str, str]) -> dict[str, Turn]:
    """Turns that return only the measured quantities."""

    def cut(turn: Turn) -> Turn:
        def short() -> Mapping[str, float]:
            values = turn()
            return {name: values[name] for name in measured}

        return short

    return {name: cut(turn) for name, turn in turns.items()}
