"""Walks as one page of HTML and SVG for a cell's output: `walk_data` in, a string out."""

from __future__ import annotations

import html

import numpy as np

from puzzles._draw.assets import piece, script, style
from puzzles._draw.book import Book, each, numbers
from puzzles._draw.copies import copies_section
from puzzles._draw.data import Data
from puzzles._draw.lists import list_panel
from puzzles._draw.operand import moving_panel, still_panel
from puzzles._draw.palette import code, key, tuple_words
from puzzles._draw.panel import views
from puzzles._draw.strip import meters, strip
from puzzles._draw.words import moved, sampled, summary, title, working

# What operands have alike that always move together, and what those that stay.
_TOGETHER = ("role", "space", "counts", "blocks", "count", "never", "filled")
_STAYING = ("role", "space", "shape", "dtype", "filled", "from", "to")


def walk_page(walks: list[Data]) -> str:
    """All walks, stacked. Equal data give equal bytes; nothing is loaded from anywhere."""
    return f"<style>{style()}</style>{''.join(map(_walk, walks))}<script>{script()}</script>"


def _walk(data: Data) -> str:
    if not data["steps"]:
        body = _faults(data) + "<p>The grid is empty: no step runs.</p>"
        return f'<div class="pz-walk">{_head(data)}{body}</div>'
    book = Book("grid step", data["kept"], data["open"])
    where = views(data)
    sides = {"scalar": "", "any": "", "input": "", "output": "", "scratch": ""}
    still, idle = "", []
    for number, alike in groups(data):
        operand, view = alike[0], where[number]
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
    copied = copies_section(data) if data.get("copies") else ""
    parts = [
        _head(data),
        _faults(data),
        copied,
        _bar(data, book),
        strip(data),
        meters(data, book),
        f'<div class="pz-lists">{sides["scalar"]}</div>' * bool(sides["scalar"]),
        piece("board", **sides, body=_body(data, book)),
        folds,
        key(book.marks(still + "".join(sides.values())) | ({"fault"} if data["faults"] else set())),
        _numbers(data),
    ]
    alone = " pz-alone" * bool(copied and data["kept"] == 1)  # no grid to walk through
    label = f"Grid walk of {html.escape(title(data))}"
    return book.bound("".join(parts), f"pz-walk{alone}", label)


def groups(data: Data) -> list[tuple[int, list[Data]]]:
    """Operands that always move together, block by block, or stay alike: the first's number, and
    all of them.
    """
    faulty = {f["operand"] for f in data["faults"]}
    found: dict[str, tuple[int, list[Data]]] = {}
    for number, operand in enumerate(data["operands"]):
        alike = _TOGETHER if "count" in operand else _STAYING
        key = repr([operand.get(what) for what in alike])
        if operand["role"] == "scalar" or operand["name"] in faulty:
            key = operand["name"]
        found.setdefault(key, (number, []))[1].append(operand)
    return list(found.values())


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


def _numbers(data: Data) -> str:
    """Each operand and the totals, as the plain text has them."""
    lines = "<br>".join(map(html.escape, summary(data)))
    return f"<details><summary>each operand in numbers</summary>{lines}</details>"
