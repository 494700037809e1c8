"""The seed of the fresh case: whoever learns the listed cases by heart meets another one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from puzzles._judge import source
from puzzles._puzzle import Puzzle

_SEEDS = 1_000_000  # few digits to type


def own_seed(puzzle: Puzzle, fn: Callable) -> int:
    """The seed that belongs to the text of `fn` and of the puzzle: any edit draws another one.

    0 where the text of `fn` cannot be had.
    """
    text = source.text_of(fn)
    if text is None:
        return 0
    both = f"{text}\n{puzzle.path.read_text(encoding='utf-8')}"
    return int(hashlib.sha256(both.encode()).hexdigest(), 16) % _SEEDS
