"""File sizes as a picture that Dagster's UI shows inside Markdown; drawn by hand, so that nothing is needed for it."""

import base64
from collections.abc import Sequence
from typing import Final

from floe_dagster_iceberg.models import FileSizeBin
from floe_dagster_iceberg.models.quantities import format_bytes

_WIDTH, _HEIGHT, _MARGIN = 640, 220, 30
_BEFORE, _AFTER, _TEXT = "#9aa5b1", "#4f43dd", "#7b8794"
_LABELS: Final = {"before": _BEFORE, "after": _AFTER}

Bars = Sequence[FileSizeBin]


def add_bars(histograms: Sequence[Bars | None]) -> tuple[FileSizeBin, ...]:
    """One histogram of several tables; those that were not measured are left out."""
    files: dict[int | None, list[int]] = {}
    for bar in (bar for bars in histograms if bars is not None for bar in bars):
        counted = files.setdefault(bar.upper_bytes, [0, 0])
        counted[0] += bar.files
        counted[1] += bar.total_bytes
    edges = sorted(files, key=lambda edge: float("inf") if edge is None else edge)
    return tuple(FileSizeBin(upper_bytes=edge, files=files[edge][0], total_bytes=files[edge][1]) for edge in edges)


def draw_histogram(before: Bars, after: Bars | None = None) -> str:
    """Markdown with a picture of how many data files have which size; empty when there is nothing to draw.

    Args:
        before: The files as they were, or as they are when there is only one state.
        after: The files as they are now.
    """
    if not before:
        return ""
    series = {"before": before, "after": after} if after else {"after": before}
    picture = base64.b64encode(_svg({name: bars for name, bars in series.items() if bars}).encode()).decode()
    return f"![Data files by size](data:image/svg+xml;base64,{picture})"


def _svg(series: dict[str, Bars]) -> str:
    names = _bin_names(next(iter(series.values())))
    highest = max((bar.files for bars in series.values() for bar in bars), default=0) or 1
    slot = (_WIDTH - 2 * _MARGIN) / len(names)
    shapes = [_text(_MARGIN + (place + 0.5) * slot, _HEIGHT - 8, name) for place, name in enumerate(names)]
    for order, (label, bars) in enumerate(series.items()):
        width = slot * 0.7 / len(series)
        for place, bar in enumerate(bars):
            left = _MARGIN + place * slot + slot * 0.15 + order * width
            shapes += _bar(left, width, bar.files, highest, _LABELS[label])
        if len(series) > 1:
            shapes.append(_text(_WIDTH - _MARGIN - 90 + 70 * order, 14, label, _LABELS[label]))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11">{"".join(shapes)}</svg>'
    )


def _bar(left: float, width: float, files: int, highest: int, colour: str) -> list[str]:
    room = _HEIGHT - 3 * _MARGIN
    # A bar that stands for something is always seen.
    height = 0.0 if files == 0 else max(2.0, files / highest * room)
    top = _HEIGHT - _MARGIN - height
    shape = f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'
    return [shape, _text(left + width / 2, top - 4, str(files), colour)] if files else []


def _text(x: float, y: float, words: str, colour: str = _TEXT) -> str:
    escaped = words.replace("&", "&amp;").replace("<", "&lt;")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" fill="{colour}">{escaped}</text>'


def _bin_names(bars: Bars) -> list[str]:
    lower, names = 0, []
    for bar in bars:
        names.append(f"≥ {format_bytes(lower)}" if bar.upper_bytes is None else f"< {format_bytes(bar.upper_bytes)}")
        lower = bar.upper_bytes or lower
    return names
