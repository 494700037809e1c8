"""An interactive figure: its initial frame, and the changes that every other frame makes to it.

Python draws every frame. A `Frames` gets the texts and attributes of an element for all frames. It
writes the initial frame into the page and stores the others, each distinct text once. The script,
walk.js, only puts them in; without scripts the initial frame stays. walk.css and walk.html hold
the style and the pieces of HTML.
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

from puzzles._draw.cards import fold
from puzzles._draw.palette import COLOURS, MARKS, SANS, VERMILLION, cell, code
from puzzles._rules import sentence

# Classes of paths in addition to their marks.
_SHAPES = {
    "never": "stroke:none!important",
    "lines": "fill:none;stroke:currentColor;stroke-opacity:.45",
    "lost": f"stroke:{VERMILLION};stroke-opacity:1",
    "over": "fill:none",
}


def marks_in(drawn: str) -> set[str]:
    """The marks that the paths of a picture use; an empty path uses none."""
    return set(re.findall(r'pz-m-(\w+)[^>]* d="M', drawn))


def mark_rules(names: Iterable[str]) -> str:
    """The CSS rules of a picture that shows these marks."""
    looks = {f"m-{name}": MARKS[name]["looks"].items() for name in MARKS if name in set(names)}
    rules = {name: ";".join(map(":".join, look)) for name, look in looks.items()} | _SHAPES
    return "\n".join(f".pz-{name}{{{rule}}}" for name, rule in rules.items())


@cache
def style() -> str:
    """The CSS rules of all timelines on a page: walk.css, filled in with palette and marks."""
    names = COLOURS | {"SANS": SANS, "MARKS": mark_rules(MARKS)}
    return re.sub("__([A-Z]+)__", lambda match: names[match[1]], read("walk.css"))


@cache
def version() -> str:
    """A hash of the script. A saved notebook may hold figures that need an older script."""
    return hashlib.sha256(read("walk.js").encode()).hexdigest()[:8]


def script() -> str:
    """walk.js, which handles the figures of its own version only."""
    return read("walk.js").replace("__VERSION__", version())


def piece(name: str, /, **values: object) -> str:
    """A piece of walk.html, filled in."""
    return _pieces()[name].format(**values)


def key(marks: Container[str]) -> str:
    """The legend of the given marks, as HTML."""
    shown = ((cell(0.5, 0.5, 13, 13, name), mark) for name, mark in MARKS.items() if name in marks)
    items = (piece("mark", swatch=swatch, means=mark["means"]) for swatch, mark in shown)
    return f'<div class="pz-legend">{"".join(items)}</div>'


def faults(says: Iterable[str], folded: bool = False) -> str:
    """A list of faults as HTML; "" if there are none. folded: behind a summary."""
    items = "".join(f'<li><span class="pz-x">✗</span> {code(text)}</li>' for text in says)
    drawn = f'<ul class="pz-faults">{items}</ul>' * bool(items)
    return fold(sentence("the_remedy"), drawn) if drawn and folded else drawn


@cache
def _pieces() -> dict[str, str]:
    """Every piece of walk.html by name, without indentation."""
    _, *named = re.split(r"<!-- (.+) -->\n", read("walk.html"))
    texts = ("".join(map(str.strip, text.splitlines())) for text in named[1::2])
    return dict(zip(named[::2], texts, strict=True))


@cache
def read(name: str) -> str:
    """A file of this folder, without its first paragraph, a comment for its editors."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return text.partition("\n\n")[2].strip()


@dataclass(frozen=True)
class PerFrame:
    """A text for each frame: an entry of `texts`, or the beginning of an entry."""

    texts: list[str]
    which: list[int]
    ends: list[int] | None = None

    def at(self, frame: int) -> str:
        """Return the text of a frame."""
        text = self.texts[self.which[frame]]
        return text if self.ends is None else text[: self.ends[frame]]

    @property
    def still(self) -> bool:
        """True if all frames have the same text."""
        return len({self.at(frame) for frame in range(len(self.which))}) == 1


def each(values: Iterable[str]) -> PerFrame:
    """A text for each frame; equal texts are stored once."""
    numbers: dict[str, int] = {}
    which = [numbers.setdefault(value, len(numbers)) for value in values]
    return PerFrame(list(numbers), which)


def growing(pieces: Sequence[str], shown: Sequence[int]) -> PerFrame:
    """Texts that grow: a frame shows all pieces that earlier frames added to its text.

    pieces: the piece that each frame adds, unless its text already has it.
    shown: the number of the text that each frame shows.
    """
    which = each(map(str, shown)).which
    texts, added, ends = [""] * len(set(which)), set(), []
    for piece, number in zip(pieces, which, strict=True):
        ends.append(len(texts[number]))
        texts[number] += piece * ((number, piece) not in added)
        added.add((number, piece))
    return PerFrame(texts, which, ends)


def encode(values: Sequence[int]) -> str:
    """Integers as their differences, run by run: [0, 1, 2, 2, 2] -> "0 1*2 0*2"."""
    steps = (b - a for a, b in itertools.pairwise([0, *values]))
    runs = ((step, len(list(run))) for step, run in itertools.groupby(steps))
    return " ".join(f"{step}*{n}" if n > 1 else f"{step}" for step, n in runs)


class Frames:
    """The frames of one figure.

    name: the word for a frame, such as "grid step".
    count: the number of frames; initial: the number of the frame that is shown first.
    interactive: False if only the initial frame is ever shown.
    """

    def __init__(self, name: str, count: int, initial: int, interactive: bool = True) -> None:
        self.name, self.count, self.initial, self.interactive = name, count, initial, interactive
        self._stored: list[PerFrame] = []

    def attributes(self, **values: PerFrame) -> str:
        """The attributes of one element in the initial frame; later frames are stored.

        `class_` is the attribute class, and `html` the element's content, which is stored only.
        """
        initial, changing = [], []
        for name, value in values.items():
            name = name.rstrip("_")
            if name != "html":
                initial.append(f'{name}="{value.at(self.initial)}"')
            if self.interactive and not value.still:
                changing.append(f"{name}{len(self._stored)}")
                self._stored.append(value)
        return " ".join([*initial, *[f'data-s="{" ".join(changing)}"'] * bool(changing)])

    def element(self, tag: str, html: PerFrame, class_: str = "") -> str:
        """An element whose content changes from frame to frame."""
        kind = f' class="{class_}"' if class_ else ""
        attributes = self.attributes(html=html)
        return f"<{tag}{kind}{' ' * bool(attributes)}{attributes}>{html.at(self.initial)}</{tag}>"

    def marks(self, drawn: str) -> set[str]:
        """The marks that the initial frame or a later one uses."""
        texts = (text for stored in self._stored for text in stored.texts)
        return set(re.findall(r"pz-m-(\w+)", " ".join((drawn, *texts))))

    def figure(self, content: str, classes: str, label: str) -> str:
        """The whole figure: its content, and the data that the script needs."""
        return (
            f'<div class="{classes} pz-book" style="--k:{self.initial}" data-script="{version()}" '
            f'role="group" aria-label="{label}">{content}{self._script()}</div>'
        )

    def _script(self) -> str:
        stored = [
            [s.texts, encode(s.which), *([] if s.ends is None else [encode(s.ends)])]
            for s in self._stored
        ]
        data = {"name": self.name, "pages": self.count, "open": self.initial, "kept": stored}
        text = json.dumps(data, separators=(",", ":"))
        for sign in "<>&":  # a script element ends at the first "</script"
            text = text.replace(sign, f"\\u{ord(sign):04x}")
        return f'<script type="application/json">{text}</script>'
