"""HTML and SVG for a cell's output: grid timelines, and the map of right and wrong blocks."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from puzzles._draw.copies import copies_section, copies_strip
from puzzles._draw.data import Data, walk_data
from puzzles._draw.frames import Frames, each, faults, key, piece, script, style
from puzzles._draw.iterations import map_of, product_of
from puzzles._draw.operand import list_panel, moving_panel, still_panel
from puzzles._draw.palette import cell, rect, text, text_width
from puzzles._draw.panel import views
from puzzles._draw.words import summary, title, working
from puzzles._launch import Launch
from puzzles._rules import plural, sentence

_HIGH, _LOW = 14.0, 4.0  # of bars in the strip
_EACH = 22.0  # pixels from one square to the next: a number of three digits has room
_CELLS = {".", "x"}
_STRIPS, _STRIP_STEPS = 2, 64  # launches, and steps of each, under a verdict at most
_MOMENT = 26.0  # pixels of a phase in a strip


def walk_page(walks: list[Data]) -> str:
    """The timelines of several launches, one below the other. Equal data give equal bytes."""
    return f"<style>{style()}</style>{''.join(map(_walk, walks))}<script>{script()}</script>"


def strip_page(launches: Sequence[Launch], moving: bool = False) -> str:
    """A strip of one line for each launch, from which its timeline opens; "" if it is too long.

    moving: reveal the strip step by step, once.
    """
    pages = []
    for launch in launches[:_STRIPS]:
        if not 1 < launch.steps <= _STRIP_STEPS and not launch.copies:
            continue
        data = walk_data(launch)
        if data["copies"] and data["copies"].moments and data["kept"] == 1:
            strip, width, height = copies_strip(data["copies"], 0.0, _MOMENT)
            drawn = piece("strip of copies", width=width, height=height, picture=strip)
        else:
            drawn = piece("strip of steps", rows=_rows(data)[1])
        classes = "pz-mini pz-reveal" if moving else "pz-mini"
        name = f"{launch.name}: {plural(data['steps'], data['noun'])}"
        summary = piece("summary of a strip", name=html.escape(name), classes=classes, strip=drawn)
        pages.append(f"<details><summary>{summary}</summary>{_walk(data)}</details>")
    if not pages:
        return ""
    content = "".join(pages)
    return (
        f'<style>{style()}</style><div class="pz-strips">{content}</div><script>{script()}</script>'
    )


def _walk(data: Data) -> str:
    wrong = faults([fault["says"] for fault in data["faults"]], data["hunt"])
    if not data["steps"]:
        body = wrong + "<p>The grid is empty: no step runs.</p>"
        return f'<div class="pz-walk">{_head(data)}{body}</div>'
    frames = Frames("grid step", data["kept"], data["open"])
    factors = product_of(data) or ()
    for operand, band in zip(factors, ("row", "column"), strict=False):
        operand["band"] = band
    sides = {"scalar": "", "any": "", "input": "", "output": "", "scratch": ""}
    still_names = []
    for view, operand in zip(views(data), data["operands"], strict=True):
        if _stays(data, operand):
            still_names.append(html.escape(operand["name"]))
            continue
        if "count" in operand:
            panel = moving_panel(data, frames, operand, view)
        elif "numbers" in operand:
            panel = list_panel(data, frames, operand)
        else:
            panel = still_panel(data, frames, operand, view)
        side = {"row": "left", "column": "right"}.get(operand.get("band", ""), operand["role"])
        side = "output" if operand.get("to", [0])[0] else side  # in HBM, and copied to
        sides[side] = sides.get(side, "") + panel
    for role in ("any", "scratch"):
        sides[role] = f'<div class="pz-stack">{sides[role]}</div>' * bool(sides[role])
    lines = "<br>".join(map(html.escape, summary(data)))  # as the plain text has them
    still = f"; not drawn: {', '.join(still_names)}" * bool(still_names)
    copied = copies_section(data) if data["copies"] else ""
    alone = data["kept"] == 1  # no grid to walk through
    empty = alone and (copied or not any("count" in o for o in data["operands"]))
    parts = [
        _head(data),
        wrong,
        copied,
        "" if alone else _bar(data, frames),
        "" if empty else _strip(data),
        f'<div class="pz-lists">{sides["scalar"]}</div>' * bool(sides["scalar"]),
        "" if factors else map_of(data, frames),
        piece("board of a product" if factors else "board", **sides, body=_body(data, frames)),
        key(frames.marks("".join(sides.values())) | ({"fault"} if data["faults"] else set())),
        f"<details><summary>each operand in numbers{still}</summary>{lines}</details>",
    ]
    label = f"Grid walk of {html.escape(title(data))}"
    return frames.figure("".join(parts), "pz-walk", label)


def _stays(data: Data, operand: Data) -> bool:
    """True for a semaphore, or if the operand looks the same in every frame; no fault names it."""
    wrong = {fault["operand"] for fault in data["faults"]}
    still = operand["role"] in ("scratch", "any") and "filled" not in operand
    small = data["kept"] > 1 or "sem" in operand["space"]
    return still and small and operand["name"] not in wrong


def _head(data: Data) -> str:
    name, rest = map(html.escape, title(data).split(": ", 1))
    words = f"In all: {data['moved']}. {working(data)}."
    if data["kept"] < data["steps"]:
        first, steps = data["at"][0] + 1, data["steps"]
        words += f" Of {steps:,} steps {data['kept']} are shown, from step {first:,} on."
    return piece("head", name=name, rest=rest, words=words)


def _bar(data: Data, frames: Frames) -> str:
    """The step and its program ids. The script adds its buttons in front."""
    ids = ""
    columns = np.array(np.unravel_index(data["at"], data["grid"] or (1,)))
    for axis, size in enumerate(data["grid"]):
        value = frames.element("b", each([f"{n:,}" for n in columns[axis]]))
        ids += piece("program id", axis=axis, value=value, size=size)
    step = frames.element("b", each([f"{n + 1:,}" for n in data["at"]]))
    return piece("bar", step=step, steps=data["steps"], ids=ids)


def _strip(data: Data) -> str:
    """Rows of bars: for each step the blocks that move and those that stay, and the work.

    Labels are on the left; slider, rows and cursor on the right have one width.
    """
    names, rows = _rows(data)
    labels = "".join(f'<div title="{name}">{name}</div>' for name in names)
    places = dict(slot="", cursor="", pipeline="")
    if data["kept"] > 1:
        labels = f"<div>step</div>{labels}"
        places |= {name: f'<div class="pz-{name}"></div>' for name in ("slot", "cursor")}
        places["pipeline"] = sentence("pipeline_of_blocks")
    return piece("strip", labels=labels, columns=data["kept"] + 2, rows=rows, **places)


def _rows(data: Data) -> tuple[list[str], str]:
    """The names of the rows of a strip, and the rows as SVG."""
    groups: dict[tuple[str, tuple[bool, ...]], list[str]] = {}  # operands that move alike
    for operand in data["operands"]:
        if "count" in operand:
            key = operand["role"], tuple(operand["moves"])
            groups.setdefault(key, []).append(html.escape(operand["name"]))
    names, rows = [", ".join(group) for group in groups.values()], ""
    for role, moves in groups:
        kinds = ("written", "held") if role == "output" else ("fetched", "reused")
        rows += _row(moves, *kinds, late=1 if role == "output" else -1)
    names.append("dots" if data["unit"] else "body")
    rows += _row([work > 0 for work in data["work"]], "work", "skipped")
    if wrong := {fault["at"] for fault in data["faults"]} - {None}:
        names.append("fault")
        rows += _row([step in wrong for step in range(data["kept"])], "fault", "none")
    return names, rows


def _row(moves: Sequence[bool], high: str, low: str, late: int = 0) -> str:
    """One row of bars, one for each step: a high bar if something moves.

    late: in which step a copy is in flight, counted from the step that it belongs to. A block is
    fetched during the step before, and written back during the step after.
    """
    moved = still = ""
    for step, moving in enumerate(moves):
        if moving:
            moved += rect(step + late + 0.1, 0, 0.8, _HIGH)
        else:
            still += rect(step + 0.1, _HIGH - _LOW, 0.8, _LOW)
    size = dict(columns=len(moves) + 2, height=_HIGH)
    return piece("row of the strip", **size, high=high, moved=moved, low=low, still=still)


def _body(data: Data, frames: Frames) -> str:
    """The body's box, and its work in each step."""
    work = data["work"]
    does = [plural(n, "dot") if data["unit"] else "computes" for n in work]
    does = [words if n else "does no arithmetic" for words, n in zip(does, work, strict=True)]
    core = frames.attributes(
        class_=each([f"pz-core pz-{'work' if n else 'skipped'}" for n in work])
    )
    return piece("body", core=core, did=frames.element("span", each(does), "pz-did"))


def block_squares(words: str) -> str:
    """The map of right and wrong blocks as small squares; other lines of text stay text."""
    rows, drawn, y, width = words.splitlines(), [], 0, 0.0
    for row in rows:
        marks = row.split()
        if any(not mark.isdecimal() and mark not in {*_CELLS, "…"} for mark in marks):
            drawn.append(text(0, y + 13, row, size=12))
            width = max(width, text_width(row, 12))
            y += 20
            continue
        first = int(row.startswith(" ") and not set(marks) & _CELLS)
        for n, mark in enumerate(marks, first):  # block numbers begin over the first block
            if mark in _CELLS:
                drawn.append(cell(n * _EACH, y, 17, 17, "fault" if mark == "x" else "done"))
            else:
                drawn.append(text(n * _EACH + 8, y + 13, mark, size=11, anchor="middle"))
        width = max(width, _EACH * (len(marks) + first))
        y += 20
    width += 10
    return (
        f'<div style="margin-top:6px"><svg width="{width:g}" height="{y}" role="img" '
        f'aria-label="{html.escape(words)}">{"".join(drawn)}</svg></div>'
    )
