"""One plot per benchmark, with a panel per curve, readable on light and dark pages."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.measure import median, spread
from benchmarks.results import Curve, Result

# A medium grey, visible on both.
_INK = "#808080"
# Okabe and Ito's colour-blind safe colours that are neither too light nor too dark.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
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
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_LOOK):
        columns = min(_PANELS_IN_A_ROW, len(result.curves))
        rows = -(-len(result.curves) // columns)
        figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
        names = list(dict.fromkeys(name for c in result.curves for p in c.points for name in p.samples))
        for number, curve in enumerate(result.curves, start=1):
            _draw_panel(figure.add_subplot(rows, columns, number), curve, names)
        figure.savefig(folder / f"{result.name}.svg", transparent=True, metadata={"Date": None})


def _draw_panel(panel: Any, curve: Curve, names: list[str]) -> None:
    for number, name in enumerate(names):
        points = [(point.x, point.samples[name]) for point in curve.points if point.samples.get(name)]
        if not points:
            continue
        panel.errorbar(
            [x for x, _ in points],
            [median(samples) for _, samples in points],
            yerr=[(spread(samples) or 0.0) / 2 for _, samples in points],
            label=name,
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=4,
            capsize=2,
            linewidth=1.4,
        )
    values = [median(samples) for point in curve.points for samples in point.samples.values() if samples]
    if values and min(values) > 0 and max(values) > _WIDE_RANGE * min(values):
        panel.set_yscale("log")
    sizes = sorted({point.x for point in curve.points})
    if len(sizes) > 1 and sizes[0] > 0 and sizes[-1] > _WIDE_RANGE * sizes[0]:
        panel.set_xscale("log")
    panel.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], minor=False)
    panel.minorticks_off()
    panel.set_title(curve.title, fontsize=10)
    panel.set_xlabel(curve.axis)
    panel.set_ylabel(curve.unit)
    panel.grid(visible=True, color=_INK, alpha=0.25, linewidth=0.6)
    panel.legend(fontsize=8)
