"""Prefetched arrays as numbers, and which of them a step reads."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np

from puzzles._draw.data import Data, decode
from puzzles._draw.words import describe, still_words


def list_panel(data: Data, number: int) -> str:
    """A prefetched array: its numbers in rows that wrap, those of the opening step marked."""
    operand = data["operands"][number]
    shape, _ = describe(operand)
    used = entries(operand, data["open"])
    return (
        f'<div class="pz-list" data-list="{number}"><div class="pz-name"><b>'
        f'{html.escape(operand["name"])}</b> <span class="pz-what">{html.escape(shape)}; '
        f"{html.escape(still_words(operand))}</span></div>{_cells(operand, used)}"
        f'<div class="pz-read">{read_words(operand, used)}</div></div>'
    )


def entries(operand: Data, k: int) -> list[int]:
    """The elements of the flat array that a step reads."""
    return sorted({int(decode(one)[k]) for one in operand.get("used", ())} - {-1})


def read_words(operand: Data, used: list[int]) -> str:
    """Which entries a step reads, and what they are where the picture knows."""
    if "numbers" not in operand:
        return "its values are known only when it runs"
    found = []
    for flat in used:
        index = ", ".join(str(int(i)) for i in np.unravel_index(flat, operand["shape"] or (1,)))
        here = operand["numbers"][flat : flat + 1]  # empty beyond those that are printed
        found.append(f"[{index}]" + "".join(f" = {int(number)}" for number in here))
    return "reads " + ", ".join(found) if found else "not read"


def _cells(operand: Data, used: list[int]) -> str:
    if "numbers" not in operand:
        return ""
    numbers: list[Any] = [int(x) for x in operand["numbers"]]
    width = operand["shape"][-1] if len(operand["shape"]) > 1 else max(1, len(numbers))
    rows = [range(i, min(i + width, len(numbers))) for i in range(0, len(numbers), width)]
    drawn = "".join(
        '<div class="pz-cells">'
        + "".join(f"<i{' class=pz-used' * (n in used)}>{numbers[n]}</i>" for n in row)
        + "</div>"
        for row in rows
    )
    total = math.prod(operand["shape"])
    more = f'<div class="pz-what">the first {len(numbers)} of {total:,}</div>'
    return drawn + more * (len(numbers) < total)
