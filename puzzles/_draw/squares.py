"""The map of right and wrong blocks of an output, from its text."""

from __future__ import annotations

import html

from puzzles._draw.palette import cell, text, text_width

_EACH = 22.0  # pixels from one square to the next: a number of three digits has room
_CELLS = {".", "x"}
_MARKS = {*_CELLS, "…"}


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
