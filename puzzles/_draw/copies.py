"""The timeline of the copies that a kernel makes by hand: one row for each slot."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence

import numpy as np

from puzzles import _rules
from puzzles._draw.data import Data
from puzzles._draw.frames import Frames, each, faults, key, piece
from puzzles._draw.palette import code, hatch, px, rect, text, text_width, tuple_words
from puzzles._launch import Timeline
from puzzles._rules import plural

Marked = dict[str, list[tuple[int, int, int]]]  # mark -> (row, first phase, end) of each bar

_ROW, _BAR, _STEPS = 36.0, 14.0, 20.0  # pixels: a row, the bar in it, the line of grid steps
_NARROW, _WIDE, _ROOM = 24.0, 64.0, 640.0  # of a phase, and of all phases
_NAMED = 4  # copies in flight that a sentence names
_SHORT = 0.4  # of a phase: a wait for a copy that was in flight before
_KERNEL = -1  # the row above those of the slots
_MARKS = ("waits", "landed", "inward", "outward", "work", "fault")  # the last lies on top


def rows(timeline: Timeline) -> list[str]:
    """The names of the slots."""
    return [f"{slot.name}{slot.place.part}" for slot in timeline.slots]


def summary(timeline: Timeline) -> str:
    """A sentence on whether copies overlap with computing."""
    computing, overlapped = timeline.overlap
    if not timeline.moments:
        return timeline.unknown
    name = "nothing_overlaps" if computing else "no_work"
    facts = dict(moments=plural(computing, "phase"), overlapped=overlapped)
    words = _rules.sentence("copies_overlap" if overlapped else name, **facts)
    ran = _rules.sentence("copies_of_a_run", data=timeline.run) if timeline.run else ""
    return f"{ran} {words} {timeline.unknown}".strip()


def wrong(timeline: Timeline) -> list[str]:
    """The message of the first fault; later faults follow from it."""
    later = f" {_rules.sentence('crossed_too')}" * (len(timeline.faults) > 1)
    return [f"{fault.says}{later}" for fault in timeline.faults[:1]]


def sentence(timeline: Timeline, number: int) -> str:
    """A sentence on one phase, with code between backticks."""
    moment, names = timeline.moments[number], rows(timeline)
    words = f"The kernel {moment.kind}"
    if moment.kind == "computes" and moment.slots:
        words += " on " + ", ".join(f"`{names[slot]}`" for slot in moment.slots)
    if moment.line:
        words += f": `{moment.line}`"
    flying = [
        f"`{names[span.slot]}` {'←' if span.inward else '→'} `{span.other}`"
        for span in timeline.flying(number)
    ]
    more = f" and {len(flying) - _NAMED} more" * (len(flying) > _NAMED)
    return f"{words}. In flight: {', '.join(flying[:_NAMED]) or 'nothing'}{more}."


def edges(timeline: Timeline, wide: float) -> list[float]:
    """The x coordinates of the phases' beginnings, and of the end of the last.

    A wait is drawn short if the kernel computed while its copies were in flight.
    """
    ends, computed = [0.0], [0]
    for n, moment in enumerate(timeline.moments):
        started = [span.start for span in timeline.trips if span.end == n + 1]
        short = moment.kind == "waits" and started and computed[max(started)] < computed[n]
        ends.append(ends[-1] + (round(_SHORT * wide) if short else wide))
        computed.append(computed[-1] + (moment.kind == "computes"))
    return ends


def marked(timeline: Timeline) -> Marked:
    """The bars of each mark, in phases."""
    last = len(timeline.moments)
    spans: Marked = {name: [] for name in _MARKS}
    for n, moment in enumerate(timeline.moments):
        if moment.kind != "ends":
            spans["work" if moment.kind == "computes" else "waits"].append((_KERNEL, n, n + 1))
    for span in timeline.trips:
        slot, end = span.slot, span.end
        stop = last if end is None else end
        spans["inward" if span.inward else "outward"].append((slot, span.start, stop))
        if span.inward and end is not None:
            later = [
                copy.start for copy in timeline.trips if copy.slot == slot and copy.start >= end
            ]
            until = min(later, default=last)
            uses = [n for n in range(end, until) if slot in timeline.moments[n].slots]
            if uses and uses[0] > end:
                spans["landed"].append((slot, end, uses[0]))
    for n, moment in enumerate(timeline.moments):
        busy = {span.slot for span in timeline.flying(n)}
        for slot in moment.slots:
            spans["fault" if moment.wrong and slot in busy else "work"].append((slot, n, n + 1))
        if moment.kind == "waits" and moment.wrong:
            spans["fault"].append((_KERNEL, n, n + 1))
        if moment.kind == "ends" and moment.wrong:
            spans["fault"] += [(slot, n, n + 1) for slot in sorted(busy)]
    return spans


def copies_text(timeline: Timeline) -> list[str]:
    """The picture in words, for a terminal."""
    return ["", f"copies by hand: {summary(timeline)}", *(f"✗ {says}" for says in wrong(timeline))]


def copies_section(data: Data) -> str:
    """The picture with its words: one frame for each phase. The script adds buttons."""
    timeline: Timeline = data["copies"]
    head = f'<div class="pz-copied"><b>Copies by hand.</b> {html.escape(summary(timeline))}</div>'
    if not timeline.moments:
        return f'<div class="pz-copies">{head}</div>'
    opened = timeline.faults[0].moment if timeline.faults else 0
    names, count = map(html.escape, rows(timeline)), len(timeline.moments)
    x = edges(timeline, max(_NARROW, min(_WIDE, _ROOM // count)))
    picture, height = copies_picture(timeline, x, data["grid"])
    frames = Frames("moment", count, opened)
    moment = frames.element("b", each(map(str, range(1, count + 1))))
    here = [f"left:{px(a)}px;width:{px(b - a)}px" for a, b in itertools.pairwise(x)]
    pages = piece(
        "copies",
        head=head,
        wrong=faults(wrong(timeline), data["hunt"]),
        moments=piece("moments", moment=moment, count=count) if count > 1 else "",
        steps='<div class="pz-grid">grid step</div>' * bool(data["grid"]),
        labels="".join(f'<div title="{name}">{name}</div>' for name in names),
        edges=" ".join(map(px, x)),
        width=px(x[-1]),
        height=px(height),
        picture=picture,
        words=frames.element("span", each([code(sentence(timeline, n)) for n in range(count)])),
        here=frames.attributes(style=each(here)),
        key=key([name for name, spans in marked(timeline).items() if spans]),
    )
    return frames.figure(pages, "pz-copies", "Copies by hand")


def copies_picture(
    timeline: Timeline, x: Sequence[float], grid: Sequence[int] = ()
) -> tuple[str, float]:
    """A row for the kernel and a row for each slot, and their height.

    x: coordinates of the phases, from `edges`. grid: of the launch; its steps are named on top.
    """
    top = _STEPS if grid else 0.0
    bottom = top + _ROW * (1 + len(timeline.slots))
    lines = [f"M0 {px(top + _ROW * (n + 1) - 0.5)}H{px(x[-1])}" for n in range(len(timeline.slots))]
    drawn = []
    begins: dict[int, int] = {}
    for n, moment in enumerate(timeline.moments):
        begins.setdefault(moment.step, n)
    after = [*begins.values(), len(timeline.moments)][1:]
    for (step, at), end in zip(begins.items() if grid else (), after, strict=False):
        lines.append(f"M{px(x[at] + 0.5)} 4V{px(bottom)}")
        words = tuple_words(np.unravel_index(step, grid))
        if text_width(words, 11) <= x[end] - x[at] - 8:
            drawn.append(text(x[at] + 4, 14, words, size=11))
    drawn.append(
        f'<path d="{"".join(lines)}" stroke="currentColor" stroke-opacity=".25" fill="none"/>'
    )
    spans = marked(timeline)
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
    return "".join(drawn) + _written(timeline, x, top), bottom


def copies_strip(timeline: Timeline, left: float, wide: float) -> tuple[str, float, float]:
    """The picture with its rows' names in the first `left` pixels, its width and its height.

    wide: pixels of a phase.
    """
    x = [left + edge for edge in edges(timeline, wide)]
    drawn, height = copies_picture(timeline, x)
    for n, name in enumerate(["kernel", *rows(timeline)]):
        drawn += text(left - 10, _ROW * n + (29 if n else 22), name, size=12, anchor="end")
    return drawn, x[-1], height


def _written(timeline: Timeline, x: Sequence[float], top: float) -> str:
    """The part of the array that each copy carries, above its bar if there is room."""
    drawn = ""
    for span in timeline.trips:
        stop = len(timeline.moments) if span.end is None else span.end
        name, bracket, part = span.other.partition("[")
        words = bracket + part or name
        if text_width(words, 11) <= x[stop] - x[span.start] - 6:
            y = top + _ROW * (span.slot + 1) + 13
            drawn += text(x[span.start] + 3, y, words, size=11)
    return drawn
