"""Prefetched arrays as numbers, and which of them a step reads."""

from __future__ import annotations

import html
import math
from typing import Any

import numpy as np

from puzzles._draw.assets import piece
from puzzles._draw.book import Book, each
from puzzles._draw.data import Data
from puzzles._draw.words import describe, still_words


def list_panel(data: Data, book: Book, operand: Data) -> str:
    """A prefetched array: its numbers in rows that wrap, those that a step reads marked."""
    shape, _ = describe(operand)
    used = entries(operand, data["kept"])
    name, what = html.escape(operand["name"]), html.escape(f"{shape}; {still_words(operand)}")
    read = book.element("div", each([read_words(operand, one) for one in used]), "pz-read")
    cells = _cells(book, operand, used)
    return piece("panel of a list", name=name, what=what, cells=cells, read=read)


def entries(operand: Data, kept: int) -> list[list[int]]:
    """The elements of the flat array that each step reads."""
    read = np.array(operand.get("used", ()), np.int64).reshape(-1, kept)
    return [sorted(set(column) - {-1}) for column in read.T.tolist()]


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


def _cells(book: Book, operand: Data, used: list[list[int]]) -> str:
    if "numbers" not in operand:
        return ""
    numbers: list[Any] = [int(x) for x in operand["numbers"]]
    width = operand["shape"][-1] if len(operand["shape"]) > 1 else max(1, len(numbers))
    rows = [range(i, min(i + width, len(numbers))) for i in range(0, len(numbers), width)]

    def marked(n: int) -> str:
        return book.attributes(class_=each(["pz-used" * (n in one) for one in used]))

    drawn = "".join(
        '<div class="pz-cells">'
        + "".join(f"<i {marked(n)}>{numbers[n]}</i>" for n in row)
        + "</div>"
        for row in rows
    )
    total = math.prod(operand["shape"])
    more = f'<div class="pz-what">the first {len(numbers)} of {total:,}</div>'
    return drawn + more * (len(numbers) < total)
