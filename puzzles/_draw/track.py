"""One operand of a walk: what it holds and does at each step that is shown."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from puzzles._draw.data import Data

WORDS = {
    "fetched": "fetched",
    "refetched": "fetched again",
    "reused": "reused",
    "held": "stays in VMEM",
    "written": "written back",
    "rewritten": "written back again",
    "outside": "outside the array",
}


class Track:
    """Positions count the steps that are shown, from 0; `k` is one of them."""

    def __init__(self, operand: Data, at: np.ndarray) -> None:
        self.operand, self.at = operand, at
        self.output = operand["role"] == "output"
        shape = len(at), len(operand["shape"])
        self.blocks = np.array(operand["blocks"], np.int64).reshape(shape)
        self.count, self.moved = np.array(operand["count"]), np.array(operand["moved"])
        self.moves = np.array(operand["moves"], bool)

    def block(self, k: int) -> tuple[int, ...]:
        """The block that step holds."""
        return tuple(int(i) for i in self.blocks[k])

    def spans(self, block: tuple[int, ...]) -> list[tuple[int, int]]:
        """First and last + 1 element of a block along every axis, edges not clipped."""
        o = self.operand
        starts = [i * s - low for i, s, low in zip(block, o["stride"], o["low"], strict=True)]
        return [(a, a + size) for a, size in zip(starts, o["sizes"], strict=True)]

    def outside(self, block: tuple[int, ...]) -> bool:
        """True if a block starts outside the array, its padding included."""
        whole = zip(self.spans(block), self.operand["shape"], self.operand["low"], strict=True)
        return any(a < -low or a >= size for (a, _), size, low in whole)

    def state(self, k: int) -> str:
        """A key of WORDS."""
        if self.outside(self.block(k)):
            return "outside"
        if not self.moves[k]:
            return "held" if self.output else "reused"
        again = "re" * self.moved_before(k)
        return f"{again}{'written' if self.output else 'fetched'}"

    def moved_before(self, k: int) -> bool:
        """True if an earlier step has moved the same block."""
        return self._first_move[self.block(k)] < k

    @cached_property
    def _first_move(self) -> dict[tuple[int, ...], int]:
        found: dict[tuple[int, ...], int] = {}
        for k in np.flatnonzero(self.moves):
            found.setdefault(self.block(int(k)), int(k))
        return found


def tracks(data: Data) -> list[Track | None]:
    """One track for each operand that moves in blocks, None for the others."""
    at = np.array(data["at"])
    return [Track(o, at) if "count" in o else None for o in data["operands"]]


def program_ids(data: Data, k: int) -> tuple[int, ...]:
    """The program ids of a step that is shown."""
    step = data["at"][k]
    return tuple(int(i) for i in np.unravel_index(step, data["grid"])) if data["grid"] else ()


def plural(count: int, noun: str) -> str:
    """A count and its noun: "1 step", "6 steps", "3 fetches"."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith('ch') else 's'}"


def tuple_words(values: Any) -> str:
    """A shape or an index as Python writes it, None where an axis is squeezed."""
    entries = ", ".join(str(v) for v in values)
    return f"({entries},)" if len(values) == 1 else f"({entries})"
