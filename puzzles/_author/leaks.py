"""Do a rung's own cells or hints show a line of its answer? Needs the author's extra."""

from __future__ import annotations

import keyword
import re

from nbformat import NotebookNode

from puzzles import _regions
from puzzles._author.cells import rung_cells
from puzzles._author.report import problem
from puzzles._author.repository import Repository
from puzzles._puzzle import Puzzle

# What, after a piece of code, makes it another piece of code: `return h` is not `return h, h`.
_GOES_ON = r"(?!\w|\.\w|\s*[-+*/%@&|^<>=(\[]|\s+(?:if|and|or|for|in|is|not)\b"


def leaks(puzzle: Puzzle) -> list[str]:
    """Lines of a puzzle's regions that its cells or hints give away, with place.

    A find-the-bug rung shows the lines that its bug leaves alone. Lines without a name of their
    own, such as `else:` or `])`, and those that only open a call or a list give nothing away.
    """
    nowhere = Repository("https://github.com/owner/name", "branch")
    cells = rung_cells(puzzle, 1, nowhere)
    meant = puzzle.starter_text if puzzle.starter else ""
    meant_lines = {" ".join(line.split()) for line in meant.splitlines()}
    found = []
    for line in _regions.region_lines(puzzle.text):
        secret = " ".join(line.split())
        if secret in meant_lines or not _says_something(secret):
            continue
        if showing := [cell for cell in cells if _shows(cell, secret)]:
            hint = showing[-1].id.endswith("-hints")  # which stand last
            place = puzzle.place("hints=" if hint else secret, author=False)
            where = "a hint" if hint else "a cell of this rung"
            found.append(problem(place, "leak", where=where, line=line))
    return found


def _shows(cell: NotebookNode, secret: str) -> bool:
    """Whether a line of a cell holds the code as a whole, not as a part of other code."""
    comma = "" if secret.endswith(",") else r"|\s*,\s*\S"  # after an argument, others may follow
    whole = re.compile(rf"(?<![\w.]){re.escape(secret.rstrip(','))}{_GOES_ON}{comma})")
    return any(whole.search(" ".join(line.split())) for line in cell.source.splitlines())


def _says_something(line: str) -> bool:
    names = [w for w in re.findall(r"[A-Za-z_]\w*", line) if not keyword.iskeyword(w) and w != "_"]
    return bool(names) and not re.fullmatch(r"\w+,?|.*[(\[{]", line)
