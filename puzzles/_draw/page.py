"""Walks as one page of HTML and SVG for a cell's output: `walk_data` in, a string out."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import numpy as np

from puzzles._draw.assets import key, piece, script, style
from puzzles._draw.book import Book, each, numbers
from puzzles._draw.copies import copies_section
from puzzles._draw.data import Data
from puzzles._draw.operand import list_panel, moving_panel, still_panel
from puzzles._draw.palette import code, px, tuple_words
from puzzles._draw.panel import views
from puzzles._draw.words import moved, sampled, summary, title, working
from puzzles._receipt import amount

# What operands have alike that always move together, and what those that stay.
_TOGETHER = ("role", "space", "counts", "blocks", "count", "never", "filled")
_STAYING = ("role", "space", "shape", "dtype", "filled", "from", "to")
_HIGH, _LOW = 14.0, 4.0  # of bars in the strip


def walk_page(walks: list[Data]) -> str:
    """All walks, stacked. Equal data give equal bytes; nothing is loaded from anywhere."""
    return f"<style>{style()}</style>{''.join(map(_walk, walks))}<script>{script()}</script>"


def _walk(data: Data) -> str:
    if not data["steps"]:
        body = _faults(data) + "<p>The grid is empty: no step runs.</p>"
        return f'<div class="pz-walk">{_head(data)}{body}</div>'
    book = Book("grid step", data["kept"], data["open"])
    sides = {"scalar": "", "any": "", "input": "", "output": "", "scratch": ""}
    still, idle = "", []
    for view, alike in _groups(data):
        operand = alike[0]
        if "count" in operand and view is not None:
            panel = moving_panel(data, book, alike, view)
        elif operand["role"] == "scalar":
            panel = list_panel(data, book, operand)
        else:
            panel = still_panel(data, book, alike, view)
        if data["kept"] > 1 and _idle(data, operand):
            still += panel
            idle += [one["name"] for one in alike]
        else:
            sides[operand["role"]] += panel
    for role in ("any", "scratch"):
        sides[role] = f'<div class="pz-stack">{sides[role]}</div>' * bool(sides[role])
    named = html.escape(", ".join(idle))
    folds = piece("what stays where it is", names=named, panels=still) if idle else ""
    lines = "<br>".join(map(html.escape, summary(data)))  # as the plain text has them
    copied = copies_section(data) if data.get("copies") else ""
    parts = [
        _head(data),
        _faults(data),
        copied,
        _bar(data, book),
        _strip(data),
        _meters(data, book),
        f'<div class="pz-lists">{sides["scalar"]}</div>' * bool(sides["scalar"]),
        piece("board", **sides, body=_body(data, book)),
        folds,
        key(book.marks(still + "".join(sides.values())) | ({"fault"} if data["faults"] else set())),
        f"<details><summary>each operand in numbers</summary>{lines}</details>",
    ]
    alone = " pz-alone" * bool(copied and data["kept"] == 1)  # no grid to walk through
    label = f"Grid walk of {html.escape(title(data))}"
    return book.bound("".join(parts), f"pz-walk{alone}", label)


def _groups(data: Data) -> Iterable[tuple[Data | None, list[Data]]]:
    """Operands that always move together, block by block, or stay alike, and the first's view."""
    faulty = {f["operand"] for f in data["faults"]}
    found: dict[str, tuple[Data | None, list[Data]]] = {}
    for view, operand in zip(views(data), data["operands"], strict=True):
        alike = _TOGETHER if "count" in operand else _STAYING
        key = repr([operand.get(what) for what in alike])
        if operand["role"] == "scalar" or operand["name"] in faulty:
            key = operand["name"]
        found.setdefault(key, (view, []))[1].append(operand)
    return found.values()


def _idle(data: Data, operand: Data) -> bool:
    """Whether no step changes anything of it."""
    if any(f["operand"] == operand["name"] for f in data["faults"]):
        return False
    if "count" in operand:
        return operand["role"] == "input" and len(set(operand["blocks"])) < 2
    return operand["role"] in ("scratch", "any") and "filled" not in operand


def _head(data: Data) -> str:
    note = f" {sampled(data)}" if data["kept"] < data["steps"] else ""
    total, busy = moved(data, "<b>{}</b>"), working(data)
    name, rest = map(html.escape, title(data).split(": ", 1))
    return piece("head", name=name, rest=rest, moved=total, working=busy, note=note)


def _faults(data: Data) -> str:
    items = []
    for fault in data["faults"]:
        go = ""
        if fault["at"] is not None and data["kept"] > 1:
            step = tuple_words(np.unravel_index(data["at"][fault["at"]], data["grid"]))
            go = f' <span data-go="{fault["at"]}" title="look at {step}"></span>'
        items.append(f'<li><span class="pz-x">✗</span> {folded(fault["says"])}{go}</li>')
    return f'<ul class="pz-faults">{"".join(items)}</ul>' if items else ""


def _bar(data: Data, book: Book) -> str:
    """The step and its program ids; the script puts its buttons before them."""
    at = np.array(data["at"])
    columns = zip(np.unravel_index(at, data["grid"] or (1,)), data["grid"], strict=False)
    ids = "".join(
        piece("program id", axis=axis, value=book.element("b", numbers(column)), size=size)
        for axis, (column, size) in enumerate(columns)
    )
    step = book.element("b", numbers(at + 1))
    return piece("bar", step=step, steps=data["steps"], ids=ids)


def _strip(data: Data) -> str:
    """For every step, what moves, what stays, and whether work is done.

    Labels on the left; slider, rows and cursor on the right, all of one width.
    """
    at = np.array(data["at"])
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}  # what moves in the same steps
    for operand in data["operands"]:
        if "count" in operand:
            key = operand["role"], tuple(operand["count"])
            together.setdefault(key, []).append(operand["name"])
    names, rows = list(together.values()), []
    for role, count in together:
        kinds = ("written", "held") if role == "output" else ("fetched", "reused")
        rows.append(_row(_shares(count, at), *kinds))
    names.append(["dots" if data["unit"] else "body"])
    rows.append(_row(_shares(data["worked"], at), "work", "skipped"))
    marked = [f["at"] for f in data["faults"] if f["at"] is not None]
    if marked:
        names.append(["fault"])
        share = np.zeros(len(at))
        share[marked] = 1
        rows.append(_row(share, "fault", ""))
    few = [", ".join(x) if len(x) < 3 else f"{x[0]} and {len(x) - 1} more" for x in names]
    shown = ((html.escape(", ".join(x)), html.escape(y)) for x, y in zip(names, few, strict=True))
    labels = "".join(f'<div title="{all_of_them}">{some}</div>' for all_of_them, some in shown)
    return piece("strip", labels=labels, count=len(at), rows="".join(rows))


def _meters(data: Data, book: Book) -> str:
    """Bytes that have been read and written, up to and with a step."""
    drawn = []
    for way, mark in (("read", "read"), ("written", "done")):
        said = book.element("b", each([amount(size) for size in data["moved"][way]]))
        full = 100 * np.array(data["moved"][way]) / (data[way] or 1)
        wide = book.attributes(style=each([f"width:{share:.4g}%" for share in full.tolist()]))
        total = amount(data[way])
        drawn.append(piece("meter", way=way, said=said, total=total, mark=mark, wide=wide))
    return f'<div class="pz-bytes">{"".join(drawn)}</div>'


def _shares(counts: Sequence[int], at: np.ndarray) -> np.ndarray:
    """Of each step and those before it that are not shown, how many a running count counts."""
    return np.diff(counts, prepend=0) / np.diff(at, prepend=-1)


def _row(shares: np.ndarray, high: str, low: str) -> str:
    """One row of bars: full where all steps of a column move, low where none does."""
    gap = 0.12 if len(shares) <= 96 else 0.0
    heights = np.where(shares > 0, np.maximum(_HIGH * shares, 2.0), 0.0)
    cuts = np.arange(1, len(shares)) if gap else np.flatnonzero(np.diff(heights)) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(shares)]
    moved = still = ""
    for a, b in zip(starts, ends, strict=True):  # neighbours of one height are one bar
        x, w, h = a + gap / 2, b - a - gap, heights[a] or _LOW
        bar = f"M{px(x, 2)} {px(_HIGH - h)}h{px(w, 2)}v{px(h)}h-{px(w, 2)}z"
        if heights[a]:
            moved += bar
        elif low:
            still += bar
    quiet = f'<path class="pz-s-{low}" d="{still}"/>' if low else ""
    size = dict(count=len(shares), high=_HIGH)
    return piece("row of the strip", **size, mark=high, moved=moved, still=quiet)


def _body(data: Data, book: Book) -> str:
    work = data["work"]
    core = book.attributes(class_=each([f"pz-core pz-{'work' if n else 'skipped'}" for n in work]))
    words = book.element("span", each([did(data, n) for n in work]), "pz-did")
    return piece("body", core=core, did=words)


def did(data: Data, work: int) -> str:
    """What the body does in a step, in words."""
    if not work:
        return "does no arithmetic"
    return f"{work} dot{'s' * (work != 1)}" if data["unit"] else "computes"


def folded(words: str) -> str:
    """The first sentence, and the others under a fold."""
    first, dot, rest = words.partition(". ")
    fold = f"<details><summary>more</summary>{code(rest)}</details>" if rest else ""
    return f"{code(first + dot.strip())}{fold}"
