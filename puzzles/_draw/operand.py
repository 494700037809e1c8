"""One operand of a grid timeline: words, and a picture for each frame."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from puzzles._draw.data import Data
from puzzles._draw.frames import Frames, PerFrame, each, growing, piece
from puzzles._draw.palette import cell, rect, text_width, tuple_words
from puzzles._draw.panel import Box, beyond, frame, lines_and_numbers, place, slice_of, untouched
from puzzles._draw.words import describe, still_words

# The states of a block at a step, as words and as a mark.
STATES = {
    "fetched": ("fetched", "fetched"),
    "refetched": ("fetched again", "fetched"),
    "reused": ("reused", "reused"),
    "held": ("stays in VMEM", "held"),
    "written": ("written back", "written"),
    "rewritten": ("written back again", "written"),
    "outside": ("outside the array", "fault"),
}


def head(operand: Data) -> str:
    """The operand's name, shape and blocks."""
    words = "<br>".join(map(html.escape, filter(None, describe(operand))))
    return piece("operand", name=html.escape(operand["name"]), what=words)


def marks_of(data: Data, operand: Data) -> list[str]:
    """The mark of the current block in each frame."""
    at_fault = {f["at"] for f in data["faults"] if f["operand"] == operand["name"]}
    states = enumerate(operand["states"])
    return ["fault" if k in at_fault else STATES[state][1] for k, state in states]


def moving_panel(data: Data, frames: Frames, operand: Data, view: Data) -> str:
    """The panel of an operand that moves in blocks: the current block, and the array."""
    never, total = len(operand["never"]), math.prod(operand["counts"])
    small = [f"one of {view['slices']:,} slices is drawn"] * view["one"]
    small += [f"{never:,} of {total:,} blocks never touched"] * bool(never)
    dots = [f"pz-dot pz-d-{mark}" for mark in marks_of(data, operand)]
    lines = (1.06 * text_width(line, 11) for line in describe(operand))
    return piece(
        "panel of what moves",
        wide=max(118, view["width"], *lines),
        head=head(operand),
        where=frames.element("b", each(list(map(tuple_words, operand["blocks"])))),
        state=frames.element("span", each([STATES[state][0] for state in operand["states"]])),
        dot=frames.attributes(class_=each(dots)),
        small="<br>".join(small),
        view=view,
        name=html.escape(operand["name"]),
        grid=" by ".join(map(str, operand["counts"])) or "one",
        picture=picture(data, frames, operand, view),
        noun="writes" if operand["role"] == "output" else "fetches",
        count=frames.element("b", each([f"{n:,}" for n in operand["count"]])),
        side=' data-left=""' * (operand.get("band") == "row"),
    )


def picture(data: Data, frames: Frames, operand: Data, view: Data) -> str:
    """The array: untouched blocks, blocks of earlier steps, and the current block."""
    output, marks = operand["role"] == "output", marks_of(data, operand)
    boxes = [place(view, operand, start) for start in operand["starts"]]
    slices = [slice_of(operand, start) if view["one"] else 0 for start in operand["starts"]]
    before, twice = _before(operand, boxes, slices)
    never = untouched(view, operand)
    areas, hatches = zip(*(never.get(number, ("", "")) for number in slices), strict=True)
    faults = [(f["operand"], f["kind"]) for f in data["faults"]]
    lost = (operand["name"], "never-written") in faults
    earlier: set[tuple[int, ...]] = set()
    over = []  # a block that an earlier step tinted keeps its tint under the outline
    for block, mark in zip(operand["blocks"], marks, strict=True):
        over.append(" pz-over" * (mark in ("reused", "held") and block in earlier))
        earlier.add(block)
    now = frames.attributes(
        class_=each([f"pz-now pz-m-{mark}{o}" for mark, o in zip(marks, over, strict=True)]),
        d=each([rect(x + 1, y + 1, w - 2, h - 2) for x, y, w, h in boxes]),  # its outline inside
    )
    band = [_band(view, operand, box) for box in boxes]
    layers = [
        ("pz-band", each(band)),
        (f"pz-never pz-m-{'fault' if lost else 'untouched'}", each(areas)),
        (f"pz-lines{' pz-lost' * lost}", each(hatches)),
        (f"pz-seen pz-m-{'done' if output else 'read'}", before),
        (f"pz-twice pz-m-{'fault' if output else 'reread'}", twice),
        ("pz-m-beyond", each([beyond(view, operand, start) for start in operand["starts"]])),
    ]
    drawn = "".join(
        f'<path class="{name}" {frames.attributes(d=d)}/>' for name, d in layers if any(d.texts)
    )
    return (
        f"{frame(view)}{drawn}{lines_and_numbers(view, operand)}<path {now}/>"
        f"{_fill(frames, operand, boxes)}"
    )


def _band(view: Data, operand: Data, box: Box) -> str:
    """The row or column of blocks of a factor that one block of the product needs."""
    x, y, w, h = box
    if operand.get("band") == "row":
        return rect(view["x"][0], y, view["w"], h)
    return rect(x, view["y"][0], w, view["h"]) if operand.get("band") == "column" else ""


def _before(operand: Data, boxes: list[Box], slices: list[int]) -> tuple[PerFrame, PerFrame]:
    """Blocks that earlier steps held, and those that they moved more than once."""
    moved: Counter[tuple[int, ...]] = Counter()
    held, again = [], []
    for n, block in enumerate(operand["blocks"]):
        drawn = rect(*boxes[n]) * (operand["states"][n] != "outside")
        held.append(drawn * (block not in moved))
        moved[block] += operand["moves"][n]
        again.append(drawn * (operand["moves"][n] and moved[block] == 2))
    return growing(held, slices), growing(again, slices)


def _fill(frames: Frames, operand: Data, boxes: Sequence[Box]) -> str:
    """The share of its sum that the block holds, filled from the bottom."""
    if "filled" not in operand:
        return ""
    paths = []
    for (x, y, w, h), percent in zip(boxes, operand["filled"], strict=True):
        high = (h - 4) * percent / 100
        paths.append(rect(x + 2, y + h - 2 - high, w - 4, high))
    return f'<path class="pz-m-summed" {frames.attributes(d=each(paths))}/>'


def still_panel(data: Data, frames: Frames, operand: Data, view: Data) -> str:
    """The panel of an operand that stays in place: scratch, or an array in HBM."""
    words, name = html.escape(still_words(operand)), head(operand)
    if not view:
        return f'<div class="pz-panel">{name}<div class="pz-state">{words}</div></div>'
    wide, box = max(110, view["width"]), still_box(data, frames, operand, view)
    return piece("panel of what stays", wide=wide, head=name, words=words, view=view, picture=box)


def still_box(data: Data, frames: Frames, operand: Data, view: Data) -> str:
    """Scratch, filled up to the share of its sum that it holds."""
    box = (1.0, 1.0, view["w"], view["h"])
    return cell(*box, "resident") + _fill(frames, operand, [box] * data["kept"])


def list_panel(data: Data, frames: Frames, operand: Data) -> str:
    """The panel of a prefetched array: its numbers, with those marked that a step reads."""
    shape, _ = describe(operand)
    name, words = html.escape(operand["name"]), html.escape(f"{shape}; {still_words(operand)}")
    read = np.array(operand["used"], np.int64).reshape(-1, data["kept"])
    return piece("panel of a list", name=name, what=words, cells=_cells(frames, operand, read))


def _cells(frames: Frames, operand: Data, read: np.ndarray) -> str:
    """The numbers; each row of the array begins a new line."""
    numbers = operand["numbers"]
    drawn = '<div class="pz-cells">'
    for n, number in enumerate(numbers):
        if n and len(operand["shape"]) > 1 and n % operand["shape"][-1] == 0:
            drawn += '</div><div class="pz-cells">'
        used = (read == n).any(axis=0)
        mark = frames.attributes(class_=each(["pz-used" * bool(read) for read in used]))
        drawn += f"<i {mark}>{number}</i>"
    more = f'<div class="pz-what">the first {len(numbers)} of {math.prod(operand["shape"]):,}</div>'
    return drawn + "</div>" + more * (len(numbers) < math.prod(operand["shape"]))
