"""Side-by-side measurements: contenders take turns, warm-ups do not count, medians are compared."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Turn = Callable[[], Mapping[str, float]]
"""Prepare and run one timed operation; return its measurements by name."""


@dataclass(frozen=True)
class Effort:
    """How often contenders take a turn.

    Attributes:
        rounds: Number of rounds.
        least: Minimum number of rounds, however long they take.
        seconds: Time after which no further round starts.
        warm_ups: Rounds beforehand, which do not count.
    """

    rounds: int = 9
    least: int = 3
    seconds: float = 45.0
    warm_ups: int = 1


QUICK = Effort(rounds=1, least=1, seconds=0, warm_ups=0)


def take_turns(what: str, turns: Mapping[str, Turn], effort: Effort) -> dict[str, list[Mapping[str, float]]]:
    """Let all contenders repeat the operation in turns; none of them is always first."""
    names = list(turns)
    samples: dict[str, list[Mapping[str, float]]] = {name: [] for name in names}
    started = time.monotonic()
    for number in range(-effort.warm_ups, effort.rounds):
        if number >= effort.least and time.monotonic() - started > effort.seconds:
            break
        # The speed of the machine may change, so the order alternates.
        first = number % len(names)
        measured = {name: turns[name]() for name in (*names[first:], *names[:first])}
        say(f"{what}, {_round(number, effort)}: {_words(names, measured)}")
        if number >= 0:
            for name in names:
                samples[name].append(measured[name])
    return samples


def median(samples: Sequence[float]) -> float:
    """The median."""
    return statistics.median(samples)


def spread(samples: Sequence[float]) -> float | None:
    """The interquartile range; None if there are too few samples."""
    if len(samples) < 3:  # noqa: PLR2004 - below that a quartile is one of the ends
        return None
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return high - low


def say(words: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {words}\n")
    sys.stderr.flush()


def _round(number: int, effort: Effort) -> str:
    return "warm-up" if number < 0 else f"round {number + 1} of at most {effort.rounds}"


def _words(names: Sequence[str], measured: Mapping[str, Mapping[str, float]]) -> str:
    return "; ".join(f"{name} {', '.join(f'{value:.4g}' for value in measured[name].values())}" for name in names)
