"""The geometry of one operand's picture: an array, its blocks and its slices, in pixels.

The last two axes are drawn; a vector is one row. Slices along the other axes are side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from puzzles._draw.data import Data
from puzzles._draw.palette import hatch, px, rect, text

Box = tuple[float, float, float, float]  # x, y, width, height
LONGEST = 160  # pixels of the longest axis of a launch's matrices
SLICES = 12  # drawn side by side at most; of more slices only the current one is drawn
_ROW = 300  # pixels that they share
EDGE = 26  # room for block numbers, and for a block outside the array
_HANGING = 64  # pixels at most beyond an edge: a block may be larger than its array
_RIM = 8  # pixels to the right and below, if no block is outside
_UNTOUCHED = 480  # hatched blocks at most; if there are more, none is hatched


def views(data: Data, size: float = 1.0) -> list[Data]:
    """The geometry of each operand, on one scale, so that equal lengths look equal.

    size: the scale, relative to a grid timeline's. Operands without a picture get {}.
    """
    held = [o for o in data["operands"] if o["role"] == "scratch" and "sem" not in o["space"]]
    shapes = [o["shape"][-2:] for o in data["operands"] if "count" in o]
    if all(len(shape) < 2 for shape in shapes):  # a scalar must not be larger than scratch
        shapes += [o["shape"][-2:] for o in held]
    scale = size * LONGEST / max([1, *itertools.chain(*shapes)])
    faulty = {f["operand"] for f in data["faults"]}
    geometry: list[Data] = []
    for operand in data["operands"]:
        if "count" in operand:
            rim = EDGE if operand["name"] in faulty else _RIM
            geometry.append(_view(operand, scale, size * _ROW, rim))
        else:
            geometry.append(_still(operand, scale) if operand in held else {})
    return geometry


def _still(operand: Data, scale: float) -> Data:
    """Scratch, to the same scale."""
    rows, cols = _drawn(operand["shape"], 1)
    width, height = (min(LONGEST, max(18, round(size * scale, 1))) for size in (cols, rows))
    return {"w": width, "h": height, "width": width + 2, "height": height + 2}


def _drawn(values: Sequence[int], missing: int) -> Sequence[int]:
    """The values of the two axes that are drawn: rows and columns."""
    return (missing, missing, *values)[-2:]


def _view(operand: Data, scale: float, row: float, rim: float) -> Data:
    (rows, cols), (high, wide) = _drawn(operand["shape"], 1), _drawn(operand["sizes"], 1)
    slices = math.prod(operand["counts"][:-2])
    shown = slices if 1 < slices <= SLICES else 1
    across = shown if shown <= 6 else -(-shown // 2)
    if shown > 1:  # so small that they fit into one row, or into two
        scale *= min(0.72, (row / across - 14) / (cols * scale))
    down, right = _drawn(operand["counts"], 1)
    width, height = _length(cols, right, scale), _length(rows, down, scale)
    view = {
        "slices": slices,
        "one": slices > shown,
        "x": [EDGE + (i % across) * (width + 14) for i in range(shown)],
        "y": [EDGE + (i // across) * (height + 22) for i in range(shown)],
        "w": width,
        "h": height,
        # Of rows and columns: all of them, those of a block, and pixels of each.
        "axes": ((rows, high, height / max(1, rows)), (cols, wide, width / max(1, cols))),
    }
    below, beside = _hanging(view, ((down - 1) * high, (right - 1) * wide))
    view["width"] = max(view["x"]) + width + max(rim, beside + 1)
    view["height"] = max(view["y"]) + height + max(rim, below + 1)
    return view


def _length(size: int, count: int, scale: float) -> float:
    """Pixels of an axis: to scale, but wide enough to distinguish its blocks."""
    return round(max(size * scale, min(LONGEST, max(22, 13 * count))), 1)


def slice_of(operand: Data, start: Sequence[int]) -> int:
    """The number of the slice along the axes that are not drawn."""
    number = 0
    for axis, count in enumerate(operand["counts"][:-2]):
        index = start[axis] // operand["sizes"][axis]
        number = number * count + min(max(index, 0), count - 1)
    return number


def place(view: Data, operand: Data, start: Sequence[int]) -> Box:
    """x, y, width and height of the block at `start`; next to the array if it is outside."""
    spot = 0 if view["one"] else slice_of(operand, start)
    top, left = _drawn(start, 0)
    y, h = _along(top, *view["axes"][0])
    x, w = _along(left, *view["axes"][1])
    return view["x"][spot] + x, view["y"][spot] + y, w, h


def _along(first: int, whole: int, size: int, scale: float) -> tuple[float, float]:
    """The beginning and the length of a block along an axis, in pixels."""
    low, high = max(first, 0), min(first + size, whole)
    if high <= low:
        return (-18.0, 14.0) if first < 0 else (whole * scale + 4, 14.0)
    return low * scale, max((high - low) * scale, 2.0)


def _hanging(view: Data, start: Sequence[int]) -> list[float]:
    """Pixels of a block below the last row, and to the right of the last column."""
    lengths = []
    for first, (whole, size, scale) in zip(_drawn(start, 0), view["axes"], strict=True):
        over = first + size - whole if first < whole else 0
        lengths.append(min(max(over, 0) * scale, _HANGING))
    return lengths


def beyond(view: Data, operand: Data, start: Sequence[int]) -> str:
    """The part of a block that hangs over the edge, to the right and below."""
    x, y, w, h = place(view, operand, start)
    below, right = _hanging(view, start)
    drawn = rect(x + w, y, right, h) * (right > 0)
    return drawn + rect(x, y + h, w + right, below) * (below > 0)


def untouched(view: Data, operand: Data) -> dict[int, list[str]]:
    """Slice -> areas and hatching of its untouched blocks; {} if there are too many."""
    areas: dict[int, list[str]] = {}
    if len(operand["never"]) > _UNTOUCHED:
        return areas
    for number in operand["never"]:
        index = np.unravel_index(number, operand["counts"])
        start = [int(n) * size for n, size in zip(index, operand["sizes"], strict=True)]
        box = place(view, operand, start)
        drawn = areas.setdefault(slice_of(operand, start) if view["one"] else 0, ["", ""])
        drawn[0] += rect(*box)
        drawn[1] += hatch(*box, "/")
    return areas


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
    down, across = (_cuts(*axis) if operand["tiled"] else [] for axis in view["axes"])
    corners = list(zip(view["x"], view["y"], strict=True))
    for x, y in corners:
        lines += [f"M{px(x + c)} {px(y)}v{px(view['h'])}" for c in across[1:-1]]
        lines += [f"M{px(x)} {px(y + c)}h{px(view['w'])}" for c in down[1:-1]]
    if len(corners) > 1:
        lead = operand["counts"][:-2]
        for index, (x, y) in zip(np.ndindex(*lead), corners, strict=True):
            caption = f"[{', '.join(map(str, index))}]"
            labels.append(_label(x + view["w"] / 2, y - 5, caption))
    else:
        x, y = corners[0]
        labels += [_label(x + middle, y - 5, number) for number, middle in _numbered(across)]
        if len(operand["shape"]) > 1:
            rows = _numbered(down)
            labels += [_label(x - 5, y + middle + 4, number, "end") for number, middle in rows]
    return (
        f'<path d="{"".join(lines)}" fill="none" stroke="currentColor" stroke-opacity=".3"/>'
        f"{' '.join(labels)}"
    )


def _label(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return text(x, y, words, size=11, anchor=anchor, muted=True)


def _cuts(whole: int, size: int, scale: float) -> list[float]:
    """The cuts of an axis in pixels, with both ends; [] if they would run together."""
    if size * scale < 3.5 and size < whole:
        return []
    return [first * scale for first in range(0, whole, max(1, size))] + [whole * scale]


def _numbered(cuts: list[float]) -> Iterable[tuple[str, float]]:
    """Yield (number, middle) of the blocks between cuts that have room for a number."""
    wide = 7.0 * len(str(len(cuts) - 2)) + 6
    every = math.ceil(wide / max(1.0, cuts[1])) if len(cuts) > 1 else 1
    for number, (a, b) in enumerate(itertools.pairwise(cuts)):
        if number % every == 0 and (b - a) * every >= 12:
            yield str(number), (a + b) / 2
