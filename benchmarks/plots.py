"""One plot per benchmark, with a panel per curve, and the README's chart; readable on light and dark pages."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from benchmarks.measure import median, spread
from benchmarks.results import Curve, Point, Result

# A medium grey, visible on both.
_INK = "#808080"
# Okabe and Ito's colour-blind safe colours that are neither too light nor too dark: one for each contender, in every
# plot. What follows a comma in a contender's name is a variant of it, with the same colour and another line.
_COLOURS = {
    "ours": "#D55E00",
    "peer": "#0072B2",
    "raw PyIceberg": "#009E73",
    "Spark by hand": "#CC79A7",
    "Parquet limit": _INK,
    "dagster": "#56B4E9",
    "an empty location": "#56B4E9",
    "telemetry on": "#D55E00",
    "telemetry off": "#56B4E9",
}
_NAMES = {
    "ours": "floe-dagster-iceberg",
    "peer": "dagster-iceberg 0.3.14",
    "raw PyIceberg": "PyIceberg by hand",
    "Parquet limit": "one Parquet file, as the limit",
}
_UNITS = {"s": "seconds, median"}
_MARKERS = ("o", "s", "^", "D")
_LINES = ("-", "--", ":", "-.")
_LOOK: Any = {
    "svg.fonttype": "none",
    # Deterministic output.
    "svg.hashsalt": "floe",
    "font.family": "sans-serif",
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK),
    "axes.facecolor": "none",
    "legend.frameon": False,
}
_WIDE_RANGE = 8
_PANELS_IN_A_ROW = 3


def draw(result: Result, folder: Path) -> None:
    """Write <name>.svg."""
    _save(result.curves, result.about.strip().partition("\n")[0].removesuffix("."), folder / f"{result.name}.svg")


def draw_headline(result: Result, folder: Path) -> None:
    """Write fast.svg, the README's chart: the cost of a commit to a table that grows old."""
    contenders = ("ours, new process", "raw PyIceberg", "peer")
    curve = result.curves[0]
    points = [
        Point(point.x, {name.partition(",")[0]: point.samples[name] for name in contenders if name in point.samples})
        for point in curve.points
    ]
    title = "Time to replace one day (1,000 rows) of a table, by its age"
    _save(
        [replace(curve, title="", axis="days in the table, each written by a commit", points=points)],
        title,
        folder / "fast.svg",
    )


def _save(curves: Sequence[Curve], title: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_LOOK):
        columns = min(_PANELS_IN_A_ROW, len(curves))
        rows = -(-len(curves) // columns)
        figure = Figure(figsize=(max(6.4, 4.2 * columns), 3.4 * rows + 0.4), layout="constrained")
        figure.suptitle(title, fontsize=11)
        names = list(dict.fromkeys(name for c in curves for p in c.points for name in p.samples))
        for number, curve in enumerate(curves, start=1):
            _draw_panel(figure.add_subplot(rows, columns, number), curve, names)
        figure.savefig(file, transparent=True, metadata={"Date": None})


def _draw_panel(panel: Any, curve: Curve, names: Sequence[str]) -> None:
    has_one_size = len({point.x for point in curve.points}) == 1
    for name in names:
        points = [(point.x, point.samples[name]) for point in curve.points if point.samples.get(name)]
        if points:
            (_draw_bar if has_one_size else _draw_line)(panel, name, points, names)
    values = [median(samples) for point in curve.points for samples in point.samples.values() if samples]
    if not has_one_size:
        if values and min(values) > 0 and max(values) > _WIDE_RANGE * min(values):
            panel.set_yscale("log")
            # Powers of ten alone would leave some panels with a single number.
            panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        _label_sizes(panel, curve)
    panel.set_title(curve.title, fontsize=10)
    panel.set_ylabel(_UNITS.get(curve.unit, curve.unit) + (", log scale" if panel.get_yscale() == "log" else ""))
    panel.grid(visible=True, axis="y" if has_one_size else "both", color=_INK, alpha=0.25, linewidth=0.6)
    if not has_one_size:
        panel.legend(fontsize=8)


def _draw_line(panel: Any, name: str, points: Sequence[tuple[float, Sequence[float]]], names: Sequence[str]) -> None:
    variant = _variant(name, names)
    panel.errorbar(
        [x for x, _ in points],
        [median(samples) for _, samples in points],
        yerr=[(spread(samples) or 0.0) / 2 for _, samples in points],
        label=_label(name),
        color=_colour(name),
        marker=_MARKERS[variant % len(_MARKERS)],
        linestyle=_LINES[variant % len(_LINES)],
        markersize=4,
        capsize=2,
        linewidth=1.4,
    )


def _draw_bar(panel: Any, name: str, points: Sequence[tuple[float, Sequence[float]]], names: Sequence[str]) -> None:
    del names
    [(_, samples)] = points
    height = median(samples)
    # The names are too long to stand side by side.
    label = _label(name).replace("-iceberg", "-\niceberg")
    panel.bar([label], [height], yerr=[(spread(samples) or 0.0) / 2], color=_colour(name), width=0.6, capsize=2)
    panel.annotate(
        f"{height:.2f}", (label, height), ha="center", va="bottom", xytext=(0, 4), textcoords="offset points"
    )
    panel.margins(y=0.15)


def _label_sizes(panel: Any, curve: Curve) -> None:
    sizes = sorted({point.x for point in curve.points})
    if sizes[0] > 0 and sizes[-1] > _WIDE_RANGE * sizes[0]:
        panel.set_xscale("log")
    panel.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], minor=False)
    panel.minorticks_off()
    panel.set_xlabel(curve.axis)


def _variant(name: str, names: Sequence[str]) -> int:
    """The number of a contender among its variants."""
    return [each for each in names if _contender(each) == _contender(name)].index(name)


def _contender(name: str) -> str:
    return name.partition(",")[0]


def _colour(name: str) -> str:
    return _COLOURS[_contender(name)]


def _label(name: str) -> str:
    contender, comma, variant = name.partition(",")
    return f"{_NAMES.get(contender, contender)}{comma}{variant}"
