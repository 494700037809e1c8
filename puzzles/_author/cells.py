"""A puzzle's module as the cells of a notebook, for authors: needs jupytext and nbformat."""

from __future__ import annotations

import inspect
import keyword
import re
import symtable
from collections.abc import Iterator
from types import ModuleType

import jupytext
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from puzzles import _regions
from puzzles._author.report import problem
from puzzles._author.repository import BuildError, Repository, at_line, setup_source
from puzzles._ladders import numbered_heading
from puzzles._puzzle import Puzzle


def setup_cell(ladder: ModuleType, where: Repository) -> NotebookNode:
    """The cell that installs missing packages and imports the names that all puzzles use."""
    needed = dict.fromkeys((ladder.__name__.partition(".")[0], "puzzles", "jaxtyping"))
    installed = " and ".join(f'find_spec("{name}")' for name in needed)
    own = setup_source(ladder.__name__, where.install, installed)
    name = ladder.__name__.rpartition(".")[2]
    return new_code_cell(f'{own}\n\npuzzles.welcome("{name}")', id="setup")


def markdown(name: str, source: str) -> NotebookNode:
    """A Markdown cell with `name` as its id."""
    return new_markdown_cell(source.strip(), id=name)


def puzzle_cells(
    puzzle: Puzzle, number: int, where: Repository, *, solved: bool = False
) -> list[NotebookNode]:
    """The cells of a puzzle, numbered; BuildError names the module and its fault."""
    try:
        text = _regions.without_marks(puzzle.text) if solved else puzzle.starter_text
    except _regions.RegionError as error:
        raise BuildError(f"{at_line(puzzle.file, error)}") from None
    _, header = _regions.split_cells(text)[0]
    _check_names(puzzle, header)
    cells = _parse(text.removeprefix(header))
    for position, cell in enumerate(cells, 1):
        cell["id"] = f"{puzzle.name}-{position}"
        if cell.cell_type == "markdown":
            cell.source = where.with_images(cell.source)
    _number_heading(puzzle, cells, number)
    _append_check(puzzle, cells)
    if not solved:
        cells.append(markdown(f"{puzzle.name}-hints", _hints(puzzle)))
    return cells


def _parse(text: str) -> list[NotebookNode]:
    """Percent-format text as cells.

    A cell marked `# %% active="ipynb"` is commented out in the module and runs only in notebooks.
    """
    cells = []
    for cell in jupytext.reads(text, fmt="py:percent").cells:
        # jupytext's metadata: the formats in which a cell is active, and the blank lines around it
        own = [key for key in cell.metadata if key == "active" or key.startswith("lines_to_")]
        metadata = {key: value for key, value in cell.metadata.items() if key not in own}
        new = new_code_cell if cell.cell_type == "code" else new_markdown_cell
        cells.append(new(cell.source.strip("\n"), metadata=metadata))
    return cells


def _number_heading(puzzle: Puzzle, cells: list[NotebookNode], number: int) -> None:
    heading = f"## {puzzle.name}: "
    if not cells or not cells[0].source.startswith(heading):
        place = puzzle.place("# %%", author=False)
        raise BuildError(problem(place, "no_heading", heading=heading))
    first, *rest = cells[0].source.split("\n")
    first = numbered_heading(number, first.removeprefix("## "), puzzle.name)
    cells[0].source = "\n".join([f"## {first}", *rest])


def _append_check(puzzle: Puzzle, cells: list[NotebookNode]) -> None:
    """Append `check(...)` to the last cell with a gap or with the puzzle's function."""
    needed = {*puzzle.blanks, puzzle.name}
    code = [cell for cell in cells if cell.cell_type == "code"]
    try:
        holders = [cell for cell in code if needed & {*_regions.functions(plain(cell.source))}]
    except SyntaxError as error:  # only notebooks run this cell
        place = puzzle.place((error.text or "").strip(), author=False)
        raise BuildError(problem(place, "cell_does_not_parse", error=error.msg)) from None
    holders[-1].source += f"\n\ncheck({puzzle.name})"


def _hints(puzzle: Puzzle) -> str:
    """A cell of collapsed hints; Markdown inside <details> needs the blank lines."""
    return "\n\n".join(
        f"<details>\n<summary>Hint {number}</summary>\n\n{inspect.cleandoc(hint)}\n\n</details>"
        for number, hint in enumerate(puzzle.hints, 1)
    )


def plain(source: str) -> str:
    """A cell that Python can parse: without IPython's `%magic` and `!shell` lines."""
    return re.sub(r"(?m)^( *)[%!].*$", r"\1pass", source)


def _check_names(puzzle: Puzzle, header: str) -> None:
    """Raise BuildError for a name that is bound only in lines that do not reach a notebook."""
    setup = plain(setup_source(puzzle.module.rpartition(".")[0]))
    there = _bound(f"{setup}\n{puzzle.text.removeprefix(header)}")
    if lacking := sorted(_bound(header) - there):
        place = puzzle.place(lacking[0], author=False)
        raise BuildError(problem(place, "undefined", names=", ".join(lacking)))


def _bound(source: str) -> set[str]:
    """Names that the top level of `source` imports or assigns."""
    symbols = symtable.symtable(source, "<cells>", "exec").get_symbols()
    return {s.get_name() for s in symbols if s.is_imported() or s.is_assigned()}


def leaks(puzzle: Puzzle) -> Iterator[str]:
    """Yield a problem for each line of a region that the puzzle's cells or hints give away.

    A find-the-bug puzzle may show the lines that its bug does not change. A line without a name,
    such as `else:` or `])`, or a line that only opens a call or a list, gives nothing away.
    """
    if "\nPUZZLE = " in puzzle.text:
        yield problem(puzzle.place("PUZZLE = ", author=False), "author_cell_shown")
    cells = puzzle_cells(puzzle, 1, Repository("https://github.com/owner/name", "branch"))
    meant = puzzle.starter_text if puzzle.starter else ""
    meant_lines = {" ".join(line.split()) for line in meant.splitlines()}
    for line in _regions.region_lines(puzzle.text):
        secret = " ".join(line.split())
        if secret in meant_lines or not _says_something(secret):
            continue
        if showing := [cell for cell in cells if _shows(cell, secret)]:
            hint = showing[-1].id.endswith("-hints")  # the last cell
            place = puzzle.place("hints=" if hint else secret, author=False)
            where = "a hint" if hint else "a cell of this puzzle"
            yield problem(place, "leak", where=where, line=line)


def _shows(cell: NotebookNode, secret: str) -> bool:
    """True if a line of a cell holds `secret`, not as a part of a longer name."""
    whole = re.compile(rf"(?<![\w.]){re.escape(secret.rstrip(','))}(?!\.?\w)")
    return any(whole.search(" ".join(line.split())) for line in cell.source.splitlines())


def _says_something(line: str) -> bool:
    names = [w for w in re.findall(r"[A-Za-z_]\w*", line) if not keyword.iskeyword(w) and w != "_"]
    return bool(names) and not re.fullmatch(r"\w+,?|.*[(\[{]", line)
