"""A mask as a table of blocks, the table as a shrunk grid, and as a flat list of tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from puzzles import _draw as p

_CELL = 34.0
_KINDS = ("skipped", "masked", "resident")  # 0, 1, 2


def classified(mask: np.ndarray, bq: int, bk: int, answer: tuple, title: str, says: str) -> str:
    """An SVG file: the mask element by element, its table of kinds, and the stored patterns."""
    kinds, index, patterns = answer
    (rows, cols), top = kinds.shape, 78.0
    unit = _CELL / max(bq, bk)
    h, w = bq * unit, bk * unit
    body = [p.text(20, 28, title, size=16, bold=True)]
    x = 20.0
    body += _caption(x, top, f"mask {mask.shape[0]} × {mask.shape[1]}", "dark: counts")
    body.append(_pixels(mask, x, top, unit))
    body.append(_grid(x, top, rows, cols, h, w))
    x += cols * w + 60
    body += _caption(x, top, "block_mask", "0 skip, 1 partial, 2 full")
    for i, j in np.ndindex(rows, cols):
        at = x + j * w, top + i * h
        body.append(p.cell(*at, w, h, _KINDS[kinds[i, j]]))
        words = str(kinds[i, j])
        body.append(p.text(at[0] + w / 2, at[1] + h / 2 + 4, words, size=12, anchor="middle"))
    x += cols * w + 60
    body += _caption(x, top, "mask_index", "where partial")
    for i, j in np.ndindex(rows, cols):
        at = x + j * w, top + i * h
        partial = kinds[i, j] == 1
        body.append(p.cell(*at, w, h, "masked" if partial else "skipped"))
        words = str(index[i, j]) if partial else "-"
        body.append(p.text(at[0] + w / 2, at[1] + h / 2 + 4, words, size=12, anchor="middle"))
    x += cols * w + 60
    body += _caption(x, top, "partial_masks", "each pattern once")
    for number, pattern in enumerate(patterns):
        y = top + number * (h + 14)
        body.append(_pixels(pattern, x, y, unit))
        body.append(_grid(x, y, 1, 1, h, w))
        body.append(p.text(x + w + 10, y + h / 2 + 4, str(number), size=12))
    bottom = top + max(rows * h, len(patterns) * (h + 14)) + 20
    return p.document(x + 110, bottom, "".join(body), title, says)


def walks(kinds: np.ndarray, tiles: Sequence[np.ndarray], title: str, says: str) -> str:
    """An SVG file: a table of kinds, its rows padded to the widest, and the list of its tiles."""
    (rows, cols), top = kinds.shape, 78.0
    body = [p.text(20, 28, title, size=16, bold=True)]
    x = 20.0
    body += _caption(x, top, f"dense grid: {kinds.size} steps", "a step for every block")
    body += _table(x, top, kinds, lambda i, j: _KINDS[kinds[i, j]])
    x += cols * _CELL + 64
    wide = int((kinds > 0).sum(axis=1).max())
    body += _caption(x, top, f"shrunk grid: {rows * wide} steps", "rows padded to the widest")
    shrunk = [[k for k in row if k] for row in kinds]
    for i, row in enumerate(shrunk):
        for j in range(wide):
            mark = _KINDS[row[j]] if j < len(row) else "untouched"
            body.append(p.cell(x + j * _CELL, top + i * _CELL, _CELL, _CELL, mark))
    x += wide * _CELL + 64
    body += _caption(x, top, f"flat list: {len(tiles[0])} steps", "no padding")
    row_list, col_list, _, flags = tiles
    for n, (row, col, flag) in enumerate(zip(row_list, col_list, flags, strict=True)):
        at = x + n * _CELL, top
        body.append(p.cell(*at, _CELL, _CELL, _KINDS[flag & 3]))
        middle = at[0] + _CELL / 2
        words = ["dead" if flag & 3 == 0 else "", f"{row},{col}", "first" * bool(flag & 4)]
        words.append("last" * bool(flag & 8))
        body.append(p.text(middle, top + _CELL / 2 + 4, words[0], size=11, anchor="middle"))
        for line, word in enumerate(words[1:]):
            below = top + _CELL + 15 + 14 * line
            body.append(p.text(middle, below, word, size=11, anchor="middle", muted=line > 0))
    right = x + len(row_list) * _CELL + 20
    under = top + rows * _CELL + 20
    named = (
        ("resident", "full"),
        ("masked", "partial"),
        ("skipped", "nothing to compute"),
        ("untouched", "padding: a step that does nothing"),
    )
    left = 20.0
    for mark, words in named:
        body.append(p.cell(left, under, 14, 14, mark))
        body.append(p.text(left + 20, under + 11, words, size=11))
        left += 38 + p.text_width(words, 11)
    return p.document(right, under + 34, "".join(body), title, says)


def _caption(x: float, top: float, name: str, what: str) -> list[str]:
    return [
        p.text(x, top - 24, name, size=12, bold=True),
        p.text(x, top - 9, what, size=11, muted=True),
    ]


def _table(x: float, y: float, kinds: np.ndarray, mark: Callable[[int, int], str]) -> list[str]:
    return [
        p.cell(x + j * _CELL, y + i * _CELL, _CELL, _CELL, mark(i, j))
        for i, j in np.ndindex(kinds.shape)
    ]


def _pixels(mask: np.ndarray, x: float, y: float, unit: float) -> str:
    """The elements that count, as runs along each row."""
    path = []
    for i, row in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(int), [0]])))
        for start, end in edges.reshape(-1, 2):
            path.append(p.rect(x + start * unit, y + i * unit, (end - start) * unit, unit))
    return f'<path d="{"".join(path)}" fill="{p.INK}" fill-opacity=".6"/>'


def _grid(x: float, y: float, rows: int, cols: int, h: float, w: float) -> str:
    lines = p.rect(x, y, cols * w, rows * h)
    lines += "".join(f"M{p.px(x + c * w)} {p.px(y)}v{p.px(rows * h)}" for c in range(1, cols))
    lines += "".join(f"M{p.px(x)} {p.px(y + r * h)}h{p.px(cols * w)}" for r in range(1, rows))
    return f'<path d="{lines}" fill="none" stroke="{p.INK}" stroke-opacity=".7"/>'
