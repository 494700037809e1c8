"""Comparing arrays up to rounding: the places and the sizes of their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from puzzles._puzzle import Tolerance

# Relative tolerances by dtype; a TPU rounds the operands of f32 dots to bf16.
_TOLERANCE = {"float32": 2e-5, "bfloat16": 1e-2, "float16": 2e-3, "float64": 1e-12}
_TPU_TOLERANCE = 2e-2


def on_tpu() -> bool:
    """True if JAX's default backend is a TPU."""
    return jax.default_backend() == "tpu"


@dataclass(frozen=True)
class Mismatch:
    """A difference of two arrays of equal shape.

    wrong: marks the wrong elements. first: the index of the first wrong element.
    excess: the largest error, in units of the tolerance there.
    """

    wrong: np.ndarray
    first: tuple[int, ...]
    expected: Any
    got: Any
    excess: float


def compare(want: np.ndarray, got: np.ndarray, tolerance: Tolerance) -> Mismatch | None:
    """The mismatch of two arrays of equal shape, or None.

    `tolerance` is relative, and absolute in units of the root mean square of `want`.
    """
    want, got = np.asarray(want), np.asarray(got)
    # Ten times faster than comparing with tolerances; bytes are equal where both have a NaN.
    if np.array_equal(want, got) or (want.dtype == got.dtype and want.tobytes() == got.tobytes()):
        return None
    errors = _errors(want, got, tolerance)
    wrong = errors > 1
    if not wrong.any():
        return None
    first = tuple(int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    return Mismatch(wrong, first, want[first], got[first], float(errors.max()))


def _errors(
    want: np.ndarray, got: np.ndarray, tolerance: Tolerance, neighbours: bool = False
) -> np.ndarray:
    """The error of each element in units of the tolerance there: 1 is the limit.

    Integers, bools and values that are not finite have the error 0 or infinity.
    """
    if want.dtype.kind in "biu":
        return np.where(want == got, 0.0, np.inf)
    w, g = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(w)
    size = math.sqrt(np.mean(np.square(w[finite]))) if finite.any() else 0.0
    with np.errstate(all="ignore"):
        digit = np.abs(np.spacing(want)).astype(np.float64) if neighbours else 0.0
        off = np.maximum(np.abs(g - w) - digit, 0)
        errors = off / (tolerance_of(want, tolerance) * (np.abs(w) + size))
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    return np.where(same, 0.0, np.where(finite & ~np.isnan(errors), errors, np.inf))


def tolerance_of(want: np.ndarray, tolerance: Tolerance) -> float:
    """The tolerance for arrays of the dtype of `want`: the puzzle's, or the dtype's default."""
    own = tolerance.get(want.dtype.name) if isinstance(tolerance, Mapping) else tolerance
    usual = _TOLERANCE.get(want.dtype.name, 1e-2) if own is None else own
    return max(usual, _TPU_TOLERANCE) if on_tpu() else usual


def largest_error(want: np.ndarray, got: np.ndarray, tolerance: Tolerance) -> float:
    """The largest error of two arrays of equal shape in units of the tolerance; 1 is the limit.

    A difference in the last digit of the dtype counts as 0: rounding twice may cause it.
    """
    errors = _errors(np.asarray(want), np.asarray(got), tolerance, neighbours=True)
    return float(errors.max(initial=0))


def number_words(x: Any) -> str:
    if np.asarray(x).dtype.kind in "biu":
        return str(x)
    return f"{float(x):.6g}"
