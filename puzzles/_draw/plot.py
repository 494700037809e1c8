"""A few numbers as a line over their places, or as a bar for each name: matplotlib draws them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from puzzles._draw.palette import BLUE

_ROW = 0.3  # inches of height for a bar


def plot_svg(values: Sequence[float] | Mapping[str, float], title: str) -> str | None:
    """An SVG for a cell's output; None where matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return None
    names = isinstance(values, Mapping)
    with rc_context({"svg.hashsalt": "puzzles"}):  # the same numbers give the same bytes
        figure = Figure((7, 1 + _ROW * len(values) if names else 3), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        if isinstance(values, Mapping):
            bars = axes.barh(list(values), list(values.values()), color=BLUE)
            axes.bar_label(bars, [number(value) for value in values.values()], padding=3)
            axes.invert_yaxis()
            axes.margins(x=0.15)  # room for the longest bar's number
        else:
            axes.plot(values, marker="o", markersize=3, color=BLUE)
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None}, transparent=True)
    # It shrinks with a narrow page: else the longest bar's number is beyond its edge. Ink has the
    # colour of the text around it, in a dark theme, too.
    style = "max-width:100%;height:auto;fill:currentColor"
    drawn = picture.getvalue().replace("<svg ", f'<svg style="{style}" ', 1)
    return drawn.replace("#000000", "currentColor")


def plot_text(values: Sequence[float] | Mapping[str, float], title: str) -> str:
    """Numbers as a table: a line for each name, or for each place."""
    named = values if isinstance(values, Mapping) else dict(enumerate(values))
    wide = max(len(str(name)) for name in named)
    rows = [f"{name!s:>{wide}}  {number(value)}" for name, value in named.items()]
    return "\n".join([title] * bool(title) + rows)


def number(value: float) -> str:
    """Four digits, and no exponent where it can be helped: 0.9643, 12.5, 1,234,567."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
