"""A picture that is leafed through: the page where it opens, and what the others change of it.

Python draws every page. What a page's element says or looks like is handed to a `Book` for all
pages at once; it writes the opening into the page, and keeps the others, each text once. The
script, walk.js, knows nothing but how to put them in: where none runs, the opening stands. Its
style and its pieces of HTML are walk.css and walk.html, filled in here.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from puzzles._draw.palette import COLOURS, MARKS, SANS, VERMILLION, cell, code

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
    looks = {f"m-{name}": MARKS[name]["looks"].items() for name in MARKS if name in set(names)}
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
    items = (piece("mark", swatch=swatch, means=mark["means"]) for swatch, mark in shown)
    return f'<div class="pz-legend">{"".join(items)}</div>'


def faults(says: Iterable[str]) -> str:
    """What is wrong, as HTML; nothing where nothing is."""
    items = "".join(f'<li><span class="pz-x">✗</span> {code(one)}</li>' for one in says)
    return f'<ul class="pz-faults">{items}</ul>' if items else ""


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


@dataclass(frozen=True)
class Changing:
    """A text for every page: one of `texts`, or its beginning."""

    texts: list[str]
    which: list[int]
    ends: list[int] | None = None

    def at(self, page: int) -> str:
        """The text of a page."""
        text = self.texts[self.which[page]]
        return text if self.ends is None else text[: self.ends[page]]

    @property
    def still(self) -> bool:
        """True if all pages have the same."""
        return len({self.at(page) for page in range(len(self.which))}) == 1


def each(values: Iterable[str]) -> Changing:
    """A text for every page, those that come again kept once."""
    known: dict[str, int] = {}
    which = [known.setdefault(value, len(known)) for value in values]
    return Changing(list(known), which)


def growing(pieces: Sequence[str], shown: Sequence[int]) -> Changing:
    """Texts that grow: every page has what pages before it have added to the text it shows.

    pieces: what each page adds, unless it is there; shown: the number of the text that it shows.
    """
    which = each(map(str, shown)).which
    texts, known, ends = [""] * len(set(which)), set(), []
    for piece, number in zip(pieces, which, strict=True):
        ends.append(len(texts[number]))
        texts[number] += piece * ((number, piece) not in known)
        known.add((number, piece))
    return Changing(texts, which, ends)


def encode(values: Sequence[int]) -> str:
    """Integers as their differences, run by run: [0, 1, 2, 2, 2] -> "0 1*2 0*2"."""
    steps = (b - a for a, b in itertools.pairwise([0, *values]))
    runs = ((step, len(list(run))) for step, run in itertools.groupby(steps))
    return " ".join(f"{step}*{n}" if n > 1 else f"{step}" for step, n in runs)


class Book:
    """The pages of one picture: how many, where it opens, what a page is called, what changes.

    turned: False where no page but the opening is ever shown.
    """

    def __init__(self, name: str, pages: int, opened: int, turned: bool = True) -> None:
        self.name, self.pages, self.opened, self.turned = name, pages, opened, turned
        self._kept: list[Changing] = []

    def attributes(self, **values: Changing) -> str:
        """Attributes of one element (`class_` is class, `html` what is inside), as it opens."""
        stand, change = [], []
        for name, value in values.items():
            name = name.rstrip("_")
            if name != "html":
                stand.append(f'{name}="{value.at(self.opened)}"')
            if self.turned and not value.still:
                change.append(f"{name}{len(self._kept)}")
                self._kept.append(value)
        return " ".join([*stand, *[f'data-s="{" ".join(change)}"'] * bool(change)])

    def element(self, tag: str, html: Changing, class_: str = "") -> str:
        """An element whose inside changes."""
        kind = f' class="{class_}"' if class_ else ""
        attributes = self.attributes(html=html)
        return f"<{tag}{kind}{' ' * bool(attributes)}{attributes}>{html.at(self.opened)}</{tag}>"

    def marks(self, drawn: str) -> set[str]:
        """The marks that are in the opening, or come in on another page."""
        texts = (text for one in self._kept for text in one.texts)
        return set(re.findall(r"pz-m-(\w+)", " ".join((drawn, *texts))))

    def bound(self, inside: str, classes: str, label: str) -> str:
        """The whole of it: what is inside, and what the script needs."""
        return (
            f'<div class="{classes} pz-book" style="--k:{self.opened}" data-script="{version()}" '
            f'role="group" aria-label="{label}">{inside}{self._script()}</div>'
        )

    def _script(self) -> str:
        kept = [
            [one.texts, encode(one.which), *([] if one.ends is None else [encode(one.ends)])]
            for one in self._kept
        ]
        data = {"name": self.name, "pages": self.pages, "open": self.opened, "kept": kept}
        text = json.dumps(data, separators=(",", ":"))
        for sign in "<>&":  # so that it may stand in a <script>
            text = text.replace(sign, f"\\u{ord(sign):04x}")
        return f'<script type="application/json">{text}</script>'
