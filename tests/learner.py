"""A learner's notebook without Jupyter: cells that run one after another in a shared namespace."""

from __future__ import annotations

import itertools
import linecache
import textwrap
from typing import Any

import puzzles
from puzzles import Verdict, _regions

_numbers = itertools.count(1)


class Notebook:
    """Cells that share a namespace and are known to `linecache`, as in a notebook."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}

    def run(self, source: str) -> None:
        source = textwrap.dedent(source)
        name = f"<ipython-input-{next(_numbers)}-test>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        exec(compile(source, name, "exec"), self.names)

    def __getitem__(self, name: str) -> Any:
        return self.names[name]


def solved(puzzle: str) -> str:
    """The cells of a puzzle with the reference solution."""
    return _regions.without_marks(puzzles.find(puzzle).text)


def edited(puzzle: str, *edits: tuple[str, str]) -> Any:
    """The answer in a notebook, with edits of the solution's text."""
    text = solved(puzzle)
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    notebook = Notebook()
    notebook.run(text)
    return notebook[puzzle]


def judged(puzzle: str, *edits: tuple[str, str]) -> Verdict:
    """The verdict on that answer."""
    return puzzles.judge(puzzles.find(puzzle), edited(puzzle, *edits))
