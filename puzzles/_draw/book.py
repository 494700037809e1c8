"""A picture that is leafed through: the page where it opens, and what the others change of it.

Python draws every page. What a page's element says or looks like is handed to a `Book` for all
pages at once; it writes the opening into the page, and keeps the others, each text once. The
script, walk.js, knows nothing but how to put them in: where none runs, the opening stands.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from puzzles._draw.assets import version


@dataclass(frozen=True)
class Changing:
    """A text for every page: one of `texts`, or its beginning; without texts, the number itself."""

    texts: list[str]
    which: np.ndarray
    ends: np.ndarray | None = None

    def at(self, page: int) -> str:
        """The text of a page."""
        if not self.texts:
            return f"{int(self.which[page]):,}"
        text = self.texts[int(self.which[page])]
        return text if self.ends is None else text[: int(self.ends[page])]

    @property
    def still(self) -> bool:
        """True if all pages have the same."""
        return len(set(self.which.tolist())) < 2 and (
            self.ends is None or len(set(self.ends.tolist())) < 2
        )


def each(values: Sequence[str]) -> Changing:
    """A text for every page, those that come again kept once."""
    known: dict[str, int] = {}
    which = [known.setdefault(value, len(known)) for value in values]
    return Changing(list(known), np.array(which, np.int64))


def numbers(values: Sequence[int] | np.ndarray) -> Changing:
    """A whole number for every page."""
    return Changing([], np.asarray(values, np.int64))


def growing(pieces: Sequence[str], shown: Sequence[str]) -> Changing:
    """Texts that grow: every page has what pages before it have added to the text it shows.

    pieces: what each page adds, unless it is there; shown: the name of the text that it shows.
    """
    texts, known = dict.fromkeys(shown, ""), set()
    order, ends = {name: n for n, name in enumerate(texts)}, []
    for piece, name in zip(pieces, shown, strict=True):
        ends.append(len(texts[name]))
        texts[name] += piece * ((name, piece) not in known)
        known.add((name, piece))
    which = [order[name] for name in shown]
    return Changing(list(texts.values()), np.array(which, np.int64), np.array(ends, np.int64))


def encode(values: np.ndarray) -> str:
    """Integers as their differences, run by run: [0, 1, 2, 2, 2] -> "0 1*2 0*2"."""
    steps = np.diff(values, prepend=0).tolist()
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

    def bound(self, inside: str, classes: str, label: str = "") -> str:
        """The whole of it: what is inside, and what the script needs."""
        named = f' role="group" aria-label="{label}"' if label else ""
        return (
            f'<div class="{classes} pz-book" style="--k:{self.opened}" data-script="{version()}"'
            f"{named}>{inside}{self._script()}</div>"
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
