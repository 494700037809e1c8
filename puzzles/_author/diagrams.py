"""A project's diagrams: what `DIAGRAMS` in its diagrams/draw.py draws, by the path of each file."""

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
    """Draws consecutive steps of a rung's reference launch, from `first`, one note beside each.

    shapes: the arguments, without data where no grid or index map reads them. style: see `film`.
    """

    def draw() -> str:
        (launch,) = trace(find(name).solution, *shapes)
        steps = range(first, first + len(notes))
        return film(launch, steps, title, f"{title}. " + " ".join(notes), notes, **style)

    return draw


def drawn(root: Path) -> dict[str, str]:
    """Every diagram of the project at `root` as it would be drawn now; none without a script."""
    script = root / "diagrams" / "draw.py"
    if not script.exists():
        return {}
    diagrams = runpy.run_path(str(script))["DIAGRAMS"]
    return {f"diagrams/{name}.svg": draw() for name, draw in diagrams.items()}
