"""Is a result rounded to its narrow dtype once, at the end, where a rung asks for that?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from puzzles._judge.case import Case
from puzzles._judge.numbers import on_tpu
from puzzles._puzzle import Puzzle
from puzzles._rules import sentence

# The part of the elements that may be further from the f32 result than one rounding takes them: a
# right answer has none, two roundings 16 % and more.
SHARE = 0.02
# What the order of an f32 sum may change, relative and in units of the root mean square.
_NOISE = 2e-5
# Beyond so many steps of its dtype a result is rather another formula's than rounded once more.
_STEPS = 2
# Two kernels that round at the same places may still sum in another order.
_ALIKE = 0.1


def too_far(exact: np.ndarray, got: np.ndarray) -> tuple[float, float]:
    """The part of `got` that is not `exact`, in f32, rounded once to the dtype of `got`.

    And how far from it the typical one of them is, in steps of that dtype; 0 if there is none.
    """
    w, g = exact.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(w) & np.isfinite(g)
    scale = float(np.sqrt(np.mean(w[finite] ** 2))) if finite.any() else 0.0
    spacing = float(jax.numpy.finfo(got.dtype).eps) * 2.0 ** (np.frexp(w)[1] - 1)
    allowed = spacing / 2 + _NOISE * (np.abs(w) + scale)
    wrong = finite & (np.abs(g - w) > allowed)
    steps = np.abs(g - w)[wrong] / spacing[wrong]
    return float(np.mean(wrong)), float(np.median(steps)) if len(steps) else 0.0


def rounded_alike(puzzle: Puzzle, one: np.ndarray, other: np.ndarray) -> bool:
    """Whether so few elements differ that both were rounded at the same places; True of f32."""
    if puzzle.roundings is None or not narrow(one.dtype):
        return True
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return float(np.mean(~same)) <= _ALIKE


def narrow(dtype: np.dtype) -> bool:
    """True for a float below 32 bits."""
    return dtype.itemsize <= 2 and jax.numpy.issubdtype(dtype, jax.numpy.floating)


def roundings(case: Case, flat: Sequence[np.ndarray]) -> dict[str, Any] | None:
    """The facts of a result that is rounded more often than once, else None."""
    if case.puzzle.roundings is None or on_tpu():
        return None
    for exact, got in zip(case.exact, flat, strict=True):
        part, steps = too_far(exact, got) if narrow(got.dtype) else (0.0, 0.0)
        if part > SHARE:
            kind = got.dtype.name
            first = "a rounding first" if steps < _STEPS else "a formula first"
            look = sentence(first, kind=kind)
            return {"part": part, "kind": kind, "share": SHARE, "steps": steps, "look": look}
    return None
