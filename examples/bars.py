"""Bar charts in Markdown, without a plotting library."""

import base64
from collections.abc import Mapping
from html import escape

_ROW, _LABEL, _WIDTH = 22, 200, 620


def draw_bars(shares: Mapping[str, float]) -> str:
    """Draw shares as horizontal bars, in the given order."""
    largest = max(shares.values(), default=0.0) or 1.0
    rows = []
    for position, (label, share) in enumerate(shares.items()):
        y, width = position * _ROW, (_WIDTH - _LABEL - 60) * share / largest
        rows.append(
            f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(label[:28])}</text>'
            f'<rect x="{_LABEL}" y="{y + 3}" width="{width:.0f}" height="{_ROW - 6}" fill="#4f6df5" rx="3"/>'
            f'<text x="{_LABEL + width + 6:.0f}" y="{y + 15}">{share:.0%}</text>'
        )
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_ROW * len(shares)}" '
        f'font-family="sans-serif" font-size="12">{"".join(rows)}</svg>'
    )
    return f"![shares](data:image/svg+xml;base64,{base64.b64encode(picture.encode()).decode()})"
