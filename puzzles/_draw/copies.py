"""The copies that a kernel makes by hand, moment by moment: one row a slot."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence

import numpy as np

from puzzles import _rules
from puzzles._draw.book import Book, each, faults, key, piece
from puzzles._draw.data import Data
from puzzles._draw.palette import code, hatch, plural, px, rect, text, text_width, tuple_words
from puzzles._tpu import Timeline

Marked = dict[str, list[tuple[int, int, int]]]  # (row, from, up to) of every mark, in moments

_ROW, _BAR, _STEPS = 36.0, 14.0, 20.0  # pixels: a row, the bar in it, the line of grid steps
_NARROW, _WIDE, _ROOM = 24.0, 64.0, 640.0  # of a moment, and what all of them would like to have
_SHORT = 0.4  # of a moment: a wait for a copy that has flown for a while
_KERNEL = -1  # the row above those of the slots
_MARKS = ("waits", "landed", "inward", "outward", "work", "fault")  # the last lies on top


def rows(found: Timeline) -> list[str]:
    """What the slots are called."""
    return [f"{slot.name}{slot.place.part}" for slot in found.slots]


def summary(found: Timeline) -> str:
    """Whether anything overlaps."""
    computing, overlapped = found.overlap
    if not found.moments:
        return found.unknown
    name = "nothing overlaps" if computing else "no work"
    facts = dict(moments=plural(computing, "moment", "moments"), overlapped=overlapped)
    words = _rules.sentence("copies overlap" if overlapped else name, **facts)
    return f"{words} {found.unknown}".strip()


def wrong(found: Timeline) -> list[str]:
    """The first thing that goes wrong, if any does; it brings others with it."""
    others = f" {_rules.sentence('crossed too')}" * (len(found.faults) > 1)
    return [f"{one.says}{others}" for one in found.faults[:1]]


def sentence(found: Timeline, number: int) -> str:
    """What happens at a moment; code stands between backticks."""
    moment, names = found.moments[number], rows(found)
    what = f"The kernel {moment.kind}"
    if moment.kind == "computes" and moment.slots:
        what += " on " + ", ".join(f"`{names[slot]}`" for slot in moment.slots)
    if moment.line:
        what += f": `{moment.line}`"
    flying = [
        f"`{names[trip.slot]}` {'←' if trip.inward else '→'} `{trip.other}`"
        for trip in found.flying(number)
    ]
    return f"{what}. In flight: {', '.join(flying) or 'nothing'}."


def edges(found: Timeline, wide: float) -> list[float]:
    """Where every moment begins, and the last ends; a wait is short if its copies could fly before.

    That is, if the kernel has computed since they were started.
    """
    ends, computed = [0.0], [0]
    for n, moment in enumerate(found.moments):
        started = [trip.start for trip in found.trips if trip.end == n + 1]
        short = moment.kind == "waits" and started and computed[max(started)] < computed[n]
        ends.append(ends[-1] + (round(_SHORT * wide) if short else wide))
        computed.append(computed[-1] + (moment.kind == "computes"))
    return ends


def marked(found: Timeline) -> Marked:
    """(row, from, up to) of every mark, in moments."""
    last = len(found.moments)
    spans: Marked = {name: [] for name in _MARKS}
    for n, moment in enumerate(found.moments):
        if moment.kind != "ends":
            spans["work" if moment.kind == "computes" else "waits"].append((_KERNEL, n, n + 1))
    for trip in found.trips:
        slot, end = trip.slot, trip.end
        stop = last if end is None else end
        spans["inward" if trip.inward else "outward"].append((slot, trip.start, stop))
        if trip.inward and end is not None:
            later = [one.start for one in found.trips if one.slot == slot and one.start >= end]
            until = min(later, default=last)
            uses = [n for n in range(end, until) if slot in found.moments[n].slots]
            if uses and uses[0] > end:
                spans["landed"].append((slot, end, uses[0]))
    for n, moment in enumerate(found.moments):
        busy = {trip.slot for trip in found.flying(n)}
        for slot in moment.slots:
            spans["fault" if moment.wrong and slot in busy else "work"].append((slot, n, n + 1))
        if moment.kind == "waits" and moment.wrong:
            spans["fault"].append((_KERNEL, n, n + 1))
        if moment.kind == "ends" and moment.wrong:
            spans["fault"] += [(slot, n, n + 1) for slot in sorted(busy)]
    return spans


def copies_text(found: Timeline) -> list[str]:
    """What the picture comes to."""
    return ["", f"copies by hand: {summary(found)}", *(f"✗ {says}" for says in wrong(found))]


def copies_section(data: Data) -> str:
    """The picture with its words, a page a moment; the script puts buttons and a slider in."""
    found: Timeline = data["copies"]
    head = f'<div class="pz-copied"><b>Copies by hand.</b> {html.escape(summary(found))}</div>'
    if not found.moments:
        return f'<div class="pz-copies">{head}</div>'
    opened = found.faults[0].moment if found.faults else 0
    names, count = map(html.escape, rows(found)), len(found.moments)
    x = edges(found, max(_NARROW, min(_WIDE, _ROOM // count)))
    picture, height = copies_picture(found, x, data["grid"])
    book = Book("moment", count, opened)
    here = [f"left:{px(a)}px;width:{px(b - a)}px" for a, b in itertools.pairwise(x)]
    pages = piece(
        "copies",
        head=head,
        wrong=faults(wrong(found)),
        moment=book.element("b", each(map(str, range(1, count + 1)))),
        count=count,
        steps='<div class="pz-grid">grid step</div>' * bool(data["grid"]),
        labels="".join(f'<div title="{name}">{name}</div>' for name in names),
        edges=" ".join(map(px, x)),
        width=px(x[-1]),
        height=px(height),
        picture=picture,
        words=book.element("span", each([code(sentence(found, n)) for n in range(count)])),
        here=book.attributes(style=each(here)),
        key=key([name for name, spans in marked(found).items() if spans]),
    )
    return book.bound(pages, "pz-copies", "Copies by hand")


def copies_picture(
    found: Timeline, x: Sequence[float], grid: Sequence[int] = ()
) -> tuple[str, float]:
    """A row for the kernel and one for each slot, and their height; x: where moments begin.

    grid: the launch's, whose steps stand above.
    """
    top = _STEPS if grid else 0.0
    bottom = top + _ROW * (1 + len(found.slots))
    lines = [f"M0 {px(top + _ROW * (n + 1) - 0.5)}H{px(x[-1])}" for n in range(len(found.slots))]
    drawn = []
    begins: dict[int, int] = {}
    for n, moment in enumerate(found.moments):
        begins.setdefault(moment.step, n)
    after = [*begins.values(), len(found.moments)][1:]
    for (step, at), end in zip(begins.items() if grid else (), after, strict=False):
        lines.append(f"M{px(x[at] + 0.5)} 4V{px(bottom)}")
        words = tuple_words(np.unravel_index(step, grid))
        if text_width(words, 11) <= x[end] - x[at] - 8:
            drawn.append(text(x[at] + 4, 14, words, size=11))
    drawn.append(
        f'<path d="{"".join(lines)}" stroke="currentColor" stroke-opacity=".25" fill="none"/>'
    )
    spans = marked(found)
    for name in _MARKS:
        boxes = []
        for row, start, stop in spans[name]:
            y = top + _ROW * (row + 1) + (11 if row == _KERNEL else 18)
            inset = 1.5 if name in ("inward", "outward") else 0.5 if name == "landed" else 2
            boxes.append((x[start] + inset, y, x[stop] - x[start] - 2 * inset, _BAR))
        if boxes:
            drawn.append(f'<path class="pz-m-{name}" d="{"".join(rect(*b) for b in boxes)}"/>')
    if spans["fault"]:
        crosses = "".join(hatch(*box, "x") for box in boxes)
        drawn.append(f'<path class="pz-lines pz-lost" d="{crosses}"/>')
    return "".join(drawn) + _written(found, x, top), bottom


def copies_strip(found: Timeline, left: float, wide: float) -> tuple[str, float, float]:
    """The picture with the names of its rows in the `left` pixels before it, its width and height.

    wide: pixels of a moment.
    """
    x = [left + edge for edge in edges(found, wide)]
    drawn, height = copies_picture(found, x)
    for n, name in enumerate(["kernel", *rows(found)]):
        drawn += text(left - 10, _ROW * n + (29 if n else 22), name, size=12, anchor="end")
    return drawn, x[-1], height


def _written(found: Timeline, x: Sequence[float], top: float) -> str:
    """Over the bars which part of an array they carry, where there is room."""
    drawn = ""
    for trip in found.trips:
        stop = len(found.moments) if trip.end is None else trip.end
        name, bracket, part = trip.other.partition("[")
        words = bracket + part or name
        if text_width(words, 11) <= x[stop] - x[trip.start] - 6:
            y = top + _ROW * (trip.slot + 1) + 13
            drawn += text(x[trip.start] + 3, y, words, size=11)
    return drawn
