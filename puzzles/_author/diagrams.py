"""A project's diagrams: what `DIAGRAMS` in its diagrams/draw.py draws, by the path of each file."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from puzzles._author.repository import BuildError
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


def drawn(root: Path) -> dict[Path, str]:
    """Every diagram of the project at `root` as it would be drawn now; none without a script."""
    script = root / "diagrams" / "draw.py"
    if not script.exists():
        return {}
    diagrams = runpy.run_path(str(script)).get("DIAGRAMS")
    if diagrams is None:
        raise BuildError(
            f"{script} has no DIAGRAMS: a dict of functions that draw, by '<ladder>/<rung>'"
        )
    return {root / "diagrams" / f"{name}.svg": draw() for name, draw in diagrams.items()}


def out_of_date(root: Path) -> list[str]:
    """Names of the diagrams whose file is not what would be drawn now, and of stray files."""
    wanted = drawn(root)
    stale = [path for path, svg in wanted.items() if _text(path) != svg]
    stray = [path for path in (root / "diagrams").glob("*/*.svg") if wanted and path not in wanted]
    return sorted(path.relative_to(root).as_posix() for path in (*stale, *stray))


def write(root: Path) -> list[Path]:
    """Draw every diagram; returns those that changed."""
    changed = [(path, svg) for path, svg in drawn(root).items() if _text(path) != svg]
    for path, svg in changed:
        path.parent.mkdir(exist_ok=True)
        path.write_text(svg, encoding="utf-8")
    return [path for path, _ in changed]


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
