"""Diagrams of devices over time, drawn from runs of the reference kernels in NumPy."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

import puzzles
from puzzles import _draw as p
from puzzles._judge import on_chips
from puzzles._launch import trace_call
from puzzles._program import over_mesh
from puzzles._puzzle import mutate

_WIDE, _SCALE = 650, 1.6


def lanes(
    name: str,
    shapes: Sequence[jax.ShapeDtypeStruct],
    title: str,
    *captions: tuple[str, str],
) -> Callable[[], str]:
    """Return a function that draws a puzzle's devices over time, timed as on v5e.

    captions: a line for each drawing and the known mistake that is drawn, "" for the reference.
    """

    def draw() -> str:
        body, top = [p.text(20, 28, title, size=16, bold=True)], 44.0
        for caption, mistake in captions:
            puzzle = puzzles.find(name)
            fn = mutate(puzzle, puzzle.mistake(mistake)) if mistake else puzzle.solution
            judged = puzzle.judged(fn, puzzle.axes, over_mesh)
            arrays = [jnp.zeros(one.shape, one.dtype) for one in shapes]
            picture = p.lanes_picture(on_chips(trace_call(judged, *arrays), "v5e").wire)
            box = re.match(r'<svg viewBox="0 0 (\d+) (\d+)"', picture)
            assert box is not None
            wide, high = int(box[1]) * _SCALE, int(box[2]) * _SCALE
            inner = picture[picture.index(">") + 1 : -len("</svg>")]
            body.append(p.text(20, top + 14, caption, size=13))
            body.append(
                f'<svg x="20" y="{p.px(top + 20)}" width="{p.px(wide)}" height="{p.px(high)}" '
                f'viewBox="0 0 {box[1]} {box[2]}">{inner}</svg>'
            )
            top += high + 32
        says = f"{title}. {'; '.join(caption for caption, _ in captions)}."
        return p.document(_WIDE, top + 4, "".join(body), title, says)

    return draw
