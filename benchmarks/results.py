"""What a benchmark found: kept as JSON, from which the report and the plots are made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.measure import median


@dataclass(frozen=True)
class Point:
    """All samples of all contenders at one size."""

    x: float
    samples: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Curve:
    """One quantity over size: a table of the report, and a panel of the plot.

    Attributes:
        title: What is the same for all points.
        axis: What the sizes count.
        unit: Unit of the samples.
        points: The sizes that were measured.
    """

    title: str
    axis: str
    unit: str
    points: Sequence[Point]

    def median(self, x: float, contender: str) -> float | None:
        """Median of a contender at a size; None when that was not measured."""
        found = next((point.samples.get(contender) for point in self.points if point.x == x), None)
        return median(found) if found else None

    def ratio(self, x: float, contender: str, *, to: str) -> float | None:
        """Median of one contender by that of another."""
        mine, theirs = self.median(x, contender), self.median(x, to)
        return None if mine is None or not theirs else mine / theirs

    def growth(self, contender: str, *, start: float, end: float) -> float | None:
        """Median at one size by that at another."""
        first, last = self.median(start, contender), self.median(end, contender)
        return None if last is None or not first else last / first


@dataclass(frozen=True)
class Target:
    """What was promised, and what came out.

    Attributes:
        words: The promise.
        value: What was measured; None when this run did not measure it.
        limit: What it is compared with.
        unit: Its unit; `x` for ratios.
        at_least: Whether the value must reach the limit instead of staying below it.
        floor: What nobody can get below, in the same unit, if that is known.
    """

    words: str
    value: float | None
    limit: float
    unit: str = "x"
    at_least: bool = False
    floor: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the promise is kept; None when nobody knows."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Result:
    """One benchmark's outcome.

    Attributes:
        name: Name of the benchmark.
        about: What was compared, in words.
        curves: What was measured.
        targets: What was promised.
        machine: Where, with which versions, and how busy it was.
        quick: Whether the sizes were too small to mean anything.
        seconds: How long the benchmark took.
    """

    name: str
    about: str
    curves: Sequence[Curve]
    targets: Sequence[Target] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    seconds: float = 0.0

    def save(self, folder: Path) -> Path:
        """Write the JSON file of the benchmark."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.name}.json"
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return file

    @classmethod
    def load(cls, file: Path) -> Self:
        """Read what `save` wrote."""
        found = json.loads(file.read_text())
        curves = [
            Curve(**{**curve, "points": [Point(**point) for point in curve["points"]]}) for curve in found["curves"]
        ]
        targets = [Target(**target) for target in found["targets"]]
        return cls(**{**found, "curves": curves, "targets": targets})
