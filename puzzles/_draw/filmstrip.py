"""A filmstrip: some steps of a launch, drawn as in its grid timeline, one row for each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from puzzles._draw import palette as p
from puzzles._draw.data import Data, walk_data
from puzzles._draw.frames import Frames, mark_rules, marks_in
from puzzles._draw.operand import picture, still_box
from puzzles._draw.panel import EDGE, Box, place, views
from puzzles._launch import Launch

_GAP, _LEFT, _TOP = 20.0, 96.0, 62.0


@dataclass(frozen=True)
class Still:
    """An operand at one step: its picture, and the box of the current block in it."""

    operand: Data
    width: float
    height: float
    drawn: str
    block: Box


def film(
    launch: Launch,
    steps: Sequence[int],
    title: str,
    says: str,
    notes: Sequence[str],
    *,
    over: Callable[[int, Still], str] | None = None,
    drawn: Sequence[str] = (),
) -> str:
    """An SVG file of the given steps of `launch`, with a note next to each step.

    over: returns SVG to draw on top of an operand in the n-th row. Pictures are larger then, and
    show no sums. drawn: the marks that `over` uses.
    """
    data = walk_data(launch)
    if over:
        data["operands"] = [{k: v for k, v in o.items() if k != "filled"} for o in data["operands"]]
    sliced = any(len(o["shape"]) > 2 for o in data["operands"])  # side by side
    size = 1.1 if over else 0.5 if sliced else 0.7  # beside a walk's: a row has a note, too
    rows = [_stills(data, step, size) for step in steps]
    heads = [
        (still.operand["name"], " × ".join(map(str, still.operand["shape"]))) for still in rows[0]
    ]
    room = 44.0 if over else 0.0  # for a word beside a block
    wide = [
        max(still.width + room, p.text_width(name, 12, mono=True), p.text_width(shape, 11))
        for still, (name, shape) in zip(rows[0], heads, strict=True)
    ]
    names = [f"({', '.join(map(str, launch.at(step)))})" for step in steps]
    first = max(_LEFT, 38 + max(p.text_width(name, 12, mono=True) for name in names))
    lefts = [first + sum(wide[:n]) + n * _GAP for n in range(len(wide) + 1)]
    body = [p.text(20, 28, title, size=16, bold=True)]
    for x, (name, shape) in zip(lefts, heads, strict=False):
        body.append(p.text(x, _TOP - 6, name, size=12, mono=True))
        body.append(p.text(x, _TOP + 9, shape, size=11, muted=True))
    high = max(still.height for still in rows[0]) + 12
    y = _TOP + 20
    for n, (drawn_step, note, name) in enumerate(zip(rows, notes, names, strict=True)):
        body.append(p.text(20, y + 36, name, size=12, mono=True))
        body.append(p.text(20, y + 50, "grid step", size=11, muted=True))
        for x, still in zip(lefts, drawn_step, strict=False):
            marked = over(n, still) if over else ""
            body.append(f'<g transform="translate({p.px(x)} {p.px(y)})">{still.drawn}{marked}</g>')
        body.append(p.text(lefts[-1], y + 38, note, size=12))
        y += high
    longest = max(p.text_width(note, 12) for note in notes)
    width = max(lefts[-1] + longest + 26, 80 + p.text_width(title, 16))
    used = marks_in("".join(body)) | set(drawn)
    legend, height = p.legend(used, 20, y + 6, width - 40)
    body.append(legend)
    return p.document(width, y + height + 26, "".join(body), title, says, mark_rules(used))


def _stills(data: Data, step: int, size: float) -> list[Still]:
    """The operands that move in blocks, and scratch that holds a sum, at one step.

    step: counted from 0. size: the scale, relative to a grid timeline's.
    """
    stills = []
    frames = Frames("grid step", data["kept"], step, interactive=False)
    for operand, view in zip(data["operands"], views(data, size), strict=True):
        if "count" in operand:
            block = place(view, operand, operand["starts"][step])
            drawn = picture(data, frames, operand, view)
        elif view and "filled" in operand:
            block = (1.0, 1.0, view["w"], view["h"])
            box = still_box(data, frames, operand, view)
            drawn = f'<g transform="translate(0 {EDGE - 1})">{box}</g>'
        else:
            continue
        stills.append(Still(operand, view["width"], view["height"], drawn, block))
    return stills
