"""The map of a grid's iterations: one cell for each pair of blocks that a step brings together.

For attention the rows are blocks of queries and the columns blocks of keys: the picture of a mask,
with the path that the grid takes through it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from puzzles._draw.data import Data
from puzzles._draw.frames import Frames, each, piece
from puzzles._draw.palette import px, rect

_CELL, _LONGEST = 20.0, 40  # pixels of a cell, and cells of an axis at most


def product_of(data: Data) -> tuple[Data, Data] | None:
    """The factors of a launch that is a matmul, left and right; None if it is another launch.

    At each step the left factor's rows are those of the output's block, the right factor's columns
    are, and the factors' blocks meet at the same index.
    """
    results = [o for o in data["operands"] if o["role"] == "output" and "count" in o]
    factors = [o for o in data["operands"] if o["role"] == "input" and _is_matrix(o)]
    if not data["unit"] or len(results) != 1 or not _is_matrix(results[0]):
        return None
    (result,) = (np.array(results[0]["blocks"]),)
    for left in factors:
        for right in factors:
            a, b = np.array(left["blocks"]), np.array(right["blocks"])
            meets = (a[:, 1] == b[:, 0]).all() and left["shape"][1] == right["shape"][0]
            if meets and (a[:, 0] == result[:, 0]).all() and (b[:, 1] == result[:, 1]).all():
                return left, right
    return None


def _is_matrix(operand: Data) -> bool:
    return "count" in operand and len(operand["shape"]) == 2 and operand["tiled"]


def map_of(data: Data, frames: Frames) -> str:
    """The map as HTML; "" if no two operands span the steps, or if their blocks are too many."""
    axes = _axes(data)
    if axes is None:
        return ""
    (rows, row), (columns, column), head = axes
    size = int(column.max()) + 1, int(row.max()) + 1
    works = np.array(data["work"]) > 0
    visited = {
        key: [n for n in range(data["kept"]) if head[n] == key] for key in dict.fromkeys(head)
    }
    static = {key: _layers(steps, row, column, works) for key, steps in visited.items()}
    pages = [static[key] for key in head]
    here = [
        rect(_CELL * c + 1, _CELL * r + 1, _CELL - 2, _CELL - 2)
        for r, c in zip(row, column, strict=True)
    ]
    layers = [
        ("pz-off", each([page[0] for page in pages])),
        ("pz-on", each([page[1] for page in pages])),
        ("pz-path", each([page[2] for page in pages])),
        ("pz-at", each(here)),
    ]
    lines = "".join(
        [f"M{px(_CELL * n)} 0V{px(_CELL * size[1])}" for n in range(size[0] + 1)]
        + [f"M0 {px(_CELL * n)}H{px(_CELL * size[0])}" for n in range(size[1] + 1)]
    )
    drawn = f'<path class="pz-cell" d="{lines}"/>'
    drawn += "".join(f'<path class="{name}" {frames.attributes(d=d)}/>' for name, d in layers)
    return piece(
        "map of iterations",
        rows=rows,
        columns=columns,
        row=frames.element("span", each(map(str, row.tolist()))),
        column=frames.element("span", each(map(str, column.tolist()))),
        width=_CELL * size[0] + 1,
        height=_CELL * size[1] + 1,
        picture=drawn,
    )


def _layers(steps: list[int], row: Any, column: Any, works: Any) -> tuple[str, str, str]:
    """Cells whose step does no work, cells whose step computes, and the path through them."""

    def cells(computing: bool) -> str:
        drawn = {(row[n], column[n]): None for n in steps if works[n] == computing}
        return "".join(rect(_CELL * c + 3, _CELL * r + 3, _CELL - 6, _CELL - 6) for r, c in drawn)

    middle = [(_CELL * (column[n] + 0.5), _CELL * (row[n] + 0.5)) for n in steps]
    path = "".join(f"{'L' if k else 'M'}{px(x)} {px(y)}" for k, (x, y) in enumerate(middle))
    return cells(False), cells(True), path


def _axes(data: Data) -> tuple[tuple[str, Any], tuple[str, Any], list[tuple]] | None:
    """(name, block index at each step) of rows and of columns, and the head of each step.

    Rows are blocks of the output. Columns are blocks of an input that move while the output stays.
    A launch in which one input's blocks show both needs no map.
    """
    moving = [o for o in data["operands"] if "count" in o]
    results = [o for o in moving if o["role"] == "output"]
    if data["kept"] < data["steps"] or not results or len(results[0]["shape"]) < 2:
        return None
    blocks = np.array(results[0]["blocks"])
    row, head = blocks[:, -2], [tuple(key) for key in blocks[:, :-2].tolist()]
    stays = (blocks[1:] == blocks[:-1]).all(axis=1)
    for operand in moving:
        if operand["role"] != "input" or len(operand["shape"]) < 2:
            continue
        index = np.array(operand["blocks"])
        column = index[:, -2]
        moves = (column[1:] != column[:-1]) & stays
        both = any(
            {*zip(row.tolist(), column.tolist(), strict=True)} <= _pairs(rival, row, column)
            for rival in moving
            if rival is not operand
        )
        large = max(row.max(), column.max()) >= _LONGEST or min(row.min(), column.min()) < 0
        if moves.any() and row.max() > 0 and not large and not both:
            return (results[0]["name"], row), (operand["name"], column), head
    return None


def _pairs(operand: Data, row: Any, column: Any) -> set[tuple[int, int]]:
    """The pairs of `row` and `column` that an operand's own blocks show on its two last axes."""
    if len(operand["shape"]) < 2:
        return set()
    own = np.array(operand["blocks"])[:, -2:]
    same = (own[:, 0] == row) & (own[:, 1] == column)
    return {*zip(row[same].tolist(), column[same].tolist(), strict=True)}
