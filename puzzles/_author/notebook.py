"""Build notebooks from ladders, for authors: needs jupytext and nbformat."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from puzzles._author import diagrams
from puzzles._author.cells import markdown, puzzle_cells, setup_cell
from puzzles._author.repository import ROOT, Repository, repository
from puzzles._author.shapes import with_shapes
from puzzles._ladders import ladder, ladder_module, on_main_road
from puzzles._rules import PAGE, RECORD, plural, rules_page, sentence

_MARK = r"(?<=<!-- {}: written by `python -m puzzles build` -->\n).*?(?=<!-- end)"
_TABLE, _COUNTS = (re.compile(_MARK.format(n), re.DOTALL) for n in ("ladders", "counts"))


def built(ladder_name: str, root: Path = ROOT, solved: bool = False) -> NotebookNode:
    """The notebook of a ladder: starters, checks and collapsed hints.

    solved: True for the reference solutions without hints; the ids of cells do not change.
    """
    module, where = ladder_module(ladder_name), repository(root)
    parts = getattr(module, "PARTS", {})
    cells = [
        markdown(f"{ladder_name}-title", _title(ladder_name, where)),
        markdown(f"{ladder_name}-intro", where.with_images(module.INTRO)),
        setup_cell(module, where),
    ]
    for number, puzzle in enumerate(ladder(ladder_name), 1):
        if puzzle.name in parts:
            part = where.with_images(parts[puzzle.name])
            cells.append(markdown(f"{puzzle.name}-part", part))
        own = puzzle_cells(puzzle, number, where, solved=solved)
        if not solved:
            with_shapes(puzzle, own)
        cells += own
    if outro := getattr(module, "OUTRO", ""):
        cells.append(markdown(f"{ladder_name}-outro", where.with_images(outro)))
    cells.append(new_code_cell(sentence("the_last_cell"), id=f"{ladder_name}-progress"))
    if first := next((puzzle for puzzle in ladder(ladder_name) if puzzle.kernel), None):
        words = "a_cell_to_examine_devices" if first.axes else "a_cell_to_examine"
        cells.append(new_code_cell(sentence(words, name=first.name), id=f"{ladder_name}-examine"))
    notebook = new_notebook(
        cells=cells,
        metadata={
            # Colab's default is a CPU, which is enough
            "colab": {"provenance": [], "toc_visible": True},
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        nbformat_minor=5,
    )
    nbformat.validate(notebook)
    return notebook


def _title(ladder_name: str, where: Repository) -> str:
    module = ladder_module(ladder_name)
    title = f"# {module.TITLE}\n\n{where.badge(ladder_name)}"
    if road := on_main_road(module.PUZZLES):
        counts = dict(road=len(road), all=plural(len(module.PUZZLES), "puzzle"))
        title += f"\n\n{sentence('main_road', **counts)}"
    return title


def dumps(notebook: NotebookNode) -> str:
    """The notebook as text; equal notebooks give equal bytes."""
    return nbformat.writes(notebook, version=nbformat.NO_CONVERT).rstrip("\n") + "\n"


def generated(root: Path, names: Sequence[str]) -> dict[str, str]:
    """The text of every generated file of the project at `root`, by name.

    names: its ladders. A README without marks and a missing page of rules are left alone.
    """
    files = diagrams.drawn(root)
    files |= {f"{name}.ipynb": dumps(built(name, root)) for name in names}
    readme = _read(root / "README.md") or ""
    if _TABLE.search(readme):
        readme = _TABLE.sub(lambda _: _table(names, repository(root)), readme, count=1)
        files["README.md"] = _COUNTS.sub(lambda _: _counts(names), readme, count=1)
    if (root / PAGE).exists():
        puzzles = [
            (name, puzzle) for name in sorted(names) for puzzle in ladder_module(name).PUZZLES
        ]
        record = [root / RECORD / name / f"{puzzle}.txt" for name, puzzle in puzzles]
        files[PAGE] = rules_page(path for path in record if path.exists())
    return files


def _table(names: Sequence[str], where: Repository) -> str:
    """The README's table of ladders; without the columns that no ladder declares."""
    modules = [ladder_module(name) for name in names]
    declared = [
        (title, name)
        for title, name in (("At the top", "SUMMIT"), ("Hours", "HOURS"))
        if any(hasattr(module, name) for module in modules)
    ]
    heads = ["Ladder", "Puzzles", *(title for title, _ in declared), ""]
    rows = [f"| {' | '.join(heads)}|", "|" + "---|" * len(heads)]
    for name, module in zip(names, modules, strict=True):
        picture = getattr(module, "PICTURE", "")
        shown = f'<br><img src="{picture}" width="240" alt="{module.TITLE}">' * bool(picture)
        more = (getattr(module, attribute, "") for _, attribute in declared)
        cells = f"**{module.TITLE}**{shown}", len(module.PUZZLES), *more, where.badge(name)
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*rows, ""])


def _counts(names: Sequence[str]) -> str:
    """The README's sentence with the numbers of ladders, puzzles and answers."""
    puzzles = [puzzle for name in names for puzzle in ladder(name)]
    mistakes = sum(len(puzzle.mistakes) for puzzle in puzzles)
    rights = sum(len(puzzle.alternatives) for puzzle in puzzles)
    counts = [plural(len(names), "ladder"), plural(len(puzzles), "puzzle")]
    if road := on_main_road([puzzle.name for puzzle in puzzles]):
        counts[-1] += f" ({len(road)} of them on the main road, which ★ marks)"
    return (
        f"{', '.join(counts)}, {mistakes:,} known mistakes that the checker recognises, and "
        f"{rights:,} other correct solutions that it accepts.\n"
    )


def out_of_date(root: Path, names: Sequence[str]) -> dict[str, str]:
    """The new text of each generated file that is missing or does not match the modules."""
    files = generated(root, names)
    return {name: text for name, text in files.items() if _read(root / name) != text}


def _read(path: Path) -> str | None:
    return path.read_bytes().decode("utf-8") if path.exists() else None


def write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write files into a folder, and create it if necessary."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode("utf-8"))
    return [folder / name for name in files]
