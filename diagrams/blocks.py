"""A map of the blocks of a score matrix: computed, masked inside, or skipped."""

from __future__ import annotations

import numpy as np

from puzzles import Launch
from puzzles import _draw as p

_SCALE = 0.42  # pixels per row or column of scores
_FINE = 16  # rows and columns of scores in one square of the mask


def block_map(launch: Launch, mask: np.ndarray, title: str, says: str) -> str:
    """An SVG file: which blocks of the (T, S) scores `launch` computes, over `mask`."""
    bq, bk = launch.inputs[0].sizes[0], launch.inputs[1].sizes[0]
    T, S = mask.shape
    done = sum(dot.executed for dot in launch.dots) > 0
    left, top, wide = 76.0, 66.0, S * _SCALE
    body = [p.text(20, 28, title, size=16, bold=True)]
    body.append(p.text(left, top - 10, "keys, in blocks of " + str(bk), size=11, muted=True))
    for step, (i, j) in enumerate(launch.program_ids[:, -2:]):
        x, y = left + j * bk * _SCALE, top + i * bq * _SCALE
        w, h = bk * _SCALE, bq * _SCALE
        body.append(p.cell(x, y, w, h, "resident" if done[step] else "skipped"))
        if not done[step]:
            continue
        hidden = []
        for r in range(i * bq, (i + 1) * bq, _FINE):
            for c in range(j * bk, (j + 1) * bk, _FINE):
                if not mask[r : r + _FINE, c : c + _FINE].any():
                    at = left + c * _SCALE, top + r * _SCALE
                    hidden.append(p.rect(*at, _FINE * _SCALE, _FINE * _SCALE))
        if hidden:
            colour = p.MARKS["masked"]["looks"]["fill"]
            body.append(f'<path d="{"".join(hidden)}" fill="{colour}" fill-opacity=".45"/>')
    for i in range(T // bq):
        y = top + (i + 0.5) * bq * _SCALE + 4
        body.append(p.text(left - 8, y, f"i = {i}", size=11, anchor="end"))
    lines = [
        f"{int(done.sum())} of {launch.steps} blocks are computed",
        f"(blocks of {bq} × {bk} scores);",
        "purple: masked inside them.",
        "The dashed ones are skipped.",
    ]
    x = left + wide + 24
    for n, line in enumerate(lines):
        body.append(p.text(x, top + 16 + 18 * n, line, size=12))
    width = x + max(p.text_width(line, 12) for line in lines) + 24
    return p.document(width, top + T * _SCALE + 24, "".join(body), title, says)
