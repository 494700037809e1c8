"""A project's diagrams, which `DIAGRAMS` in its diagrams/draw.py draws, by their paths."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from puzzles._draw import film
from puzzles._ladders import find
from puzzles._launch import trace


def strip(
    name: str,
    shapes: Sequence[object],
    first: int,
    notes: Sequence[str],
    title: str,
    **style: Any,
) -> Callable[[], str]:
    """Return a function that draws steps of a puzzle's reference launch, with a note next to each.

    shapes: the arguments, which need data only if a grid or an index map reads them.
    first: the first step. style: see `film`.
    """

    def draw() -> str:
        (launch,) = trace(find(name).solution, *shapes)
        steps = range(first, first + len(notes))
        return film(launch, steps, title, f"{title}. " + " ".join(notes), notes, **style)

    return draw


def drawn(root: Path) -> dict[str, str]:
    """Draw all diagrams of the project at `root`; empty if it has no diagrams/draw.py."""
    script = root / "diagrams" / "draw.py"
    if not script.exists():
        return {}
    diagrams = runpy.run_path(str(script))["DIAGRAMS"]
    return {f"diagrams/{name}.svg": draw() for name, draw in diagrams.items()}
