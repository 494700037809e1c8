"""The strip under the slider: for every step, what moves, what stays, and whether work is done."""

from __future__ import annotations

import html

import numpy as np

from puzzles._draw.data import Data, decode
from puzzles._draw.palette import px
from puzzles._draw.track import Track
from puzzles._draw.words import work_name
from puzzles._receipt import amount

COLUMNS = 512  # at most; of more steps, a column shows the share that moves
_HIGH, _LOW = 14.0, 4.0


def strip(data: Data, seen: list[Track | None]) -> str:
    """Labels on the left; slider, rows and cursor on the right, all of one width."""
    kept, k = data["kept"], data["open"]
    group = -(-kept // COLUMNS)
    ends = np.minimum(np.arange(group, kept + group, group), kept)
    columns = kept / group
    at = decode(data["at"])
    names, rows = [], []
    for track in seen:
        if track is None:
            continue
        share = _shares(track.count, at, ends)
        kinds = ("written", "held") if track.output else ("fetched", "reused")
        names.append(track.operand["name"])
        rows.append(_row(share, columns, *kinds))
    work = decode(data["worked"])
    names.append(work_name(data))
    rows.append(_row(_shares(work, at, ends), columns, "work", "skipped"))
    marked = [f["at"] // group for f in data["faults"] if f["at"] is not None]
    if marked:
        names.append("fault")
        share = np.zeros(len(ends))
        share[marked] = 1
        rows.append(_row(share, columns, "fault", ""))
    labels = "".join(f'<div title="{html.escape(x)}">{html.escape(x)}</div>' for x in names)
    read, written = so_far(data, seen, k)
    left, width = 100 * k / kept, 100 / kept
    return (
        f'<div class="pz-strip"><div class="pz-labels"><div>step</div>{labels}</div>'
        f'<div class="pz-time" style="--n:{kept}"><div class="pz-slot"></div>{"".join(rows)}'
        f'<div class="pz-cursor" style="left:{left:.4g}%;width:{width:.4g}%"></div></div></div>'
        f'<div class="pz-bytes">{_meter("read", "read", read, data["read"])}'
        f"{_meter('written', 'done', written, data['written'])}</div>"
    )


def so_far(data: Data, seen: list[Track | None], k: int) -> tuple[int, int]:
    """Bytes that have been read and written, up to and with a step: blocks, lists, copies."""
    moved = [(t.output, int(t.moved[k])) for t in seen if t is not None]
    moved += [(False, o["bytes"]) for o in data["operands"] if o["role"] == "scalar"]
    moved += [(way == "out", int(decode(all_)[k])) for way, all_ in data.get("hand", {}).items()]
    return sum(b for out, b in moved if not out), sum(b for out, b in moved if out)


def _meter(name: str, mark: str, size: int, total: int) -> str:
    full = 100 * size / total if total else 0
    return (
        f'<div class="pz-meter" data-total="{total}"><span>{name} <b>{amount(size)}</b> of '
        f'{amount(total)}</span><div class="pz-track"><div class="pz-full pz-f-{mark}" '
        f'style="width:{full:.4g}%"></div></div></div>'
    )


def _shares(counts: np.ndarray, at: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Of each column's steps, those not shown included, the share that a running count counts."""
    last, steps = counts[ends - 1], at[ends - 1] + 1
    return np.diff(last, prepend=0) / np.diff(steps, prepend=0)


def _row(shares: np.ndarray, columns: float, high: str, low: str) -> str:
    """One row of bars: full where all steps of a column move, low where none does."""
    gap = 0.12 if len(shares) <= 96 else 0.0
    heights = np.where(shares > 0, np.maximum(_HIGH * shares, 2.0), 0.0)
    cuts = np.arange(1, len(shares)) if gap else np.flatnonzero(np.diff(heights)) + 1
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(shares)]
    moved = still = ""
    for a, b in zip(starts, ends, strict=True):  # neighbours of one height are one bar
        x, w, h = a + gap / 2, min(b, columns) - a - gap, heights[a] or _LOW
        bar = f"M{n2(x)} {px(_HIGH - h)}h{n2(w)}v{px(h)}h-{n2(w)}z"
        if heights[a]:
            moved += bar
        elif low:
            still += bar
    quiet = f'<path class="pz-s-{low}" d="{still}"/>' if low else ""
    return (
        f'<svg viewBox="0 0 {n2(columns)} {_HIGH:g}" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="pz-s-{high}" d="{moved}"/>{quiet}</svg>'
    )


def n2(value: float) -> str:
    """A coordinate with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
