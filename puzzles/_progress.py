"""The solved puzzles. A notebook saves them to a file next to it, which survives a restart."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

FILE = ".pallas_puzzles.json"

_solved: set[str] = set()


def solved() -> set[str]:
    """Names of the puzzles that were solved here, in this session or an earlier one."""
    if _keeps():
        _solved.update(_stored())
    return _solved


def add(name: str) -> str | None:
    """Note that a puzzle is solved; return a sentence if this cannot be saved."""
    _solved.add(name)
    return _save() if _keeps() else None


def where() -> str:
    """A sentence about how long progress is remembered, and where."""
    if not _keeps():
        return "This count lasts as long as this session."
    return _save() or f"Kept in {Path.cwd() / FILE}; delete that file to begin again."


def _keeps() -> bool:
    """False for scripts, tests and CI, which must not write a file."""
    return in_notebook() and os.environ.get("PUZZLES_STRICT") != "1"


def in_notebook() -> bool:
    """True in an IPython kernel: Jupyter, Colab, VS Code."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _stored() -> set[str]:
    """The names in the file; empty if there is no file, or if it cannot be read."""
    try:
        names = json.loads(Path(FILE).read_text(encoding="utf-8"))["solved"]
        return {name for name in names if isinstance(name, str)}
    except (OSError, ValueError, LookupError, TypeError):
        return set()


def _save() -> str | None:
    """Write the file atomically, with the names that another notebook has saved meanwhile."""
    stored = _stored()
    names = _solved | stored
    if names == stored:
        return None
    new = Path(f"{FILE}.new")
    try:
        new.write_text(json.dumps({"solved": sorted(names)}, indent=1) + "\n", "utf-8")
        new.replace(FILE)
    except OSError as error:
        return (
            f"Progress cannot be kept here ({error.strerror or error}): it lasts until the kernel "
            "stops."
        )
    return None
