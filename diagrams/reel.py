"""Copies by hand as a picture: one row a slot, the kernel's moments from left to right."""

from __future__ import annotations

from collections.abc import Sequence

from puzzles import Launch
from puzzles import _draw as p

_MOMENT, _ROW, _BAR, _LEFT = 58.0, 34.0, 15.0, 116.0
_MARKS = ("waits", "landed", "inward", "outward", "work")  # in the order in which they are drawn


def reel(parts: Sequence[tuple[str, Launch]], title: str, says: str) -> str:
    """An SVG file: the copies of some launches, one below the other, each with its caption."""
    body, y = [p.text(20, 28, title, size=16, bold=True, room=640)], 54.0
    used: set[str] = set()
    width = 20 + p.text_width(title, 16) + 60
    for caption, launch in parts:
        data = p.walk_data(launch)["copies"]
        assert (data["unknown"], data["faults"]) == ("", [])
        body.append(p.text(20, y + 6, caption, size=12, bold=True))
        drawn, marks = _rows(data, y + 14)
        body += drawn
        used |= marks
        y += 14 + _ROW * (1 + len(data["rows"])) + 26
        width = max(width, _LEFT + p.copies_edges(data, _MOMENT)[-1] + 20)
    note = "A wait is drawn short where its copy could fly while the kernel computed."
    body.append(p.text(20, y, note, size=11, muted=True))
    y += 14
    legend, height = p.legend([m for m in p.MARKS if m in used], 20, y, width - 40)
    return p.document(width, y + height + 20, "".join([*body, legend]), title, says)


def _rows(data: dict, top: float) -> tuple[list[str], set[str]]:
    """The kernel's row and those of the slots, and the marks that are in them."""
    drawn, used = [], set()
    x = [_LEFT + edge for edge in p.copies_edges(data, _MOMENT)]
    names = ["kernel", *data["rows"]]
    for n, name in enumerate(names):
        drawn.append(p.text(_LEFT - 10, top + _ROW * n + 26, name, size=12, anchor="end"))
    spans = p.copies_marked(data)
    for n, (kind, *_) in enumerate(data["moments"]):
        mark = "waits" if kind == "waits" else "work"
        spans.setdefault(mark, []).append((p.KERNEL, n, n + 1))
    for mark in _MARKS:
        for row, start, stop in spans.get(mark, ()):
            y = top + _ROW * (row + 1) + 15
            drawn.append(p.cell(x[start] + 2, y, x[stop] - x[start] - 4, _BAR, mark))
            used.add(mark)
    for slot, start, _, _, other, _ in data["trips"]:
        words = other[other.find("[") :]
        drawn.append(p.text(x[start] + 3, top + _ROW * (slot + 1) + 11, words, size=11))
    return drawn, used
