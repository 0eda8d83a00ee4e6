"""results.md: how many promises are kept; then, for each benchmark, which, and one table a curve."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.measure import median, spread
from benchmarks.results import Curve, Point, Result, Target

_INTRODUCTION = """\
# Benchmarks

Written by `python -m benchmarks` from `results/*.json`; do not edit. A cell is the median of all rounds, then
the distance between the quartiles after ±, then how many times as long as the first contender of the row.
Contenders take turns within one run and have to end with the same rows. How each benchmark is done stands
below its name.
"""


def write_report(results: Sequence[Result], file: Path) -> None:
    """Write the report of all benchmarks that have results."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(_lines(results)))


def _lines(results: Sequence[Result]) -> Iterator[str]:
    yield _INTRODUCTION
    yield "| benchmark | question | targets met |"
    yield "|---|---|---|"
    for result in results:
        question = result.about.strip().partition("\n")[0]
        yield f"| [{result.name}](#{result.name}) | {question} | {_score(result.targets)} |"
    for result in results:
        yield from _section(result)


def _score(targets: Sequence[Target]) -> str:
    met, known = sum(target.met is True for target in targets), sum(target.met is not None for target in targets)
    return f"{met} of {known}" if known else "not measured"


def _target_cells(target: Target) -> str:
    value = "not measured" if target.value is None else _quantity(target.value, target.unit)
    bound = f"{'at least' if target.at_least else 'at most'} {_quantity(target.limit, target.unit)}"
    verdict = {True: "met", False: "**not met**", None: ""}[target.met]
    if target.met is False and target.floor is not None and target.floor > target.limit:
        verdict += f"; the Parquet file alone takes {_quantity(target.floor, target.unit)}"
    return f"{target.words} | {value} | {bound} | {verdict}"


def _section(result: Result) -> Iterator[str]:
    yield f"\n## {result.name}\n"
    if result.quick:
        yield "*A quick run: the sizes are too small for the figures to mean anything.*\n"
    yield f"{result.about.strip()}\n"
    yield "| measured against | result | target | |"
    yield "|---|---|---|---|"
    yield from (f"| {_target_cells(target)} |" for target in result.targets)
    yield f"\n![{result.name}](plots/{result.name}.svg)\n"
    for curve in result.curves:
        yield from _table(curve)
    yield _machine(result)


def _table(curve: Curve) -> Iterator[str]:
    contenders = list(dict.fromkeys(name for point in curve.points for name in point.samples))
    yield f"**{curve.title}** ({curve.unit})\n"
    yield f"| {curve.axis} | {' | '.join(contenders)} |"
    yield f"|---|{'---|' * len(contenders)}"
    for point in curve.points:
        cells = [_cell(point, name, contenders[0]) for name in contenders]
        yield f"| {point.x:,.0f} | {' | '.join(cells)} |"
    yield ""


def _cell(point: Point, name: str, first: str) -> str:
    samples = point.samples.get(name)
    if not samples:
        return ""
    middle, width = median(samples), spread(samples)
    own = point.samples.get(first)
    ratio = f", {middle / median(own):.2f}x" if name != first and own and median(own) else ""
    return f"{format_number(middle)}{'' if width is None else f' ± {format_number(width)}'}{ratio}"


def _machine(result: Result) -> str:
    facts = result.machine
    if not facts:
        return ""
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return (
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, {facts['system']}, "
        f"Python {facts['python']}, {packages}. Load average before {facts['load_average'][0]} and after "
        f"{facts['load_average_after'][0]}; took {result.seconds:.0f} s."
    )


def _quantity(value: float, unit: str) -> str:
    return format_number(value) + (unit if unit == "x" else f" {unit}")


def format_number(value: float) -> str:
    """Three digits, which say enough."""
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits
