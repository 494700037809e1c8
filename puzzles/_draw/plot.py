"""Small pictures: numbers as a line over their places, which matplotlib draws; and the map of right
and wrong blocks of an output, from its text.
"""

from __future__ import annotations

import html
import io
from collections.abc import Sequence

from puzzles._draw.palette import BLUE, cell, text, text_width

_EACH = 22.0  # pixels from one square to the next: a number of three digits has room
_CELLS = {".", "x"}
_MARKS = {*_CELLS, "…"}


def plot_svg(values: Sequence[float], title: str) -> str | None:
    """An SVG for a cell's output; None where matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return None
    with rc_context({"svg.hashsalt": "puzzles"}):  # the same numbers give the same bytes
        figure = Figure((7, 3), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.plot(values, marker="o", markersize=3, color=BLUE)
        picture = io.StringIO()
        figure.savefig(picture, format="svg", metadata={"Date": None}, transparent=True)
    # It shrinks with a narrow page. Ink has the colour of the text around it, in a dark theme, too.
    style = "max-width:100%;height:auto;fill:currentColor"
    drawn = picture.getvalue().replace("<svg ", f'<svg style="{style}" ', 1)
    return drawn.replace("#000000", "currentColor")


def block_squares(words: str) -> str:
    """The map of right and wrong blocks as small squares; other lines as they are."""
    rows, drawn, y, width = words.splitlines(), [], 0, 0.0
    for row in rows:
        marks = row.split()
        if any(not mark.isdecimal() and mark not in _MARKS for mark in marks):
            drawn.append(text(0, y + 13, row, size=12))
            width = max(width, text_width(row, 12))
            y += 20
            continue
        first = int(row.startswith(" ") and not set(marks) & _CELLS)
        for n, mark in enumerate(marks, first):  # block numbers begin over the first block
            if mark in _CELLS:
                drawn.append(cell(n * _EACH, y, 17, 17, "fault" if mark == "x" else "done"))
            else:
                drawn.append(text(n * _EACH + 8, y + 13, mark, size=11, anchor="middle"))
        width = max(width, _EACH * (len(marks) + first))
        y += 20
    width += 10
    return (
        f'<div style="margin-top:6px"><svg width="{width:g}" height="{y}" role="img" '
        f'aria-label="{html.escape(words)}">{"".join(drawn)}</svg></div>'
    )
