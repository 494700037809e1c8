"""Words that a walk's text and its picture share."""

from __future__ import annotations

from typing import Any

import numpy as np

from puzzles._draw.data import Data

# What becomes of an operand's block at a step: in words, as a mark, as a letter.
STATES = {
    "fetched": ("fetched", "fetched", "F"),
    "refetched": ("fetched again", "fetched", "F"),
    "reused": ("reused", "reused", "="),
    "held": ("stays in VMEM", "held", ""),
    "written": ("written back", "written", "W"),
    "rewritten": ("written back again", "written", "W"),
    "outside": ("outside the array", "fault", "!"),
}


def program_ids(data: Data, step: int) -> tuple[int, ...]:
    """The program ids of a grid step, counted from 0."""
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
