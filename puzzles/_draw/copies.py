"""The copies that a kernel makes by hand, moment by moment: one row a slot, as picture and text."""

from __future__ import annotations

import html
import itertools
from typing import Any

from puzzles._draw.book import Book, each, numbers
from puzzles._draw.palette import MARKS, hatch, px, rect, swatch, text, text_width
from puzzles._draw.track import tuple_words

Data = dict[str, Any]
Marked = dict[str, list[tuple[int, int, int]]]  # (row, from, up to) of every mark, in moments

_ROW, _BAR, _STEPS = 36.0, 14.0, 20.0  # pixels: a row, the bar in it, the line of grid steps
_NARROW, _WIDE, _ROOM = 24.0, 64.0, 640.0  # of a moment, and what all of them would like to have
_SHORT = 0.4  # of a moment: a wait for a copy that has flown for a while
KERNEL = -1  # the row above those of the slots
_COLUMNS = 64  # of the table of characters
_LETTERS = {"inward": ">", "outward": "<", "landed": ".", "work": "#", "fault": "!"}


def summary(data: Data) -> str:
    """Whether anything overlaps."""
    computing, overlapped = data["computing"], data["overlapped"]
    if not data["moments"]:
        return data["unknown"]
    if not computing:
        words = "the kernel computes at no moment"
    elif not overlapped:
        words = f"the kernel computes at {_moments(computing)}, and nothing flies meanwhile"
    else:
        words = f"while the kernel computes, a copy is in flight at {overlapped} of "
        words += _moments(computing)
    return f"{words[0].upper()}{words[1:]}. {data['unknown']}".strip()


def faults(data: Data) -> list[tuple[int, str]]:
    """Where the first thing goes wrong, and what; it brings others with it."""
    more = len(data["faults"]) - 1
    also = " What goes wrong after it is crossed, too." if more > 0 else ""
    return [(at, says + also) for at, says in data["faults"][:1]]


def _moments(count: int) -> str:
    return "1 moment" if count == 1 else f"{count} moments"


def _flying(data: Data, moment: int) -> list[list[Any]]:
    last = len(data["moments"])
    return [t for t in data["trips"] if t[1] <= moment < (last if t[2] is None else t[2])]


def sentence(data: Data, moment: int) -> str:
    """What happens at a moment; code stands between backticks."""
    kind, line, slots, _ = data["moments"][moment]
    what = f"The kernel {kind}"
    if kind == "computes" and slots:
        what += " on " + _listed(data["rows"][n] for n in slots)
    if line:
        what += f": `{line}`"
    flying = [
        f"`{data['rows'][slot]}` {'←' if inward else '→'} `{other}`"
        for slot, _, _, inward, other, _ in _flying(data, moment)
    ]
    return f"{what}. In flight: {', '.join(flying) or 'nothing'}."


def _listed(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)


def copies_edges(data: Data, wide: float) -> list[float]:
    """Where every moment begins, and the last ends; a wait is short if its copies could fly before.

    That is, if the kernel has computed since they were started.
    """
    edges, computed = [0.0], [0]
    for n, (kind, *_) in enumerate(data["moments"]):
        started = [t[1] for t in data["trips"] if t[2] == n + 1]
        short = kind == "waits" and started and computed[max(started)] < computed[n]
        edges.append(edges[-1] + (round(_SHORT * wide) if short else wide))
        computed.append(computed[-1] + (kind == "computes"))
    return edges


def copies_marked(data: Data) -> Marked:
    """(row, from, up to) of every mark, in moments."""
    last = len(data["moments"])
    found: Marked = {name: [] for name in _LETTERS}
    for slot, start, end, inward, _, _ in data["trips"]:
        stop = last if end is None else end
        found["inward" if inward else "outward"].append((slot, start, stop))
        if inward and end is not None:
            later = [t[1] for t in data["trips"] if t[0] == slot and t[1] >= end]
            until = min(later, default=last)
            uses = [n for n in range(end, until) if slot in data["moments"][n][2]]
            if uses and uses[0] > end:
                found["landed"].append((slot, end, uses[0]))
    for n, (kind, _, slots, wrong) in enumerate(data["moments"]):
        busy = {t[0] for t in _flying(data, n)}
        for slot in slots:
            found["fault" if wrong and slot in busy else "work"].append((slot, n, n + 1))
        if kind == "waits" and wrong:
            found["fault"].append((KERNEL, n, n + 1))
        if kind == "ends" and wrong:
            found["fault"] += [(slot, n, n + 1) for slot in sorted(busy)]
    return found


def copies_text(data: Data) -> list[str]:
    """A table of characters, and what it comes to."""
    lines = ["", f"copies by hand: {summary(data)}"]
    if not data["moments"]:
        return lines
    shown = min(len(data["moments"]), _COLUMNS)
    rows = [["." if m[0] == "ends" else m[0][0] for m in data["moments"][:shown]]]
    rows += [[" "] * shown for _ in data["rows"]]
    marks = copies_marked(data)
    for name, letter in _LETTERS.items():
        for row, start, stop in marks[name]:
            for n in range(start, min(stop, shown)):
                rows[row + 1][n] = letter
    names = ["kernel", *data["rows"]]
    wide = max(map(len, names))
    for name, letters in zip(names, rows, strict=True):
        lines.append(f"{name:<{wide}}  {' '.join(letters)}".rstrip())
    key = "w waits, c computes; > copied into, < copied out of, . landed, # computed on"
    lines.append(key + "; ! wrong" * bool(marks["fault"]))
    if shown < len(data["moments"]):
        lines.append(f"the first {shown} of {len(data['moments'])} moments")
    lines += [f"✗ {says}" for _, says in faults(data)]
    return lines


def copies_section(data: Data) -> str:
    """The picture with its words, a page a moment; the script puts buttons and a slider in."""
    head = f'<div class="pz-copied"><b>Copies by hand.</b> {html.escape(summary(data))}</div>'
    if not data["moments"]:
        return f'<div class="pz-copies">{head}</div>'
    wrong = "".join(
        f'<li><span class="pz-x">✗</span> {code(what)} '
        f'<span data-go="{at}" title="look at moment {at + 1}"></span></li>'
        for at, what in faults(data)
    )
    wrong = f'<ul class="pz-faults">{wrong}</ul>' if wrong else ""
    labels = '<div class="pz-kernel">kernel</div>' + "".join(
        f'<div title="{html.escape(name)}">{html.escape(name)}</div>' for name in data["rows"]
    )
    steps = '<div class="pz-grid">grid step</div>' if data["steps"] else ""
    marks, x = copies_marked(data), copies_edges(data, _width(data))
    count = len(data["moments"])
    book = Book("moment", count, data["open"])
    moment = book.element("b", numbers(range(1, count + 1)))
    here = each([f"left:{px(a)}px;width:{px(b - a)}px" for a, b in itertools.pairwise(x)])
    words = book.element("span", each([code(sentence(data, n)) for n in range(count)]))
    return book.bound(
        f"{head}{wrong}"
        f'<div class="pz-bar"><span class="pz-moment" aria-live="polite" data-say>moment {moment} '
        f'<i>of {count}</i></span></div><div class="pz-slot pz-reel"></div>'
        f'<div class="pz-film"><div class="pz-names">{steps}{labels}</div>'
        '<div class="pz-roll" tabindex="-1"><div class="pz-frames pz-area" '
        f'data-edges="{" ".join(map(px, x))}">{_svg(data, marks, x)}'
        f'<div class="pz-here" {book.attributes(style=here)}></div></div></div></div>'
        f'<div class="pz-now-says" data-say>{words}</div>{_legend(data, marks)}',
        "pz-copies",
    )


def code(words: str) -> str:
    """Escaped, with what stands between backticks as code."""
    pieces = html.escape(words).split("`")
    return "".join(p if i % 2 == 0 else f"<code>{p}</code>" for i, p in enumerate(pieces))


def folded(words: str) -> str:
    """The first sentence, and the others under a fold."""
    first, dot, rest = words.partition(". ")
    fold = f"<details><summary>more</summary>{code(rest)}</details>" if rest else ""
    return f"{code(first + dot.strip())}{fold}"


def _width(data: Data) -> float:
    return max(_NARROW, min(_WIDE, _ROOM // len(data["moments"])))


def _top(data: Data) -> float:
    return _STEPS if data["steps"] else 0.0


def _svg(data: Data, marks: Marked, x: list[float]) -> str:
    count, top = len(data["moments"]), _top(data)
    width, height = x[-1], top + _ROW * (1 + len(data["rows"]))
    lines = [f"M0 {px(top + _ROW * (n + 1) - 0.5)}H{px(width)}" for n in range(len(data["rows"]))]
    drawn = []
    for n, (at, ids) in enumerate(data["steps"]):
        after = data["steps"][n + 1][0] if n + 1 < len(data["steps"]) else count
        lines.append(f"M{px(x[at] + 0.5)} 4V{px(height)}")
        words, room = tuple_words(ids), x[after] - x[at] - 8
        if text_width(words, 11) <= room:
            drawn.append(text(x[at] + 4, 14, words, size=11))
    drawn.append(
        f'<path d="{"".join(lines)}" stroke="currentColor" stroke-opacity=".25" fill="none"/>'
    )
    boxes: dict[str, list[tuple[float, float, float, float]]] = {}
    for n, (kind, *_) in enumerate(data["moments"]):
        if kind != "ends":
            box = (x[n] + 2, top + 11, x[n + 1] - x[n] - 4, _BAR)
            boxes.setdefault("work" if kind == "computes" else "waits", []).append(box)
    for name, spans in marks.items():
        for row, start, stop in spans:
            y = top + _ROW * (row + 1) + (11 if row == KERNEL else 18)
            inset = 1.5 if name in ("inward", "outward") else 0.5 if name == "landed" else 2
            boxes.setdefault(name, []).append(
                (x[start] + inset, y, x[stop] - x[start] - 2 * inset, _BAR)
            )
    for name in ("waits", "landed", "inward", "outward", "work", "fault"):
        if name in boxes:
            path = "".join(rect(*box) for box in boxes[name])
            drawn.append(f'<path class="pz-m-{name}" d="{path}"/>')
    if "fault" in boxes:
        crosses = "".join(hatch(*box, "x") for box in boxes["fault"])
        drawn.append(f'<path class="pz-lines pz-lost" d="{crosses}"/>')
    drawn += _written(data, x)
    return (
        f'<svg width="{px(width)}" height="{px(height)}" viewBox="0 0 {px(width)} {px(height)}" '
        f'role="img" aria-label="one row a slot, time from left to right; the words below say what '
        f'happens at a moment">{"".join(drawn)}</svg>'
    )


def _written(data: Data, x: list[float]) -> list[str]:
    """Over the bars what they carry, where there is room; in a row all with an array, or none."""
    found, top = [], _top(data)
    for row in range(len(data["rows"])):
        y, bars = top + _ROW * (row + 1) + 13, []
        for slot, start, end, _, other, _ in data["trips"]:
            if slot == row:
                stop = len(data["moments"]) if end is None else end
                bars.append((x[start] + 3, x[stop] - x[start] - 6, other))
        if any(text_width(words, 11) > room for _, room, words in bars):
            bars = [
                (at, room, words[words.find("[") :]) for at, room, words in bars if "[" in words
            ]
        fitting = (bar for bar in bars if text_width(bar[2], 11) <= bar[1])
        found += [text(at, y, words, size=11) for at, _, words in fitting]
    return found


def _legend(data: Data, marks: Marked) -> str:
    names = {name for name, spans in marks.items() if spans}
    drawn = {"waits": "waits", "computes": "work"}
    names |= {drawn[kind] for kind, *_ in data["moments"] if kind in drawn}
    items = (f"<span>{swatch(m)} {MARKS[m].means}</span>" for m in MARKS if m in names)
    note = (
        "Moments are in the kernel's own order, and not to scale: how long each takes, a chip "
        "says. A wait is drawn short where its copy could fly while the kernel computed."
    )
    return f'<div class="pz-legend">{"".join(items)}</div><div class="pz-sofar">{note}</div>'
