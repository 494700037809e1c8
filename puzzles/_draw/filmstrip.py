"""A filmstrip: some steps of a launch, one row each, and the block of every operand in it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from puzzles._draw import palette as p
from puzzles._launch import Launch, Operand

_PANEL, _GAP, _LEFT, _TOP = 132.0, 34.0, 96.0, 62.0
_SLICED = 1.6  # how many times smaller an array is whose slices lie side by side
_THINNEST = 12.0  # pixels of a block's height


# Rows of an operand's block, from, to (not included), and a word for them; without a word, rows
# that do not count.
Bands = Mapping[str, Sequence[tuple[int, int, str]]]


def film(
    launch: Launch,
    steps: Sequence[int],
    title: str,
    says: str,
    notes: Sequence[str],
    *,
    to_scale: bool = False,
    down: Sequence[str] = (),
    unsaid: Sequence[str] = (),
    bands: Sequence[Bands] = (),
) -> str:
    """An SVG file of the given steps of `launch`, one note beside each.

    to_scale: one scale for all arrays, scratch among them, and the legend in the palette's order.
    down: names of 1-D arrays that are drawn as columns. unsaid: marks that the notes explain.
    bands: for each step the rows of blocks to mark.
    """
    # what the pipeline moves: an operand that stays in HBM has no blocks to draw
    moved = [o for o in (*launch.inputs, *launch.outputs) if o.space not in ("any", "hbm")]
    operands = [o for o in moved if len(o.blocks)]
    if to_scale:
        operands += [o for o in launch.scratch if o.space == "vmem"]
    longest = max(size for o in operands for size in o.shape[-2:])
    room = _PANEL / _SLICED if any(len(o.shape) > 2 for o in operands) else _PANEL
    scale = room / longest if to_scale else None
    views = [_View(o, scale, o.name in down, tall=bool(bands)) for o in operands]
    gap = _GAP + 10 * bool(bands)  # room for a word beside a block
    if to_scale:  # rows all alike, and so high that blocks can be told apart
        low = min((view.bm * view.ky for view in views if view.rows > 1), default=_THINNEST)
        for view in views:
            view.stretch(max(1.0, _THINNEST / low))
    used: list[str] = []
    names = [f"({', '.join(str(int(i)) for i in launch.program_ids[step])})" for step in steps]
    first = max(_LEFT, 38 + max(p.text_width(name, 12, mono=True) for name in names))
    body = [p.text(20, 28, title, size=16, bold=True, room=640)]
    x = first
    for view in views:
        shape = " × ".join(map(str, view.operand.shape))
        body.append(p.text(x, _TOP - 6, view.operand.name, size=12, mono=True, room=view.width))
        body.append(p.text(x, _TOP + 9, shape, size=11, muted=True, room=view.width))
        x += view.width + gap
    note_room = max(p.text_width(note, 12) for note in notes) + 6
    width = max(x + note_room + 20, 20 + p.text_width(title, 16) + 60)
    row = max(view.height for view in views) + 26
    y = _TOP + 24
    for step, note, name in zip(steps, notes, names, strict=True):
        body.append(p.text(20, y + 12, name, size=12, mono=True, room=first - 30))
        body.append(p.text(20, y + 26, "grid step", size=11, muted=True, room=first - 30))
        x = first
        for view in views:
            drawn, mark = view.frame(launch, step, x, y)
            body.append(drawn)
            shown = bands[list(steps).index(step)].get(view.operand.name, ()) if bands else ()
            body += [view.band(step, one, x, y) for one in shown]
            mark += ["masked"] * any(not word for *_, word in shown)
            used = list(dict.fromkeys([*used, *mark]))
            x += view.width + gap
        body.append(p.text(x, y + 14, note, size=12, room=note_room))
        y += row
    if to_scale:
        used = [mark for mark in p.MARKS if mark in used and mark not in unsaid]
    legend, height = p.legend(used, 20, y + 6, width - 40)
    body.append(legend)
    return p.document(width, y + height + 26, "".join(body), title, says)


class _View:
    """Where the blocks of one operand lie in its panel."""

    def __init__(
        self,
        operand: Operand,
        scale: float | None = None,
        down: bool = False,
        tall: bool = False,
    ) -> None:
        self.operand, self.down = operand, down
        shape, sizes = self._flat(operand.shape, 1), self._flat(operand.sizes, 1)
        self.slices = math.prod(shape[:-2])
        self.rows, self.cols = shape[-2:]
        self.bm, self.bn = sizes[-2:]
        across, below = -(-self.cols // self.bn), -(-self.rows // self.bm)
        few = self.slices == 1 or (tall and self.slices <= 3)
        room = _PANEL / (1 if few else _SLICED)
        self.w = min(room, max(across * 26.0, room * self.cols / max(self.rows, self.cols)))
        most = room * (1 if tall and few else 0.72)
        self.h = min(most, max(below * 20.0, room * self.rows / max(self.rows, self.cols)))
        if scale is not None:
            self.w, self.h = self.cols * scale, self.rows * scale
        if self.cols == 1:
            self.w = 20.0
        if self.rows == 1:
            self.h = 24.0
        self.kx, self.ky = self.w / self.cols, self.h / self.rows
        over = (across * self.bn - self.cols) * self.kx, (below * self.bm - self.rows) * self.ky
        self.each = self.w + 10
        self.width = max(self.each * self.slices - 10 + max(over[0], 0), 58.0)
        self.height = self.h + max(over[1], 0)

    def stretch(self, factor: float) -> None:
        """Make rows higher; a single row is high enough."""
        if self.rows > 1:
            self.h, self.ky = self.h * factor, self.ky * factor
            self.height *= factor

    def _flat(self, sizes: tuple[int, ...], other: int) -> tuple[int, ...]:
        """Sizes or an index of two axes at least: a 1-D array is a row, or a column."""
        if len(sizes) > 1:
            return sizes
        return (*sizes, other) if self.down else (other, *sizes)

    def frame(self, launch: Launch, step: int, x: float, y: float) -> tuple[str, list[str]]:
        """The panel at one step, and the marks that it uses."""
        operand, drawn, marks = self.operand, [], []
        block = tuple(int(b) for b in operand.blocks[step])
        seen = {tuple(int(b) for b in one) for one in operand.blocks[:step]}
        for index in np.ndindex(*self._counts()):
            if index == block:
                continue
            past = index in seen
            if past:
                mark = "done" if operand.output else "read"
                left, top, wide, high = self._place(index, x, y)[:4]
                drawn.append(p.cell(left, top, wide, high, mark))
                marks.append(mark)
        for s in range(self.slices):
            left = x + s * self.each
            lines = p.rect(left, y, self.w, self.h)
            lines += "".join(
                f"M{p.px(left + c * self.bn * self.kx)} {p.px(y)}v{p.px(self.h)}"
                for c in range(1, -(-self.cols // self.bn))
            )
            lines += "".join(
                f"M{p.px(left)} {p.px(y + r * self.bm * self.ky)}h{p.px(self.w)}"
                for r in range(1, -(-self.rows // self.bm))
            )
            drawn.append(f'<path d="{lines}" fill="none" stroke="{p.INK}" stroke-opacity=".55"/>')
        mark = self._mark(launch, step)
        left, top, w, h, over_x, over_y = self._place(block, x, y)
        drawn.append(p.cell(left, top, w, h, mark))
        marks.append(mark)
        if over_x > 0.5:
            drawn.append(p.cell(left + w, top, over_x, h, "masked"))
        if over_y > 0.5:
            drawn.append(p.cell(left, top + h, w + over_x, over_y, "masked"))
        if over_x > 0.5 or over_y > 0.5:
            marks.append("masked")
        return "".join(drawn), marks

    def band(self, step: int, rows: tuple[int, int, str], x: float, y: float) -> str:
        """Some rows of the block of a step, with their word to the right."""
        left, top, width, *_ = self._place(tuple(int(b) for b in self.operand.blocks[step]), x, y)
        start, end, word = rows
        top, height = top + start * self.ky, (end - start) * self.ky
        if not word:
            return p.cell(left, top, width, height, "masked")
        edge = "".join(f"M{p.px(left)} {p.px(at)}h{p.px(width)}" for at in (top, top + height))
        line = f'<path d="{edge}" stroke="{p.INK}" stroke-width="1" fill="none"/>'
        room = p.text_width(word, 11) + 1
        return line + p.text(left + width + 4, top + height / 2 + 3, word, size=11, room=room)

    def _counts(self) -> tuple[int, ...]:
        pairs = zip(self.operand.shape, self.operand.sizes, strict=True)
        return tuple(-(-s // b) for s, b in pairs)

    def _place(self, index: tuple[int, ...], x: float, y: float) -> tuple[float, ...]:
        """x, y, width and height of a block inside the array, and how far it hangs over."""
        full = self._flat(index, 0)
        counts = self._counts()
        slice_, r, c = 0, *full[-2:]
        for i, n in zip(full[:-2], counts[:-2], strict=False):
            slice_ = slice_ * n + i
        w = min(self.bn, self.cols - c * self.bn)
        h = min(self.bm, self.rows - r * self.bm)
        left = x + slice_ * self.each + c * self.bn * self.kx
        top = y + r * self.bm * self.ky
        over = (self.bn - w) * self.kx, (self.bm - h) * self.ky
        return left, top, w * self.kx, h * self.ky, *over

    def _mark(self, launch: Launch, step: int) -> str:
        operand = self.operand
        if any(operand is one for one in launch.scratch):
            return "resident"
        if not operand.output:
            return "fetched" if operand.fetched[step] else "reused"
        last = step + 1 == launch.steps or bool(operand.fetched[step + 1])
        return "written" if last else "held"
