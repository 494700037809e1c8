"""The strip under the slider: for every step, what moves, what stays, and whether work is done."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

from puzzles._draw.assets import piece
from puzzles._draw.book import Book, each
from puzzles._draw.data import Data
from puzzles._draw.palette import px
from puzzles._receipt import amount

_HIGH, _LOW = 14.0, 4.0


def strip(data: Data) -> str:
    """Labels on the left; slider, rows and cursor on the right, all of one width."""
    at = np.array(data["at"])
    together: dict[tuple[str, tuple[int, ...]], list[str]] = {}  # what moves in the same steps
    for operand in data["operands"]:
        if "count" in operand:
            key = operand["role"], tuple(operand["count"])
            together.setdefault(key, []).append(operand["name"])
    names, rows = list(together.values()), []
    for role, count in together:
        kinds = ("written", "held") if role == "output" else ("fetched", "reused")
        rows.append(_row(_shares(count, at), *kinds))
    names.append(["dots" if data["unit"] else "body"])
    rows.append(_row(_shares(data["worked"], at), "work", "skipped"))
    marked = [f["at"] for f in data["faults"] if f["at"] is not None]
    if marked:
        names.append(["fault"])
        share = np.zeros(len(at))
        share[marked] = 1
        rows.append(_row(share, "fault", ""))
    labels = "".join(
        f'<div title="{html.escape(", ".join(x))}">{html.escape(_few(x))}</div>' for x in names
    )
    return piece("strip", labels=labels, count=len(at), rows="".join(rows))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 3 else f"{names[0]} and {len(names) - 1} more"


def meters(data: Data, book: Book) -> str:
    """Bytes that have been read and written, up to and with a step."""
    drawn = []
    for way, mark in (("read", "read"), ("written", "done")):
        said = book.element("b", each([amount(size) for size in data["moved"][way]]))
        full = 100 * np.array(data["moved"][way]) / (data[way] or 1)
        wide = book.attributes(style=each([f"width:{share:.4g}%" for share in full.tolist()]))
        total = amount(data[way])
        drawn.append(piece("meter", way=way, said=said, total=total, mark=mark, wide=wide))
    return f'<div class="pz-bytes">{"".join(drawn)}</div>'


def _shares(counts: Sequence[int], at: np.ndarray) -> np.ndarray:
    """Of each step and those before it that are not shown, how many a running count counts."""
    return np.diff(counts, prepend=0) / np.diff(at, prepend=-1)


def _row(shares: np.ndarray, high: str, low: str) -> str:
    """One row of bars: full where all steps of a column move, low where none does."""
    gap = 0.12 if len(shares) <= 96 else 0.0
    heights = np.where(shares > 0, np.maximum(_HIGH * shares, 2.0), 0.0)
    cuts = np.arange(1, len(shares)) if gap else np.flatnonzero(np.diff(heights)) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(shares)]
    moved = still = ""
    for a, b in zip(starts, ends, strict=True):  # neighbours of one height are one bar
        x, w, h = a + gap / 2, b - a - gap, heights[a] or _LOW
        bar = f"M{px(x, 2)} {px(_HIGH - h)}h{px(w, 2)}v{px(h)}h-{px(w, 2)}z"
        if heights[a]:
            moved += bar
        elif low:
            still += bar
    quiet = f'<path class="pz-s-{low}" d="{still}"/>' if low else ""
    size = dict(count=len(shares), high=_HIGH)
    return piece("row of the strip", **size, mark=high, moved=moved, still=quiet)
