"""Results of a benchmark, stored as JSON; the report and the plots are generated from it."""

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
        title: What all points have in common.
        axis: What the sizes count.
        unit: Unit of the samples.
        points: The sizes that were measured.
    """

    title: str
    axis: str
    unit: str
    points: Sequence[Point]

    def median(self, x: float, contender: str) -> float | None:
        """Median of a contender at a size; None if it was not measured."""
        found = next((point.samples.get(contender) for point in self.points if point.x == x), None)
        return median(found) if found else None

    def ratio(self, x: float, contender: str, *, to: str) -> float | None:
        """Ratio of the medians of two contenders."""
        mine, theirs = self.median(x, contender), self.median(x, to)
        return None if mine is None or not theirs else mine / theirs

    def growth(self, contender: str, *, start: float, end: float) -> float | None:
        """Ratio of the medians at two sizes."""
        first, last = self.median(start, contender), self.median(end, contender)
        return None if last is None or not first else last / first


@dataclass(frozen=True)
class Target:
    """A target and the measured value.

    Attributes:
        words: The target, for the report.
        value: The measured value; None if this run did not measure it.
        limit: The value that it is compared with.
        unit: Its unit; `x` for ratios.
        at_least: Whether the limit is a minimum instead of a maximum.
        floor: The lowest possible value, in the same unit, if known.
    """

    words: str
    value: float | None
    limit: float
    unit: str = "x"
    at_least: bool = False
    floor: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if it was not measured."""
        if self.value is None:
            return None
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Result:
    """The result of one benchmark.

    Attributes:
        name: Name of the benchmark.
        about: What was compared: the docstring of the benchmark.
        curves: What was measured.
        targets: The targets and their values.
        machine: Hardware, versions and load.
        quick: Whether this was a quick run, whose sizes are too small.
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
        """Load a JSON file of `save`."""
        found = json.loads(file.read_text())
        curves = [
            Curve(**{**curve, "points": [Point(**point) for point in curve["points"]]}) for curve in found["curves"]
        ]
        targets = [Target(**target) for target in found["targets"]]
        return cls(**{**found, "curves": curves, "targets": targets})
