"""A scaffolded rung into which a test plants a fault."""

from __future__ import annotations

from collections.abc import Callable

from puzzles import Puzzle

FRONT = '"""Toy."""\nTITLE = "Toy"\nAFTER = ("basics",)\nRUNGS = ({})\nINTRO = "Toys."\n'
Rung = Callable[..., Puzzle]


def line(puzzle: Puzzle, needle: str) -> int:
    """The first line of the module that holds `needle`."""
    lines = puzzle.path.read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if needle in text)
