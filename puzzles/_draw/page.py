"""Walks as one page of HTML and SVG for a cell's output: `walk_data` in, a string out."""

from __future__ import annotations

import html
import json
from typing import Any

from puzzles._draw.assets import script, style, version
from puzzles._draw.copies import copies_section, folded, says
from puzzles._draw.data import Data, decode
from puzzles._draw.lists import list_panel
from puzzles._draw.operand import STATE_MARKS, operand_panel
from puzzles._draw.palette import MARKS, swatch
from puzzles._draw.panel import untouched, views
from puzzles._draw.strip import strip
from puzzles._draw.track import WORDS, Track, program_ids, tracks, tuple_words
from puzzles._draw.words import described, moved, sampled, title, working
from puzzles._receipt import amount


def walk_page(walks: list[Data]) -> str:
    """All walks, stacked. Equal data give equal bytes; nothing is loaded from anywhere."""
    moving = script(_json(WORDS), _json(STATE_MARKS))
    return f"<style>{style()}</style>{''.join(map(_walk, walks))}<script>{moving}</script>"


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
        list_panel(data, number)
        if data["operands"][number]["role"] == "scalar"
        else operand_panel(data, number, track, view, never)
        for number, (track, view, never) in enumerate(zip(seen, where, nevers, strict=True))
    ]
    sides: dict[str, str] = {"scalar": "", "any": "", "input": "", "output": "", "scratch": ""}
    for panel, operand in zip(panels, data["operands"], strict=True):
        sides[operand["role"]] += panel
    stacks = {r: f'<div class="pz-stack">{s}</div>' if s else "" for r, s in sides.items()}
    lists = f'<div class="pz-lists">{sides["scalar"]}</div>' * bool(sides["scalar"])
    embedded = data | {"views": where, "nevers": nevers}
    copied = ""
    if "copies" in data:
        copied = copies_section(data["copies"])
        embedded["copies"] = {"says": says(data["copies"]), "open": data["copies"]["open"]}
    parts = [
        _head(data),
        _faults(data),
        copied,
        _bar(data),
        strip(data, seen),
        lists,
        f'<div class="pz-board">{stacks["any"]}{sides["input"]}<div class="pz-after">{_body(data)}'
        f"{sides['output']}{stacks['scratch']}</div></div>",
        _legend(data, seen),
        _table(data),
        f'<script type="application/json">{_json(embedded)}</script>',
    ]
    alone = " pz-alone" * bool(copied and data["kept"] == 1)  # no grid to walk through
    return (
        f'<div class="pz-walk{alone}" role="group" data-script="{version()}" '
        f'aria-label="Grid walk of {html.escape(title(data))}">{"".join(parts)}</div>'
    )


def _head(data: Data) -> str:
    name, rest = title(data).split(": ", 1)
    note = f" {sampled(data)}" if data["kept"] < data["steps"] else ""
    total = f"In all: {moved(data, '<b>{}</b>')}; {working(data)}.{note}"
    return (
        f'<div class="pz-head"><b>{html.escape(name)}</b> <span>{html.escape(rest)}</span></div>'
        f'<div class="pz-total">{total}</div>'
    )


def _faults(data: Data) -> str:
    items = []
    for fault in data["faults"]:
        go = ""
        if fault["at"] is not None and data["kept"] > 1:
            step = tuple_words(program_ids(data, fault["at"]))
            go = f' <span data-go="{fault["at"]}" data-step="{step}"></span>'
        items.append(f'<li><span class="pz-x">✗</span> {folded(fault["says"])}{go}</li>')
    return f'<ul class="pz-faults">{"".join(items)}</ul>' if items else ""


def _bar(data: Data) -> str:
    """The step and its program ids; the script puts its buttons before them."""
    k = data["open"]
    ids = "".join(
        f'<span class="pz-id"><code>program_id({axis})</code> = <b>{i}</b> <i>of {size}</i> </span>'
        for axis, (i, size) in enumerate(zip(program_ids(data, k), data["grid"], strict=True))
    )
    step = int(decode(data["at"])[k]) + 1
    return (
        '<div class="pz-bar pz-steps"><span class="pz-step" aria-live="polite">'
        f"step <b>{step:,}</b> <i>of {data['steps']:,}</i></span> {ids}</div>"
    )


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
    return (
        f"<details class='pz-all'><summary>each operand in numbers</summary><table><thead><tr>{top}"
        f"</tr></thead><tbody>{rows}</tbody></table></details>"
    )
