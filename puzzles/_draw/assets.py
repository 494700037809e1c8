"""A walk's style sheet, script and pieces: walk.css, walk.js and walk.html, filled in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterable
from functools import cache
from pathlib import Path

from puzzles._draw.palette import COLOURS, MARKS, SANS, VERMILLION, cell

# What the paths of a picture are beside their marks.
_SHAPES = {
    "never": "stroke:none!important",
    "lines": "fill:none;stroke:currentColor;stroke-opacity:.45",
    "lost": f"stroke:{VERMILLION};stroke-opacity:1",
    "over": "fill:none",
}


def marks_in(drawn: str) -> set[str]:
    """The marks of what a picture's paths draw; empty paths draw nothing."""
    return set(re.findall(r'pz-m-(\w+)[^>]* d="M', drawn))


def mark_rules(names: Iterable[str]) -> str:
    """The rules of a picture that shows these marks."""
    looks = {f"m-{name}": MARKS[name].looks.items() for name in MARKS if name in set(names)}
    rules = {name: ";".join(map(":".join, look)) for name, look in looks.items()} | _SHAPES
    return "\n".join(f".pz-{name}{{{rule}}}" for name, rule in rules.items())


@cache
def style() -> str:
    """The rules of every walk on a page: walk.css, with the palette and its marks put in."""
    names = COLOURS | {"SANS": SANS, "MARKS": mark_rules(MARKS)}
    return re.sub("__([A-Z]+)__", lambda found: names[found[1]], _read("walk.css"))


@cache
def version() -> str:
    """A saved notebook may hold walks of an older release, which only their own script knows."""
    return hashlib.sha256(_read("walk.js").encode()).hexdigest()[:8]


def script() -> str:
    """walk.js, which turns the pages of its own release only."""
    return _read("walk.js").replace("__VERSION__", version())


def piece(name: str, /, **values: object) -> str:
    """A piece of walk.html with its values."""
    return _pieces()[name].format(**values)


def key(marks: Container[str]) -> str:
    """What marks mean, as HTML."""
    shown = ((cell(0.5, 0.5, 13, 13, name), mark) for name, mark in MARKS.items() if name in marks)
    items = (piece("mark", swatch=swatch, means=mark.means) for swatch, mark in shown)
    return f'<div class="pz-legend">{"".join(items)}</div>'


@cache
def _pieces() -> dict[str, str]:
    """Every piece by its name, without the indentation that its readers need."""
    _, *named = re.split(r"<!-- (.+) -->\n", _read("walk.html"))
    texts = ("".join(map(str.strip, text.splitlines())) for text in named[1::2])
    return dict(zip(named[::2], texts, strict=True))


@cache
def _read(name: str) -> str:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return text.partition("\n\n")[2].strip()  # without what it says to its editors
