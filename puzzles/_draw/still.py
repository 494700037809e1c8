"""One step of a walk as pictures that need no page around them: for diagrams."""

from __future__ import annotations

from dataclasses import dataclass

from puzzles._draw.assets import marks_in
from puzzles._draw.book import Book
from puzzles._draw.data import Data
from puzzles._draw.operand import picture, still_box
from puzzles._draw.panel import EDGE, Box, place, views


@dataclass(frozen=True)
class Still:
    """An operand at one step: its picture, and where in it the block lies that the step holds."""

    operand: Data
    width: float
    height: float
    drawn: str
    block: Box

    @property
    def marks(self) -> set[str]:
        """The marks that are in the picture."""
        return marks_in(self.drawn)


def stills(data: Data, step: int, size: float) -> list[Still]:
    """What moves in blocks, and scratch that sums, at a step that is counted from 0.

    size: how large, beside a walk's.
    """
    found = []
    book = Book("grid step", data["kept"], step, turned=False)
    for operand, view in zip(data["operands"], views(data, size), strict=True):
        if "count" in operand and view is not None:
            block = place(view, operand, operand["blocks"][step])
            drawn = picture(data, book, operand, view)
        elif view is not None and "filled" in operand:
            block = (1.0, 1.0, view["w"], view["h"])
            drawn = (
                f'<g transform="translate(0 {EDGE - 1})">{still_box(data, book, operand, view)}</g>'
            )
        else:
            continue
        found.append(Still(operand, view["width"], view["height"], drawn, block))
    return found
