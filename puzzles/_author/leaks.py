"""Do a rung's own cells or hints show its answer, word for word or reworded?

Needs the author's extra.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator

from nbformat import NotebookNode

from puzzles import _regions
from puzzles._author.cells import plain, rung_cells
from puzzles._author.normal import leaves, normal, statements
from puzzles._author.repository import Repository
from puzzles._puzzle import Puzzle

# What, after a piece of code, makes it another piece of code: `return h` is not `return h, h`.
_GOES_ON = r"(?!\w|\.\w|\s*[-+*/%@&|^<>=(\[]|\s+(?:if|and|or|for|in|is|not)\b"
_CODE = re.compile(r"```[^\n]*\n(.*?)```|``(.+?)``|`([^`\n]+)`", re.DOTALL)


def leaks(puzzle: Puzzle) -> list[str]:
    """Lines and statements of a puzzle's regions that its cells or hints give away, with place.

    A find-the-bug rung shows the lines that its bug leaves alone. Lines without a name of their
    own, such as `else:` or `])`, and those that only open a call or a list give nothing away.
    """
    nowhere = Repository("https://github.com/owner/name", "branch")
    pages = {"a cell of this rung": rung_cells(puzzle, 1, nowhere)}
    pages["a hint"] = [cell for cell in pages["a cell of this rung"] if cell.id.endswith("-hints")]
    meant = puzzle.starter_text if puzzle.starter else ""
    meant_lines = {" ".join(line.split()) for line in meant.splitlines()}
    found = []
    for line in _regions.region_lines(puzzle.text):
        secret = " ".join(line.split())
        if secret in meant_lines or not _says_something(secret):
            continue
        showing = [where for where, cells in pages.items() if _shows(cells, secret)]
        if showing:  # hints are among the cells: the last of them is the more exact
            found.append(_leak(puzzle, showing[-1], f"a line of the solution, `{line}`", secret))
    if found:
        return found
    meant_forms = {normal(node) for node in leaves(meant)} if meant else set()
    forms = {where: set(_forms(cells)) for where, cells in pages.items()}
    for node in _answers(puzzle):
        showing = [where for where in pages if normal(node) in forms[where] - meant_forms]
        if showing:
            what = f"the solution's `{ast.unparse(node)}` in other words"
            found.append(_leak(puzzle, showing[-1], what, ""))
    return found


def _leak(puzzle: Puzzle, where: str, what: str, secret: str) -> str:
    needle = "hints=" if where == "a hint" else secret or f"## {puzzle.name}"
    place = puzzle.place(needle, author=False)
    return f"{place}: {where} contains {what}: say it in words, or hide less"


def _shows(cells: list[NotebookNode], secret: str) -> bool:
    """Whether a line of a cell holds the code as a whole, not as a part of other code."""
    comma = "" if secret.endswith(",") else r"|\s*,\s*\S"  # after an argument, others may follow
    whole = re.compile(rf"(?<![\w.]){re.escape(secret.rstrip(','))}{_GOES_ON}{comma})")
    lines = (" ".join(line.split()) for cell in cells for line in cell.source.splitlines())
    return any(whole.search(line) for line in lines)


def _answers(puzzle: Puzzle) -> Iterator[ast.stmt]:
    """The statements that lie in a region, and the arguments that lie there by themselves."""
    lines: set[int] = set()  # of statements before: what is in them is a part
    regions = _regions.regions(puzzle.text)
    for node in leaves(puzzle.text):
        last = node.end_lineno or node.lineno
        if node.lineno not in lines and any(
            r.first <= node.lineno <= last <= r.last for r in regions
        ):
            lines.update(range(node.lineno, last + 1))
            if _says_something(ast.unparse(node)):
                yield node


def _forms(cells: list[NotebookNode]) -> Iterator[str]:
    """The normal forms of all code that cells show: their own, and that in their prose."""
    for cell in cells:
        if cell.cell_type == "code":
            yield from map(normal, leaves(plain(cell.source)))
        else:
            for found in _CODE.finditer(cell.source):
                yield from map(normal, statements(next(filter(None, found.groups()), "")))


def _says_something(line: str) -> bool:
    names = [w for w in re.findall(r"[A-Za-z_]\w*", line) if not keyword.iskeyword(w) and w != "_"]
    return bool(names) and not re.fullmatch(r"\w+,?|.*[(\[{]", line)
