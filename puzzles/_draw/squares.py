"""The map of right and wrong blocks of an output, from its text."""

from __future__ import annotations

from puzzles._draw.palette import cell, picture, text, text_width


def block_squares(words: str) -> str:
    """The map of right and wrong blocks as small squares; other lines as they are."""
    rows, drawn, y = words.splitlines(), [], 0
    for row in rows:
        marks = row.split()
        if not set(marks) <= {".", "x", "…"}:
            drawn.append(text(0, y + 13, row, size=12))
            y += 20
            continue
        for n, mark in enumerate(marks):
            if mark == "…":
                drawn.append(text(n * 20, y + 13, mark, size=12))
            else:
                name = "fault" if mark == "x" else "held"
                drawn.append(cell(n * 20, y, 17, 17, name))
        y += 20
    width = max(text_width(rows[0], 12), 20 * max(len(r.split()) for r in rows)) + 10
    style = "<div style='margin:6px 0 0 0'>"
    return f"{style}{picture(width, y, ''.join(drawn), words)}</div>"
