"""What an author's own code raised, as a problem with its place."""

from __future__ import annotations

import os
import traceback

from puzzles import _regions
from puzzles._author.repository import at_line
from puzzles._author.tree import absent
from puzzles._ladders import front_page, ladder_module, ladder_of


def raised(name: str, error: Exception) -> str:
    """Where in a ladder's own files an exception came from, and what it says."""
    ladder = ladder_of(name)
    folder = os.path.dirname(str(ladder_module(ladder).__file__))
    shown = front_page(ladder).removesuffix("__init__.py")
    places = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((str(error.filename), error.lineno))
    inside = [(os.path.basename(f), n) for f, n in places if f.startswith(f"{folder}{os.sep}")]
    own = [(file, n) for file, n in inside if file == f"{name}.py"]
    file, line = (own or inside or [(f"{name}.py", 1)])[-1]
    gist = f"{type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError) and str(error.name).endswith(f".{name}"):
        return absent(ladder, name)
    at = f"{shown}{file}:{line}: {gist}"
    if isinstance(error, _regions.RegionError):
        at = at_line(f"{shown}{name}.py", error)
    return f"{at}. Mend it first: nothing more of this rung was verified"
