"""Walks as one page of HTML and SVG for a cell's output: `walk_data` in, a string out."""

from __future__ import annotations

import html
import json
from typing import Any

from puzzles._draw_data import Data, decode
from puzzles._draw_panel import frame, lines_and_numbers, now_path, path, place, slice_of, untouched, views
from puzzles._draw_script import SCRIPT, VERSION
from puzzles._draw_strip import strip
from puzzles._draw_style import STYLE
from puzzles._draw_text import describe, described, sampled, still_words, title
from puzzles._draw_track import WORDS, Track, plural, program_ids, tracks, tuple_words
from puzzles._palette import MARKS, cell, swatch, text_width
from puzzles._receipt import amount

_MARKS = {
    "fetched": "fetched",
    "refetched": "fetched",
    "reused": "reused",
    "held": "held",
    "written": "written",
    "rewritten": "written",
    "outside": "fault",
}


def walk_page(walks: list[Data]) -> str:
    """All walks, stacked. Equal data give equal bytes; nothing is loaded from anywhere."""
    walked = [_walk(data) for data in walks]
    script = SCRIPT.replace("__WORDS__", _json(WORDS)).replace("__MARKS__", _json(_MARKS))
    script = script.replace("__VERSION__", VERSION)
    return f"<style>{STYLE}</style>{''.join(walked)}<script>{script}</script>"


def _json(value: Any) -> str:
    """JSON that may stand in a <script>."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _walk(data: Data) -> str:
    if not data["steps"]:
        body = _faults(data) + "<p>The grid is empty: no step runs.</p>"
        return f'<div class="pz-walk">{_head(data)}{body}</div>'
    seen, where = tracks(data), views(data)
    nevers = [untouched(v, t) if v and t else {} for v, t in zip(where, seen, strict=True)]
    panels = [
        _panel(data, number, track, view, never)
        for number, (track, view, never) in enumerate(zip(seen, where, nevers, strict=True))
    ]
    sides: dict[str, str] = {"scalar": "", "any": "", "input": "", "output": "", "scratch": ""}
    for panel, operand in zip(panels, data["operands"], strict=True):
        sides[operand["role"]] += panel
    stacks = {role: f'<div class="pz-stack">{sides[role]}</div>' * bool(sides[role]) for role in sides}
    embedded = data | {"views": where, "nevers": nevers}
    parts = [
        _head(data),
        _faults(data),
        _controls(data),
        strip(data, seen),
        f'<div class="pz-board">{stacks["scalar"]}{stacks["any"]}{sides["input"]}{_body(data)}'
        f"{sides['output']}{stacks['scratch']}</div>",
        _legend(data, seen),
        _table(data),
        f'<script type="application/json">{_json(embedded)}</script>',
    ]
    return (
        f'<div class="pz-walk" role="group" aria-label="Grid walk of {html.escape(title(data))}" '
        f'data-script="{VERSION}">{"".join(parts)}</div>'
    )


def _head(data: Data) -> str:
    name, rest = title(data).split(": ", 1)
    return f'<div class="pz-head"><b>{html.escape(name)}</b> <span>{html.escape(rest)}</span></div>'


def _faults(data: Data) -> str:
    items = []
    for fault in data["faults"]:
        go = ""
        if fault["at"] is not None and data["kept"] > 1:
            step = tuple_words(program_ids(data, fault["at"]))
            go = f' <button type="button" data-go="{fault["at"]}" hidden>look at {step}</button>'
        items.append(f'<li><span class="pz-x">✗</span> {_code(fault["says"])}{go}</li>')
    return f'<ul class="pz-faults">{"".join(items)}</ul>' if items else ""


def _code(words: str) -> str:
    pieces = html.escape(words).split("`")
    return "".join(p if i % 2 == 0 else f"<code>{p}</code>" for i, p in enumerate(pieces))


# Each icon: its words, path data, and whether it is filled or drawn as a line.
_ICONS = {
    "first": ("first step", "M4 3v10M12 3L7 8l5 5"),
    "back": ("one step back", "M10 3L5 8l5 5"),
    "play": ("play", "M5 3l8 5-8 5z"),
    "next": ("one step on", "M6 3l5 5-5 5"),
    "last": ("last step", "M12 3v10M4 3l5 5-5 5"),
}


def _controls(data: Data) -> str:
    buttons = "".join(
        f'<button type="button" data-do="{do}" title="{words}" aria-label="{words}"><svg width="16" '
        f'height="16" viewBox="0 0 16 16" aria-hidden="true"><path d="{icon}"/></svg></button>'
        for do, (words, icon) in _ICONS.items()
    )
    k = data["open"]
    ids = "".join(
        f'<span class="pz-id"><code>program_id({axis})</code> = <b>{i}</b> <i>of {size}</i></span>'
        for axis, (i, size) in enumerate(zip(program_ids(data, k), data["grid"], strict=True))
    )
    step, last = int(decode(data["at"])[k]), data["steps"] - 1
    return (
        f'<div class="pz-bar"><span class="pz-keys" role="group" aria-label="steps" hidden>{buttons}'
        f'</span><span class="pz-step" aria-live="polite">grid step <b>{step:,}</b> '
        f"<i>of 0 … {last:,}</i></span>{ids}</div>"
    )


def _panel(
    data: Data, number: int, track: Track | None, view: Data | None, never: dict[str, list[str]]
) -> str:
    operand = data["operands"][number]
    faulty = any(f["operand"] == operand["name"] for f in data["faults"])
    mark = '<span class="pz-x" title="a fault, see above">✗</span> ' if faulty else ""
    shape, block = describe(operand)
    head = (
        f'<div class="pz-name">{mark}<b>{html.escape(operand["name"])}</b></div>'
        f'<div class="pz-what">{html.escape(shape)}{"<br>" * bool(block)}{html.escape(block)}</div>'
    )
    if track is None or view is None:
        return f'<div class="pz-panel">{head}{_still(operand, view)}</div>'
    k = data["open"]
    block, state = track.block(k), track.state(k)
    shown = slice_of(view, operand, block)
    seen, twice = track.before(k)
    at_fault = any(
        f["operand"] == operand["name"] and f["at"] == k and f["kind"] != "unwritten"
        for f in data["faults"]
    ) or _always(data, operand)
    outlines, lines = never.get(str(shown if view["one"] else 0), ("", ""))
    lost = any(f["kind"] == "unwritten" and f["operand"] == operand["name"] for f in data["faults"])
    classes = {
        "never": "fault" if lost else "untouched",
        "seen": "done" if track.output else "read",
        "twice": "fault" if track.output else "reread",
        "now": "fault" if at_fault else _MARKS[state],
    }
    box = place(view, track, block)
    drawn = (
        f'{frame(view)}<path class="pz-never pz-m-{classes["never"]}" d="{outlines}"/>'
        f'<path class="pz-lines{" pz-lost" * lost}" d="{lines}"/>'
        f'<path class="pz-seen pz-m-{classes["seen"]}" d="{path(view, track, seen, shown)}"/>'
        f'<path class="pz-twice pz-m-{classes["twice"]}" d="{path(view, track, twice, shown)}"/>'
        f'{lines_and_numbers(view, operand)}<path class="pz-now pz-m-{classes["now"]}" '
        f'd="{now_path(box)}"/>'
    )
    grid = " by ".join(str(c) for c in operand["counts"]) or "one"
    svg = (
        f'<svg width="{view["width"]:g}" height="{view["height"]:g}" role="img" viewBox="0 0 '
        f'{view["width"]:g} {view["height"]:g}" aria-label="{html.escape(operand["name"])}: {grid} '
        f'blocks; the words above say which one this step holds">{drawn}</svg>'
    )
    which = _slice_words(operand, view, shown)
    width = max(138, view["width"], *(text_width(line, 12) + 4 for line in describe(operand)))
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


def _still(operand: Data, view: Data | None) -> str:
    words = f'<div class="pz-state">{html.escape(still_words(operand))}</div>'
    if operand["role"] == "scalar":
        return words + _numbers(operand)
    if view is None:
        return f'{words}<div class="pz-any"></div>'
    box = cell(1, 1, view["w"], view["h"], "resident")
    size = f'width="{view["width"]:g}" height="{view["height"]:g}"'
    return f'{words}<svg class="pz-scratch" {size} aria-hidden="true">{box}</svg>'


def _numbers(operand: Data) -> str:
    """A prefetched array as a table, a row of it a row."""
    if "numbers" not in operand:
        return '<div class="pz-state">its values are known only when it runs</div>'
    numbers, shape = [int(x) for x in operand["numbers"]], operand["shape"]
    across = min(shape[-1], 16) if len(shape) > 1 else 16
    width = shape[-1] if len(shape) > 1 else 16
    rows = [numbers[i : i + width][:across] for i in range(0, len(numbers), max(1, width))]
    cells = "".join(f"<tr>{''.join(f'<td>{x}</td>' for x in row)}</tr>" for row in rows)
    total = 1
    for size in shape:
        total *= size
    shown = sum(map(len, rows))
    more = f"<div class='pz-sofar'>the first {shown} of {total:,}</div>" * (shown < total)
    return f'<table class="pz-numbers">{cells}</table>{more}'


def _body(data: Data) -> str:
    k = data["open"]
    work = int(decode(data["work"])[k])
    kind = "work" if work else "skipped"
    return (
        '<div class="pz-body"><div class="pz-arrow" aria-hidden="true">→</div><div class="pz-core '
        f'pz-{kind}"><b>body</b><span class="pz-did">{did(data, work)}</span></div>'
        '<div class="pz-arrow" aria-hidden="true">→</div></div>'
    )


def did(data: Data, work: int) -> str:
    """What the body does in a step, in words."""
    if not work:
        return "does no arithmetic"
    return f"{work} dot{'s' * (work != 1)}" if data["unit"] else "computes"


def _legend(data: Data, seen: list[Track | None]) -> str:
    """The marks that this walk shows."""
    names = {name for track in seen if track is not None for name in track.marks()}
    if any(o.get("never") for o in data["operands"]):
        names.add("untouched")
    if data["faults"]:
        names.add("fault")
    items = (f"<span>{swatch(m)} {MARKS[m].means}</span>" for m in MARKS if m in names)
    return f'<div class="pz-legend">{"".join(items)}</div>'


def _table(data: Data) -> str:
    heads = ("", "array and block", "memory", "moved", "bytes")
    rows = "".join(
        f"<tr><th scope='row'>{html.escape(o['name'])}</th><td>{html.escape(described(o))}</td>"
        f"<td>{o['space'].upper()}</td><td>{o['transfers']:,}×</td><td>{amount(o['bytes'])}</td></tr>"
        for o in data["operands"]
    )
    top = "".join(f"<th scope='col'>{h}</th>" for h in heads)
    note = f"<p>{sampled(data)}</p>" if data["kept"] < data["steps"] else ""
    return (
        f"<div class='pz-total'>In all: read <b>{amount(data['read'])}</b>, written "
        f"<b>{amount(data['written'])}</b>; the body works in "
        f"<b>{data['busy']:,}</b> of {plural(data['steps'], 'step')}.{note}</div>"
        f"<details class='pz-all'><summary>each operand in numbers</summary><table><thead><tr>{top}"
        f"</tr></thead><tbody>{rows}</tbody></table></details>"
    )
