"""The picture of one operand: its array cut into blocks, and where everything lies in pixels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from puzzles._draw.data import Data, spans
from puzzles._draw.palette import hatch, px, rect, text

Box = tuple[float, float, float, float]  # x, y, width, height
LONGEST = 160  # pixels of the longest axis of a launch's matrices
SLICES = 12  # that are drawn side by side; of more, only the current one
_ROW = 300  # pixels that they share
EDGE = 26  # room for block numbers, and for a block outside the array
_HANGING = 64  # pixels at most of what is beyond an edge
_RIM = 8  # right and below, where nothing lies outside
_BOXES = 240  # areas of untouched blocks that are hatched, in all slices of an operand


def views(data: Data, size: float = 1.0) -> list[Data | None]:
    """Where each operand's blocks lie: one scale for all, so that equal lengths look equal.

    size: how large, beside a walk's.
    """
    moving = [o for o in data["operands"] if "count" in o]
    longest = max((size for o in moving for size in _drawn(o)), default=1)
    flat = all(len(_drawn(o)) < 2 for o in moving)
    scale = size * (210 if flat else LONGEST) / max(1, longest)
    faulty = {f["operand"] for f in data["faults"]}
    return [
        _view(o, scale, size * _ROW, EDGE if o["name"] in faulty else _RIM)
        if "count" in o
        else _still(o, scale)
        if o["role"] == "scratch"
        else None
        for o in data["operands"]
    ]


def _still(operand: Data, scale: float) -> Data:
    """Scratch, to the same scale."""
    rows, cols = (1, 1, *operand["shape"])[-2:]
    width, height = (min(LONGEST, max(18, round(size * scale, 1))) for size in (cols, rows))
    return {"w": width, "h": height, "width": width + 2, "height": height + 2}


def _drawn(operand: Data) -> list[int]:
    rows, cols = _axes(operand)
    return [operand["shape"][a] for a in (rows, cols) if a is not None]


def _axes(operand: Data) -> tuple[int | None, int | None]:
    """The two axes that are drawn: the last that blocks extend along, or else the last."""
    rank = len(operand["shape"])
    wide = [a for a in range(rank) if operand["sizes"][a] > 1]
    rest = [a for a in range(rank) if a not in wide]
    chosen = sorted((rest + wide)[-2:]) if rank > 2 else list(range(rank))
    return (None, *chosen)[-2:] if chosen else (None, None)  # type: ignore[return-value]


def _view(operand: Data, scale: float, row: float, rim: float) -> Data:
    rows, cols = _axes(operand)
    lead = [a for a in range(len(operand["shape"])) if a not in (rows, cols)]
    slices = math.prod(operand["counts"][a] for a in lead)
    many = 1 < slices <= SLICES
    across = 1
    if many:  # side by side, and so small that they fit into one row, or into two
        across = slices if slices <= 6 else -(-slices // 2)
        alone = operand["shape"][cols] * scale if cols is not None else 34.0
        scale *= min(0.72, (row / across - 14) / alone)
    width = _length(operand, cols, scale, 34)
    height = _length(operand, rows, scale, 26)
    kx = width / operand["shape"][cols] if cols is not None and width else 1.0
    ky = height / operand["shape"][rows] if rows is not None and height else 1.0
    over = overhang(operand)
    spots = range(slices if many else 1)
    x = [EDGE + (i % across) * (width + 14) for i in spots]
    y = [EDGE + (i // across) * (height + 22) for i in spots]
    return {
        "rows": rows,
        "cols": cols,
        "lead": lead,
        "slices": slices,
        "one": slices > 1 and not many,
        "x": x,
        "y": y,
        "w": width,
        "h": height,
        "kx": kx,
        "ky": ky,
        "width": max(x) + width + max(rim, _hanging(over, cols, kx) + 1),
        "height": y[-1] + height + max(rim, _hanging(over, rows, ky) + 1),
    }


def _length(operand: Data, axis: int | None, scale: float, alone: float) -> float:
    """Pixels of an axis: to scale, but never so thin that its blocks could not be told apart."""
    if axis is None:
        return alone
    thinnest = min(LONGEST, max(22, 13 * operand["counts"][axis]))
    return round(max(operand["shape"][axis] * scale, thinnest), 1)


def slice_of(view: Data, operand: Data, block: Iterable[int]) -> int:
    """The number of the slice along the axes that are not drawn."""
    index, number = list(block), 0
    for axis in view["lead"]:
        count = operand["counts"][axis]
        number = number * count + min(max(index[axis], 0), count - 1)
    return number


def place(view: Data, operand: Data, block: tuple[int, ...]) -> Box:
    """x, y, width and height of a block; beside the array if it lies outside."""
    spot = 0 if view["one"] else slice_of(view, operand, block)
    ends, shape = spans(operand, block), operand["shape"]

    def along(axis: int | None, whole: float, scale: float) -> tuple[float, float]:
        if axis is None:
            return 0.0, whole
        low, high = max(ends[axis][0], 0), min(ends[axis][1], shape[axis])
        if high <= low:
            return (-18.0, 14.0) if ends[axis][0] < 0 else (whole + 4, 14.0)
        if (high - low) * scale < 2:  # thinner than a line: on whole pixels, where many coincide
            return float(math.floor(low * scale)), 2.0
        return low * scale, (high - low) * scale

    x, w = along(view["cols"], view["w"], view["kx"])
    y, h = along(view["rows"], view["h"], view["ky"])
    return view["x"][spot] + x, view["y"][spot] + y, w, h


def overhang(operand: Data) -> dict[int, int]:
    """Elements by which the last block along an axis hangs over the edge, where it does."""
    if operand["stride"] != operand["sizes"] or any(operand["low"]):
        return {}
    ends = zip(operand["counts"], operand["sizes"], operand["shape"], strict=True)
    overs = enumerate(count * size - whole for count, size, whole in ends)
    return {axis: over for axis, over in overs if over > 0}


def _hanging(over: Mapping[int, int], axis: Any, scale: float) -> float:
    """Pixels of what hangs over: to scale, but a block may be much larger than its array."""
    return min(over.get(axis, 0) * scale, _HANGING)


def beyond(view: Data, operand: Data, block: tuple[int, ...]) -> str:
    """What of a block hangs over the edge, to the right and below."""
    over, counts = overhang(operand), operand["counts"]
    last = {axis: n for axis, n in over.items() if block[axis] == counts[axis] - 1}
    if not last:
        return ""
    x, y, w, h = place(view, operand, block)
    right = _hanging(last, view["cols"], view["kx"])
    below = _hanging(last, view["rows"], view["ky"])
    drawn = rect(x + w, y, right, h) * (right > 0)
    return drawn + rect(x, y + h, w + right, below) * (below > 0)


def now_path(place: Box) -> str:
    """The current block; its outline stays inside, but goes around it where there is no room."""
    x, y, w, h = place
    inset = 1.0 if min(w, h) >= 9 else -1.0
    return rect(x + inset, y + inset, w - 2 * inset, h - 2 * inset)


def untouched(view: Data, operand: Data) -> dict[str, list[str]]:
    """Slice -> outlines and hatching of the blocks that no step touches, neighbours joined.

    Nothing if they are so scattered that drawing them would take too many characters.
    """
    boxes: dict[str, list[Box]] = {}
    for first, last in _runs(operand):
        x, y, _, h = place(view, operand, first)
        u, v, w, g = place(view, operand, last)
        spot = slice_of(view, operand, first) if view["one"] else 0
        joined = boxes.setdefault(str(spot), [])
        box = (x, y, u + w - x, max(h, v + g - y))
        if joined and _stacked(joined[-1], box):
            above = joined.pop()
            box = (x, above[1], above[2], y + box[3] - above[1])
        joined.append(box)
    if sum(map(len, boxes.values())) > _BOXES:
        return {}
    return {
        spot: ["".join(rect(*b) for b in found), "".join(hatch(*b, "/") for b in found)]
        for spot, found in boxes.items()
    }


def _stacked(above: Box, below: Box) -> bool:
    same = abs(above[0] - below[0]) < 0.01 and abs(above[2] - below[2]) < 0.01
    return same and abs(above[1] + above[3] - below[1]) < 0.01


def _runs(operand: Data) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """First and last block of every run of untouched blocks in a row."""
    counts = operand["counts"]
    row = counts[-1] if counts else 1
    numbers = enumerate(operand["never"])
    for _, run in itertools.groupby(numbers, lambda one: (one[1] - one[0], one[1] // row)):
        own = [number for _, number in run]
        yield tuple(np.unravel_index(own[0], counts)), tuple(np.unravel_index(own[-1], counts))


def frame(view: Data) -> str:
    """The outline of the array, or of each slice."""
    corners = zip(view["x"], view["y"], strict=True)
    outline = "".join(rect(x, y, view["w"], view["h"]) for x, y in corners)
    return (
        f'<path d="{outline}" fill="currentColor" fill-opacity=".04" stroke="currentColor" '
        f'stroke-opacity=".55"/>'
    )


def lines_and_numbers(view: Data, operand: Data) -> str:
    """Lines between blocks, block numbers, captions of slices."""
    lines, labels = [], []
    across = _cuts(operand, view["cols"], view["kx"])
    down = _cuts(operand, view["rows"], view["ky"])
    for x, y in zip(view["x"], view["y"], strict=True):
        lines += [f"M{px(x + c)} {px(y)}v{px(view['h'])}" for c in across[1:-1]]
        lines += [f"M{px(x)} {px(y + c)}h{px(view['w'])}" for c in down[1:-1]]
    x, y = view["x"][0], view["y"][0]
    if len(view["x"]) == 1:
        for number, middle, room in _numbered(across):
            labels.append(_label(x + middle, y - 5, number, room))
        for number, middle, room in _numbered(down):
            if room >= 11:
                labels.append(_label(x - 5, y + middle + 4, number, EDGE - 6, "end"))
    else:
        for spot, (u, v) in enumerate(zip(view["x"], view["y"], strict=True)):
            index = np.unravel_index(spot, [operand["counts"][a] for a in view["lead"]])
            caption = "[" + ", ".join(str(int(i)) for i in index) + "]"
            labels.append(_label(u + view["w"] / 2, v - 5, caption, view["w"] + 12))
    return (
        f'<path d="{"".join(lines)}" fill="none" stroke="currentColor" stroke-opacity=".3"/>'
        f"{' '.join(labels)}"
    )


def _label(x: float, y: float, words: str, room: float, anchor: str = "middle") -> str:
    return text(x, y, words, size=11, room=room, anchor=anchor, muted=True)


def _cuts(operand: Data, axis: int | None, scale: float) -> list[float]:
    """Where an axis is cut, in pixels, ends included; nothing where cuts would run together."""
    if axis is None or operand["stride"][axis] != operand["sizes"][axis]:
        return []
    step, count = operand["sizes"][axis] * scale, operand["counts"][axis]
    if step < 3.5 and count > 1:
        return []
    return [i * step for i in range(count)] + [operand["shape"][axis] * scale]


def _numbered(cuts: list[float]) -> Iterable[tuple[str, float, float]]:
    """(number, middle, room) of the blocks between cuts that have room for their number."""
    cells = list(itertools.pairwise(cuts))
    if not cells:
        return
    wide = 7.0 * len(str(len(cells) - 1)) + 6
    every = max(1, math.ceil(wide / max(1.0, cells[0][1] - cells[0][0])))
    for number, (a, b) in enumerate(cells):
        if number % every == 0 and b - a > 4:
            yield str(number), (a + b) / 2, max((b - a) * every - 1, 8.0)
