"""Is a rung's text complete?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from puzzles import _regions
from puzzles._author.report import plural
from puzzles._puzzle import Puzzle

UNDONE = "✎"  # what a scaffold's comments begin with: instructions to be followed and deleted
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]*)\)")


def text_problems(puzzle: Puzzle) -> Iterator[str]:
    """Everything that a reader of the module would miss, each with its place and remedy."""
    yield from _hints(puzzle)
    yield from _cases(puzzle)
    yield from _names(puzzle)
    yield from _pictures(puzzle)


def _hints(puzzle: Puzzle) -> Iterator[str]:
    place = puzzle.place("hints=")
    if len(puzzle.hints) < 3:
        few = plural(len(puzzle.hints), "hint")
        yield f"{place}: {few}: give an idea, an API and the shape of the code"
    for number, text in enumerate(puzzle.hints, 1):
        if not text.strip():
            yield f"{place}: hint {number} is empty: write it, or take it out"
    if not puzzle.explain.strip():
        yield f"{puzzle.place('explain=')}: no explanation: say why the solution works"


def _cases(puzzle: Puzzle) -> Iterator[str]:
    if len(puzzle.mistakes) < 3:
        place = puzzle.place("mistakes=")
        yield (
            f"{place}: {plural(len(puzzle.mistakes), 'mistake')}: at least 3 are wanted; what do "
            "people write?"
        )
    for dims in puzzle.cases:
        sizes = [v for v in dims.values() if isinstance(v, int)]
        if len(sizes) > 1 and len(set(sizes)) == 1:
            yield (
                f"{puzzle.place('cases=')}: a case with equal dims, {dict(dims)}, hides swapped "
                "axes: make them differ"
            )


def _names(puzzle: Puzzle) -> Iterator[str]:
    if puzzle.path.stem != puzzle.name:
        place = puzzle.place(f"def {puzzle.name}(", author=False)
        yield f"{place}: its puzzle is called '{puzzle.name}': give file and function one name"
    names = [m.name for m in (*puzzle.mistakes, *puzzle.alternatives)]
    for name in sorted({n for n in names if names.count(n) > 1}):
        place = puzzle.place(f'"{name}"')
        yield f"{place}: two mistakes or alternatives are called '{name}': rename one"


def _pictures(puzzle: Puzzle) -> Iterator[str]:
    text = prose(puzzle.text)
    images = _IMAGE.findall(text)
    if puzzle.kernel and puzzle.picture and not images and "```text" not in text:
        yield (
            f"{puzzle.place('# %% [markdown]', author=False)}: a kernel moves blocks through "
            "space, and this prose has no picture: add an image or a ```text drawing, or set "
            "picture=False in the Puzzle if it would give the answer away"
        )
    for alt, source in images:
        place = puzzle.place(source, author=False)
        if len(alt.split()) < 8:
            few = f"only {plural(len(alt.split()), 'word')}" if alt.split() else "no words"
            yield f"{place}: the image has {few} for who cannot see it: describe it in its alt text"
        if not source.startswith("http") and not (root(puzzle) / source).exists():
            yield f"{place}: there is no image {source}: draw it, or mend the link"


def root(puzzle: Puzzle) -> Path:
    """The folder that holds the puzzle's top-level package."""
    return puzzle.path.parents[puzzle.module.count(".")]


def undone(path: Path, shown: str) -> list[str]:
    """What a scaffold's comments still ask for in a file, each with its place; `shown` names it."""
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
