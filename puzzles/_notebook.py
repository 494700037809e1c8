"""Ladders to notebooks, for authors: needs jupytext and nbformat."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from puzzles import _regions
from puzzles._cells import markdown, rung_cells, setup_cell
from puzzles._puzzle import Puzzle, ladder, ladder_module, ladders
from puzzles._repository import ROOT, BuildError, Repository, repository

CLOSING = """\
# The end of this ladder. Whatever is still open is worth coming back to.
progress()"""

_TABLE = "<!-- ladders: written by `python -m puzzles build` -->\n"
_README = re.compile(f"(?<={_TABLE}).*?(?=<!-- end)", re.DOTALL)


def learner_notebook(ladder_name: str, root: Path = ROOT) -> NotebookNode:
    """A ladder as a learner gets it: starters, checks and collapsed hints."""
    return _notebook(ladder_name, repository(root), solved=False)


def solved_notebook(ladder_name: str, root: Path = ROOT) -> NotebookNode:
    """A ladder with the reference solutions in place, no hints, and the same cell ids."""
    return _notebook(ladder_name, repository(root), solved=True)


def _notebook(ladder_name: str, where: Repository, solved: bool) -> NotebookNode:
    module = ladder_module(ladder_name)
    for needed in ("TITLE", "INTRO"):
        if not hasattr(module, needed):
            raise BuildError(f"puzzles/{ladder_name}/__init__.py: a ladder needs {needed}")
    parts = getattr(module, "PARTS", {})
    cells = [
        markdown(f"{ladder_name}-title", f"# {module.TITLE}\n\n{where.badge(ladder_name)}"),
        markdown(f"{ladder_name}-intro", where.with_images(module.INTRO)),
        setup_cell(where),
    ]
    for number, puzzle in enumerate(ladder(ladder_name), 1):
        if puzzle.name in parts:
            part = where.with_images(parts[puzzle.name])
            cells.append(markdown(f"{puzzle.name}-part", part))
        cells += rung_cells(puzzle, number, where, solved=solved)
    if module.RUNGS:
        cells.append(new_code_cell(CLOSING, id=f"{ladder_name}-progress"))
    notebook = new_notebook(
        cells=cells,
        metadata={
            # no accelerator: Colab's default is a CPU, and that is enough
            "colab": {"provenance": [], "toc_visible": True},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        nbformat_minor=5,
    )
    nbformat.validate(notebook)
    return notebook


def leaks(puzzle: Puzzle) -> list[str]:
    """Lines of a puzzle's regions that its own cells, or its hints, give away.

    A find-the-bug rung shows the lines that its bug leaves alone. Lines without a name of their
    own, such as `else:` or `])`, and those that only open a call or a list give nothing away.
    """
    cells = rung_cells(puzzle, 1, repository())
    on_page = [" ".join(line.split()) for cell in cells for line in cell.source.splitlines()]
    starter = puzzle.starter_text if puzzle.starter else ""
    meant = {" ".join(line.split()) for line in starter.splitlines()}
    found = []
    for line in _regions.region_lines(puzzle.text):
        secret = " ".join(line.split())
        if secret in meant or not _says_something(secret):
            continue
        if any(secret.rstrip(",") in shown for shown in on_page):
            found.append(line)
    return found


def _says_something(line: str) -> bool:
    names = [w for w in re.findall(r"[A-Za-z_]\w*", line) if not keyword.iskeyword(w) and w != "_"]
    return bool(names) and not re.fullmatch(r"\w+,?|.*[(\[{]", line)


def dumps(notebook: NotebookNode) -> str:
    """The notebook as text; the same bytes for the same notebook."""
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT).rstrip("\n") + "\n"


def generated(root: Path = ROOT) -> dict[str, str]:
    """Every generated file of the repository and what it must hold, by name."""
    files = {f"{name}.ipynb": dumps(learner_notebook(name, root)) for name in ladders()}
    files["README.md"] = _readme((root / "README.md").read_text(encoding="utf-8"), repository(root))
    return files


def _readme(text: str, where: Repository) -> str:
    """The README with its table of ladders renewed."""
    rows = ["| Ladder | Puzzles | |", "|---|---|---|"]
    for name in ladders():
        module = ladder_module(name)
        count = len(module.RUNGS) or "being written"
        rows.append(f"| **{module.TITLE}** | {count} | {where.badge(name)} |")
    table = "\n".join(rows)
    renewed, times = _README.subn(lambda _: f"{table}\n", text)
    if times != 1:
        raise BuildError(
            f"README.md needs one table of ladders, between {_TABLE.strip()!r} and '<!-- end -->'"
        )
    return renewed


def out_of_date(root: Path = ROOT) -> list[str]:
    """Names of the generated files that are missing or do not match the modules."""
    return [name for name, text in generated(root).items() if _read(root / name) != text]


def _read(path: Path) -> str | None:
    return path.read_bytes().decode("utf-8") if path.exists() else None


def write(root: Path = ROOT) -> list[Path]:
    """Write every generated file; returns those that changed."""
    changed = []
    for name, text in generated(root).items():
        if _read(root / name) != text:
            (root / name).write_bytes(text.encode("utf-8"))
            changed.append(root / name)
    return changed


def write_solved(folder: Path, root: Path = ROOT) -> list[Path]:
    """Write the solved notebook of every ladder into `folder`, which may be new."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in ladders():
        paths.append(folder / f"{name}.ipynb")
        paths[-1].write_bytes(dumps(solved_notebook(name, root)).encode("utf-8"))
    return paths
