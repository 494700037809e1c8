"""One operand of a walk: words, and a picture a page."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from puzzles._draw.book import Book, Changing, each, growing, piece
from puzzles._draw.data import Data
from puzzles._draw.palette import cell, rect, text_width, tuple_words
from puzzles._draw.panel import (
    Box,
    beyond,
    frame,
    lines_and_numbers,
    now_path,
    place,
    slice_of,
    untouched,
)
from puzzles._draw.words import describe, still_words

# What becomes of an operand's block at a step: in words, and as a mark.
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
    """Its name, and under it what it is."""
    what = "<br>".join(map(html.escape, filter(None, describe(operand))))
    return piece("operand", name=html.escape(operand["name"]), what=what)


def marks_of(data: Data, operand: Data) -> list[str]:
    """The mark of the block that each page holds."""
    faults = [f for f in data["faults"] if f["operand"] == operand["name"]]
    always = any(f["kind"] == "misaligned" for f in faults)  # in every block of it
    at_fault = {f["at"] for f in faults if f["kind"] != "never-written"}
    return [
        "fault" if always or k in at_fault else STATES[state][1]
        for k, state in enumerate(operand["states"])
    ]


def moving_panel(data: Data, book: Book, operand: Data, view: Data) -> str:
    """What moves in blocks: which block each page holds, and the array with its marks."""
    never, total = len(operand["never"]), math.prod(operand["counts"])
    small = [f"{never:,} of {total:,} blocks never touched"] * bool(never)
    dots = [f"pz-dot pz-d-{mark}" for mark in marks_of(data, operand)]
    lines = (1.1 * text_width(line, 11) for line in describe(operand))
    return piece(
        "panel of what moves",
        wide=max(138, view["width"], *lines),
        head=head(operand),
        where=book.element("b", each(list(map(tuple_words, operand["blocks"])))),
        state=book.element("span", each([STATES[state][0] for state in operand["states"]])),
        dot=book.attributes(class_=each(dots)),
        small="<br>".join([*_slice_words(book, operand, view), *small]),
        view=view,
        name=html.escape(operand["name"]),
        grid=" by ".join(map(str, operand["counts"])) or "one",
        picture=picture(data, book, operand, view),
        noun="written back" if operand["role"] == "output" else "fetched",
        count=book.element("b", each([f"{n:,}" for n in operand["count"]])),
    )


def picture(data: Data, book: Book, operand: Data, view: Data) -> str:
    """The array: what is never touched, what lies before a page, the block that it holds."""
    output, marks = operand["role"] == "output", marks_of(data, operand)
    boxes = [place(view, operand, start) for start in operand["starts"]]
    slices = [slice_of(operand, start) if view["one"] else 0 for start in operand["starts"]]
    seen, twice = _before(operand, boxes, slices)
    never = untouched(view, operand)
    areas, hatches = zip(*(never.get(number, ("", "")) for number in slices), strict=True)
    gaps = [f["operand"] for f in data["faults"] if f["kind"] == "never-written"]
    lost = operand["name"] in gaps
    known: set[tuple[int, ...]] = set()
    over = []  # where an earlier step has tinted the block, what stays is an outline on top
    for block, mark in zip(operand["blocks"], marks, strict=True):
        over.append(" pz-over" * (mark in ("reused", "held") and block in known))
        known.add(block)
    now = book.attributes(
        class_=each([f"pz-now pz-m-{mark}{o}" for mark, o in zip(marks, over, strict=True)]),
        d=each([now_path(box) for box in boxes]),
    )
    layers = [
        (f"pz-never pz-m-{'fault' if lost else 'untouched'}", each(areas)),
        (f"pz-lines{' pz-lost' * lost}", each(hatches)),
        (f"pz-seen pz-m-{'done' if output else 'read'}", seen),
        (f"pz-twice pz-m-{'fault' if output else 'reread'}", twice),
        ("pz-m-beyond", each([beyond(view, operand, start) for start in operand["starts"]])),
    ]
    drawn = "".join(
        f'<path class="{name}" {book.attributes(d=d)}/>' for name, d in layers if any(d.texts)
    )
    return (
        f"{frame(view)}{drawn}{lines_and_numbers(view, operand)}<path {now}/>"
        f"{_fill(book, operand, boxes)}"
    )


def _before(operand: Data, boxes: list[Box], slices: list[int]) -> tuple[Changing, Changing]:
    """Blocks that earlier steps held, and those that they moved more than once."""
    moved: Counter[tuple[int, ...]] = Counter()
    held, again = [], []
    for n, block in enumerate(operand["blocks"]):
        drawn = rect(*boxes[n]) * (operand["states"][n] != "outside")
        held.append(drawn * (block not in moved))
        moved[block] += operand["moves"][n]
        again.append(drawn * (operand["moves"][n] and moved[block] == 2))
    return growing(held, slices), growing(again, slices)


def _fill(book: Book, operand: Data, boxes: Sequence[Box]) -> str:
    """How much of its sum is in the block, from below."""
    if "filled" not in operand:
        return ""
    paths = []
    for (x, y, w, h), percent in zip(boxes, operand["filled"], strict=True):
        high = (h - 4) * percent / 100
        paths.append(rect(x + 2, y + h - 2 - high, w - 4, high))
    return f'<path class="pz-m-summed" {book.attributes(d=each(paths))}/>'


def _slice_words(book: Book, operand: Data, view: Data) -> list[str]:
    """Which of several slices a page's block is in."""
    if view["slices"] == 1:
        return []
    axes = ", ".join(map(str, range(len(operand["shape"]) - 2)))
    number = each([f"{slice_of(operand, start):,}" for start in operand["starts"]])
    return [f"slice {book.element('b', number)} of {view['slices']:,} along axis {axes}"]


def still_panel(data: Data, book: Book, operand: Data, view: Data | None) -> str:
    """What stays in place: scratch, whose sum may grow, and what lies in HBM."""
    words, name = html.escape(still_words(operand)), head(operand)
    if view is None:
        return f'<div class="pz-panel">{name}<div class="pz-state">{words}</div></div>'
    wide, box = max(126, view["width"]), still_box(data, book, operand, view)
    return piece("panel of what stays", wide=wide, head=name, words=words, view=view, picture=box)


def still_box(data: Data, book: Book, operand: Data, view: Data) -> str:
    """Scratch, and how much of its sum is in it."""
    box = (1.0, 1.0, view["w"], view["h"])
    return cell(*box, "resident") + _fill(book, operand, [box] * data["kept"])


def list_panel(data: Data, book: Book, operand: Data) -> str:
    """A prefetched array: its numbers in rows that wrap, those that a step reads marked."""
    shape, _ = describe(operand)
    read = np.array(operand["used"], np.int64).reshape(-1, data["kept"])
    used = [sorted(set(column) - {-1}) for column in read.T.tolist()]
    return piece(
        "panel of a list",
        name=html.escape(operand["name"]),
        what=html.escape(f"{shape}; {still_words(operand)}"),
        cells=_cells(book, operand, used),
        read=book.element("div", each([_read_words(operand, one) for one in used]), "pz-read"),
    )


def _read_words(operand: Data, used: list[int]) -> str:
    """Which entries a step reads, and what they are where they are printed."""
    found = []
    for flat in used:
        index = ", ".join(str(int(i)) for i in np.unravel_index(flat, operand["shape"] or (1,)))
        here = operand["numbers"][flat : flat + 1]  # empty beyond those that are printed
        found.append(f"[{index}]" + "".join(f" = {number}" for number in here))
    return "reads " + ", ".join(found) if found else "not read"


def _cells(book: Book, operand: Data, used: list[list[int]]) -> str:
    """The numbers, a row of the array in a row of the page."""
    numbers = operand["numbers"]
    drawn = '<div class="pz-cells">'
    for n, number in enumerate(numbers):
        if n and len(operand["shape"]) > 1 and n % operand["shape"][-1] == 0:
            drawn += '</div><div class="pz-cells">'
        mark = book.attributes(class_=each(["pz-used" * (n in one) for one in used]))
        drawn += f"<i {mark}>{number}</i>"
    more = f'<div class="pz-what">the first {len(numbers)} of {math.prod(operand["shape"]):,}</div>'
    return drawn + "</div>" + more * (len(numbers) < math.prod(operand["shape"]))
