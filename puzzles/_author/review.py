"""Checks of a puzzle's text, and of the files of a ladder and a project."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from puzzles import _regions
from puzzles._author.report import problem
from puzzles._author.repository import BuildError
from puzzles._ladders import folder_of, front_page, ladder_module, ladders
from puzzles._puzzle import Puzzle
from puzzles._rules import plural

UNDONE = "✎"  # marks a scaffold's comments: instructions to follow and delete
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]*)\)")


def text_problems(puzzle: Puzzle) -> Iterator[str]:
    """Yield everything that is missing in a puzzle's module, with its place and remedy."""
    for noun, items, least, place in (
        ("hint", puzzle.hints, 3, puzzle.place("hints=")),
        ("mistake", puzzle.mistakes, 3, f"{puzzle.record_file}:1"),
        # Without alternatives, nobody would notice an audit that is too strict.
        ("alternative", puzzle.alternatives, 2, f"{puzzle.record_file}:1"),
    ):
        if len(items) < least:
            count = plural(len(items), noun)
            yield problem(place, "few", count=count, least=least)
    if not puzzle.explain.strip():
        yield problem(puzzle.place("explain="), "no_explanation")
    for dims in puzzle.cases:
        sizes = [v for v in dims.values() if isinstance(v, int)]
        if len(sizes) > 1 and len(set(sizes)) == 1:
            yield problem(puzzle.place("cases="), "equal_dims", dims=dict(dims))
    if puzzle.path.stem != puzzle.name:
        place = puzzle.place(f"def {puzzle.name}(", author=False)
        yield problem(place, "another_name", name=puzzle.name)
    yield from _pictures(puzzle)


def _pictures(puzzle: Puzzle) -> Iterator[str]:
    text = prose(puzzle.text)
    images = _IMAGE.findall(text)
    if puzzle.kernel and puzzle.picture and not images and "```text" not in text:
        yield problem(puzzle.place("# %% [markdown]", author=False), "no_picture")
    project = puzzle.path.parents[puzzle.module.count(".")]
    for source in images:
        if not source.startswith("http") and not (project / source).exists():
            yield problem(puzzle.place(source, author=False), "no_image", source=source)


def undone(path: Path, shown: str) -> list[str]:
    """The scaffold's instructions that are left in a file, with their places.

    shown: the file's path in messages.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [
        f"{shown}:{number}: left undone: {line.split(UNDONE, 1)[1].strip()}"
        for number, line in enumerate(lines, 1)
        if UNDONE in line
    ]


def prose(text: str) -> str:
    """The Markdown cells of a module's text."""
    cells = _regions.split_cells(text)
    return "\n".join(body for marker, body in cells if "[markdown]" in marker)


def ladders_of(root: Path) -> tuple[str, ...]:
    """The ladders whose source is in the project at `root`, in order."""
    return tuple(name for name in ladders() if folder_of(name).is_relative_to(root))


def ladder_problems(name: str) -> Iterator[str]:
    """Yield problems of a ladder's `__init__.py` and folder, without running its puzzles."""
    yield from missing(name)
    module, page = ladder_module(name), front_page(name)
    for ladder in ladders():
        for puzzle in module.PUZZLES if ladder != name else ():
            if puzzle in ladder_module(ladder).PUZZLES:
                yield problem(f"{page}:1", "puzzle_of_two_ladders", puzzle=puzzle, other=ladder)
    folder = folder_of(name)
    for path in sorted([*folder.glob("[!_]*.py"), *folder.glob("[!_]*.toml")]):
        if path.stem not in module.PUZZLES:
            shown = page.removesuffix("__init__.py") + path.name
            yield problem(shown, "stray_file", name=path.stem, page=page)


def missing(name: str) -> Iterator[str]:
    """Yield a problem for each thing that a ladder needs or names and does not have.

    Without these, nothing can be built.
    """
    module, at = ladder_module(name), f"{front_page(name)}:1"
    for needed in ("TITLE", "INTRO"):
        if not hasattr(module, needed):
            yield problem(at, "ladder_needs", needed=needed)
    for puzzle in module.PUZZLES:
        if not (folder_of(name) / f"{puzzle}.py").exists():
            yield problem(at, "puzzle_without_a_file", puzzle=puzzle)
    for puzzle in getattr(module, "PARTS", {}):
        if puzzle not in module.PUZZLES:
            yield problem(at, "part_without_a_puzzle", puzzle=puzzle)


def project_problems(root: Path, names: Sequence[str]) -> Iterator[str]:
    """Stray and stale files of the project at `root`, whose ladders are `names`."""
    for path in sorted(root.glob("*.ipynb")):
        if path.stem not in names:
            yield problem(path.name, "stray_notebook", name=path.stem)
    if any(problem for name in names for problem in missing(name)):
        return  # a build would fail
    from puzzles._author import notebook  # needs the author's extra

    try:
        for name in notebook.out_of_date(root, names):
            yield f"{name} is out of date: python -m puzzles build"
    except BuildError as error:
        yield str(error)
