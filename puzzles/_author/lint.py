"""What ruff says of a rung, where ruff is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from puzzles._puzzle import Puzzle

# Shapes are types, cells import what they need, prose stands on long lines, `l` is a sum.
_MEANT = "F722,F821,E402,E501,E741"
_OURS = ["--isolated", "--select=B,E,F"]  # for a project that says nothing of ruff


def lint_problems(puzzle: Puzzle) -> Iterator[str]:
    """Each complaint with its line, by the settings of the project."""
    beside = Path(sys.executable).with_name("ruff")
    ruff = str(beside) if beside.exists() else shutil.which("ruff")
    if ruff is None:
        return
    options = [] if any(map(_configured, puzzle.path.parents)) else [*_OURS]
    options += ["--quiet", "--output-format=concise", "--no-cache", f"--extend-ignore={_MEANT}"]
    done = subprocess.run(
        [ruff, "check", *options, str(puzzle.path)],
        capture_output=True,
        text=True,
        cwd=puzzle.path.parent,
    )
    if done.returncode > 1:
        yield f"{puzzle.file}:1: ruff fails: {done.stderr.strip()}"
    for line in done.stdout.splitlines():
        found = re.match(r".*?:(\d+):\d+: (.*)", line)
        if found:
            yield f"{puzzle.file}:{found[1]}: {found[2]} (ruff)"


def _configured(folder: Path) -> bool:
    settings = folder / "pyproject.toml"
    named = settings.exists() and "[tool.ruff" in settings.read_text(encoding="utf-8")
    return named or any((folder / name).exists() for name in ("ruff.toml", ".ruff.toml"))
