"""The author's commands, for `python -m puzzles`: each prints its results."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import jax

from puzzles._author import recording, scaffold
from puzzles._author.repository import BuildError, project
from puzzles._author.review import ladders_of, missing
from puzzles._jax import has_tpu
from puzzles._ladders import find
from puzzles._rules import RECORD, to_author


def look_for_no_tpu() -> None:
    """On a machine without a TPU, make JAX use the CPU; otherwise libtpu prints six warnings."""
    if "JAX_PLATFORMS" not in os.environ and not has_tpu():
        os.environ["JAX_PLATFORMS"] = "cpu"  # for subprocesses
        jax.config.update("jax_platforms", "cpu")


def new_project(where: Path, ladder: str | None) -> int:
    """Write a new project, a package with one ladder, into the folder `where`."""
    _wrote(scaffold.new_project(where.name, ladder or where.name, where.resolve().parent))
    print(f"next: cd {where}, then make build test")
    return 0


def new_ladder(name: str, first: str | None) -> int:
    """Write a ladder with one puzzle, called `first`, into the project around this folder."""
    root = project()
    written = scaffold.new_ladder(name, root, first)
    _wrote(written)
    if root / "pyproject.toml" in written:
        print(to_author("install_again"))
    print(f"next: python -m puzzles verify {name}")
    return 0


def new_puzzle(ladder: str, name: str, like: str | None = None, bare: bool = False) -> int:
    """Write a puzzle as the last puzzle of a ladder."""
    _wrote(scaffold.new_puzzle(ladder, name, like, bare))
    print(f"next: python -m puzzles verify {ladder}/{name}")
    return 0


def build(check: bool = False) -> int:
    """Write the project's diagrams, its notebooks and its README's table.

    check: write nothing; return 1 if a file is out of date.
    """
    from puzzles._author import notebook  # needs the author's extra

    root = project()
    names = ladders_of(root)
    if not names:
        raise BuildError(to_author("no_ladder_here", root=root))
    for problem in (problem for name in names for problem in missing(name)):
        raise BuildError(problem)
    stale = notebook.out_of_date(root, names)
    if not check:
        _wrote(notebook.write(root, stale))
    elif stale:
        print(f"out of date: {', '.join(stale)}. Run python -m puzzles build", file=sys.stderr)
        return 1
    if not stale:
        print("everything is up to date")
    return 0


def record(puzzle: str, answer: str, name: str, says: str) -> int:
    """Append an answer to a puzzle's record and print its verdict; return 1 if it does not hold.

    answer: its file, or "-" for standard input. name: "" for the name of the file.
    """
    text = sys.stdin.read() if answer == "-" else Path(answer).read_text(encoding="utf-8")
    name = name or Path(answer).stem.replace("_", " ").replace("-", " ").strip()
    if len(name.split()) < 2:
        raise BuildError(to_author("answer_without_a_name", name=name))
    change, changed = recording.recorded(find(puzzle), text, name, says)
    print(f"wrote {os.path.relpath(changed.record_path)}")
    print(recording.shown(changed, change))
    if problem := recording.problem_of(changed, change):
        print(f"\nBAD {problem}")
        return 1
    if (project() / RECORD).exists():
        print(f"\nnext: make verdicts NAMES={changed.name}")
    return 0


def edit(puzzle: str, name: str) -> int:
    """Print a known mistake or an alternative as a change of the solution, and its verdict."""
    print(recording.shown(find(puzzle), recording.find_answer(find(puzzle), name)))
    return 0


def _wrote(paths: Sequence[Path]) -> None:
    for path in paths:
        print(f"wrote {os.path.relpath(path)}")
