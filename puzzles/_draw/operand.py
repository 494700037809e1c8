"""One operand of a walk: what it is, what it does, its picture; or its numbers, if prefetched."""

from __future__ import annotations

import html
import math

from puzzles._draw.data import Data, decode
from puzzles._draw.palette import cell, text_width
from puzzles._draw.panel import frame, lines_and_numbers, now_path, path, place, slice_of
from puzzles._draw.track import WORDS, Track, plural, tuple_words
from puzzles._draw.words import describe, still_words
from puzzles._receipt import amount

STATE_MARKS = {
    "fetched": "fetched",
    "refetched": "fetched",
    "reused": "reused",
    "held": "held",
    "written": "written",
    "rewritten": "written",
    "outside": "fault",
}


def operand_panel(
    data: Data, number: int, track: Track | None, view: Data | None, never: dict[str, list[str]]
) -> str:
    """An operand's words and its picture at the step where the walk opens."""
    operand = data["operands"][number]
    faulty = any(f["operand"] == operand["name"] for f in data["faults"])
    mark = '<span class="pz-x" title="a fault, see above">✗</span> ' if faulty else ""
    shape, cut = describe(operand)
    head = (
        f'<div class="pz-name">{mark}<b>{html.escape(operand["name"])}</b></div>'
        f'<div class="pz-what">{html.escape(shape)}{"<br>" * bool(cut)}{html.escape(cut)}</div>'
    )
    if track is None or view is None:
        room = f' style="width:{max(126, view["width"]):g}px"' if view else ""
        return f'<div class="pz-panel"{room}>{head}{_still(operand, view)}</div>'
    k = data["open"]
    block, state = track.block(k), track.state(k)
    shown = slice_of(view, operand, block)
    seen, twice = track.before(k)
    at_fault = any(
        f["operand"] == operand["name"] and f["at"] == k and f["kind"] != "never-written"
        for f in data["faults"]
    ) or _always(data, operand)
    outlines, lines = never.get(str(shown if view["one"] else 0), ("", ""))
    gaps = [f["operand"] for f in data["faults"] if f["kind"] == "never-written"]
    lost = operand["name"] in gaps
    classes = {
        "never": "fault" if lost else "untouched",
        "seen": "done" if track.output else "read",
        "twice": "fault" if track.output else "reread",
        "now": "fault" if at_fault else STATE_MARKS[state],
    }
    # Where an earlier step has tinted the block, what stays is an outline on top.
    over = " pz-over" * (state in ("reused", "held") and block in seen)
    box = place(view, track, block)
    drawn = (
        f'{frame(view)}<path class="pz-never pz-m-{classes["never"]}" d="{outlines}"/>'
        f'<path class="pz-lines{" pz-lost" * lost}" d="{lines}"/>'
        f'<path class="pz-seen pz-m-{classes["seen"]}" d="{path(view, track, seen, shown)}"/>'
        f'<path class="pz-twice pz-m-{classes["twice"]}" d="{path(view, track, twice, shown)}"/>'
        f'{lines_and_numbers(view, operand)}<path class="pz-now pz-m-{classes["now"]}{over}" '
        f'd="{now_path(box)}"/>'
    )
    grid = " by ".join(str(c) for c in operand["counts"]) or "one"
    svg = (
        f'<svg width="{view["width"]:g}" height="{view["height"]:g}" role="img" viewBox="0 0 '
        f'{view["width"]:g} {view["height"]:g}" aria-label="{html.escape(operand["name"])}: {grid} '
        f'blocks; the words above say which one this step holds">{drawn}</svg>'
    )
    which = "<br>".join(filter(None, (_slice_words(operand, view, shown), _never_words(operand))))
    width = max(138, view["width"], *(1.1 * text_width(line, 11) for line in describe(operand)))
    return (
        f'<div class="pz-panel" data-operand="{number}" style="width:{width:.0f}px">'
        f'{head}<div class="pz-where">block <b>{tuple_words(block)}</b></div>'
        f'<div class="pz-state"><span class="pz-dot pz-d-{classes["now"]}"></span>'
        f"<span>{WORDS[state]}</span></div>{svg}"
        f'<div class="pz-sofar">{_so_far(operand, int(track.count[k]), int(track.moved[k]))}</div>'
        f'<div class="pz-slice">{which}</div></div>'
    )


def _always(data: Data, operand: Data) -> bool:
    """True if the fault of an operand is in every one of its blocks."""
    kinds = [f["kind"] for f in data["faults"] if f["operand"] == operand["name"]]
    return "misaligned" in kinds


def _so_far(operand: Data, times: int, size: int) -> str:
    noun = "write" if operand["role"] == "output" else "fetch"
    return f"{plural(times, noun)}, {amount(size)}"


def _slice_words(operand: Data, view: Data, shown: int) -> str:
    if view["slices"] == 1:
        return ""
    lead = ", ".join(str(a) for a in view["lead"])
    axes = f"axis {lead}" if len(view["lead"]) == 1 else f"axes {lead}"
    if not view["one"]:
        return f"[ ] counts along {axes}"
    return f"slice <b>{shown}</b> of {view['slices']:,} along {axes}"


def _never_words(operand: Data) -> str:
    """How many blocks no step touches; empty if there are none."""
    count, total = len(decode(operand["never"])), math.prod(operand["counts"])
    return f"{count:,} of {total:,} blocks never touched" if count else ""


def _still(operand: Data, view: Data | None) -> str:
    words = f'<div class="pz-state">{html.escape(still_words(operand))}</div>'
    if view is None:
        return f'{words}<div class="pz-any"></div>'
    box = cell(1, 1, view["w"], view["h"], "resident")
    size = f'width="{view["width"]:g}" height="{view["height"]:g}"'
    return f'{words}<svg class="pz-scratch" {size} aria-hidden="true">{box}</svg>'
