"""A scaffolded puzzle into which a test plants a fault, and sessions of cells."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from puzzles import Puzzle
from puzzles._author import gate
from puzzles._author.report import Report

ROOT = Path(__file__).parents[1]
FRONT = '"""Toy."""\nTITLE = "Toy"\nAFTER = ("basics",)\nPUZZLES = ({})\nINTRO = "Toys."\n'
Plant = Callable[..., Puzzle]


def line(puzzle: Puzzle, needle: str) -> int:
    """The first line of the module that holds `needle`."""
    lines = puzzle.path.read_text(encoding="utf-8").splitlines()
    return next(number for number, text in enumerate(lines, 1) if needle in text)


def verified(name: str, libtpu: bool = False, quick: bool = False) -> Report:
    """The report of `verify` on a puzzle, proven in this process."""
    return gate.with_text(name, gate.proven(name, libtpu, quick))


def ipython(
    sessions: list[list[str]],
    folder: Path,
    settings: Mapping[str, str],
    python: Sequence[str] = (sys.executable,),
) -> list[list[dict]]:
    """The output and the exception of each cell of each session, in a new process."""
    done = subprocess.run(
        [*python, Path(__file__).with_name("run_cells.py")],
        input=json.dumps(sessions),
        capture_output=True,
        text=True,
        cwd=folder,
        env=settings,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def clone() -> list[str]:
    """The files of the repository, including files that are not committed yet."""
    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    done = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True)
    there = [name for name in done.stdout.splitlines() if (ROOT / name).exists()]
    return [name for name in there if not name.startswith(".venv")]  # may be a symbolic link
