"""Copies by hand as a picture: one row a slot, the kernel's moments from left to right."""

from __future__ import annotations

from collections.abc import Sequence

from puzzles import Launch
from puzzles import _draw as p

_LEFT, _MOMENT = 116.0, 58.0


def reel(parts: Sequence[tuple[str, Launch]], title: str, says: str) -> str:
    """An SVG file: the copies of some launches, one below the other, each with its caption."""
    body, y = [p.text(20, 28, title, size=16, bold=True)], 54.0
    width = 80 + p.text_width(title, 16)
    for caption, launch in parts:
        found = p.walk_data(launch)["copies"]
        assert (found.unknown, found.faults) == ("", ())
        drawn, wide, high = p.copies_strip(found, _LEFT, _MOMENT)
        body.append(p.text(20, y + 6, caption, size=12, bold=True))
        body.append(f'<g transform="translate(0 {p.px(y + 14)})">{drawn}</g>')
        y += 14 + high + 26
        width = max(width, wide + 20)
    note = "A wait is drawn short where its copy could fly while the kernel computed."
    body.append(p.text(20, y, note, size=11, muted=True))
    y += 14
    used = p.marks_in("".join(body))
    legend, height = p.legend(used, 20, y, width - 40)
    drawn = "".join([*body, legend])
    return p.document(width, y + height + 20, drawn, title, says, p.mark_rules(used))
