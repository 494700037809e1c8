"""Colours, marks and text for timelines, verdicts and diagrams."""

from __future__ import annotations

import html
import math
import tomllib
from collections.abc import Container
from pathlib import Path
from typing import Any

# Okabe and Ito's colours for every kind of colour vision. All but the light "sky", which never
# stands without its outline, have a contrast of at least 3 on white and on #111: no theme needs
# to be known. Text is never coloured; it is `currentColor`, as are all neutral marks.
BLUE, SKY, GREEN, PURPLE, VERMILLION = "#0072B2", "#56B4E9", "#009E73", "#CC79A7", "#D55E00"
INK, GREY = "currentColor", "#888888"
COLOURS = dict(BLUE=BLUE, SKY=SKY, GREEN=GREEN, PURPLE=PURPLE, VERMILLION=VERMILLION, INK=INK)

SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, 'SFMono-Regular', Menlo, Consolas, 'DejaVu Sans Mono', monospace"

# The meaning, attributes and hatch of each mark, from marks.toml.
MARKS = tomllib.loads(Path(__file__).with_name("marks.toml").read_text(encoding="utf-8"))
for _mark in MARKS.values():
    _mark["looks"] = {
        name: COLOURS.get(value, str(value)) for name, value in _mark["looks"].items()
    }

_GAP = 6  # pixels between lines of a hatch


def px(value: float) -> str:
    """A coordinate with at most one decimal, equal on every machine."""
    return f"{value:.1f}".removesuffix(".0")


def rect(x: float, y: float, w: float, h: float) -> str:
    """A rectangle as a piece of path data, so that many make one element."""
    return f"M{px(x)} {px(y)}h{px(w)}v{px(h)}h-{px(w)}z"


def hatch(x: float, y: float, w: float, h: float, kind: str) -> str:
    """A cross, or diagonal lines inside a rectangle, as path data.

    Lines of one grid over the whole picture, so that hatched neighbours join, and no <pattern>,
    which needs an id that two pictures on a page could share.
    """
    if kind == "x":  # one cross
        return f"M{px(x)} {px(y)}l{px(w)} {px(h)}M{px(x)} {px(y + h)}l{px(w)} -{px(h)}"
    side = -1 if kind == "\\" else 1  # its lines are those of the mirror image, mirrored
    start = x if side > 0 else -x - w
    drawn = ""
    for k in range(int((start + y) // _GAP) + 1, math.ceil((start + y + w + h) / _GAP)):
        c = k * _GAP  # the line x + y = c enters and leaves the rectangle here
        left, right = max(start, c - y - h), min(start + w, c - y)
        if right - left > 0.5:
            drawn += f"M{px(side * left)} {px(c - left)}L{px(side * right)} {px(c - right)}"
    return drawn


def cell(x: float, y: float, w: float, h: float, mark: str) -> str:
    """One block with its mark, hatch included; needs no style sheet."""
    looks, kind = MARKS[mark]["looks"], MARKS[mark].get("hatch")
    width = float(looks.get("stroke-width", 0))
    inset = width / 2  # an outline stays inside its block
    attributes = " ".join(f'{name}="{value}"' for name, value in looks.items())
    drawn = f'<path d="{rect(x + inset, y + inset, w - width, h - width)}" {attributes}/>'
    if kind:
        lines = hatch(x + width, y + width, w - 2 * width, h - 2 * width, kind)
        stroke = looks.get("stroke", INK)
        drawn += f'<path d="{lines}" stroke="{stroke}" stroke-opacity=".5" fill="none"/>'
    return drawn


# Advances of Helvetica in thousandths of the size. Other characters count as 556, other capitals as
# 667. `text` makes every font keep to them, so the computed width is the width drawn.
_NARROW = dict.fromkeys(" !,./:;I[]\\ft", 278) | dict.fromkeys("ijl'|", 222)
_NARROW |= dict.fromkeys("()-r`·", 333) | dict.fromkeys("cksvxyz", 500)
_NARROW |= dict.fromkeys("+=<>×–", 584) | {"m": 833, "M": 833, "w": 722, "W": 944, "—": 1000}


def text_width(words: str, size: float, mono: bool = False) -> float:
    """The width in pixels of these words as `text` draws them."""
    if mono:
        return len(words) * 0.6 * size
    widths = (
        _NARROW.get(c, 667 if c.isupper() else 556 if ord(c) < 0x2000 else 1000) for c in words
    )
    return sum(widths) * size / 1000


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 12,
    anchor: str = "start",
    mono: bool = False,
    bold: bool = False,
    muted: bool = False,
) -> str:
    """SVG of one line of text. x is its start, middle or end, by `anchor`; y is the base line.

    `textLength` makes every font keep to the computed width.
    """
    if mono:
        words = words.replace("  ", "\N{NO-BREAK SPACE}" * 2)  # SVG joins spaces; columns are kept
    width = text_width(words, size, mono)
    style = f'font-family="{MONO if mono else SANS}" font-size="{px(size)}" fill="{INK}"'
    style += ' font-weight="600"' * bold + ' fill-opacity=".72"' * muted
    return (
        f'<text x="{px(x)}" y="{px(y)}" text-anchor="{anchor}" textLength="{px(width)}" '
        f'lengthAdjust="spacingAndGlyphs" {style}>{html.escape(words)}</text>'
    )


def legend(marks: Container[str], x: float, y: float, width: float) -> tuple[str, float]:
    """Return swatches with their meanings, wrapped to `width`, and their height."""
    drawn, left, top, size = [], x, y, 11
    for name, mark in MARKS.items():
        if name not in marks:
            continue
        words = mark["means"]
        room = 20 + text_width(words, size) + 18
        if left > x and left + room > x + width:
            left, top = x, top + size + 10
        drawn.append(cell(left, top, 14, 14, name))
        drawn.append(text(left + 20, top + 11, words, size=size))
        left += room
    return "".join(drawn), top + 14 - y


def code(words: str) -> str:
    """Escape words for HTML, keep line breaks, and turn backticks into code elements."""
    pieces = html.escape(words).split("`")
    marked = [p if i % 2 == 0 else f"<code>{p}</code>" for i, p in enumerate(pieces)]
    return "".join(marked).replace("\n", "<br>")


def tuple_words(values: Any) -> str:
    """A shape or an index as Python writes it; a squeezed axis is None."""
    entries = ", ".join(str(v) for v in values)
    return f"({entries},)" if len(values) == 1 else f"({entries})"


def document(
    width: float, height: float, body: str, title: str, description: str, rules: str = ""
) -> str:
    """A standalone SVG file on its own paper, from card.svg.

    The paper is dark if the reader's system prefers dark colours. An image cannot know the theme
    of the page around it, and on its own paper it is legible in both.
    """
    values = dict(title=html.escape(title), description=html.escape(description), rules=rules)
    body = body.replace(f' font-family="{SANS}"', "")  # card.svg sets it for the whole file
    card = Path(__file__).with_name("card.svg").read_text(encoding="utf-8")
    return card.format(width=px(width), height=px(height), font=SANS, body=body, **values)
