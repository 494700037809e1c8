"""Are two arrays equal, up to rounding? Where are they not, and what are wrong numbers like?"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from puzzles._launch import Operand
from puzzles._puzzle import Tolerance
from puzzles._rules import sentence

# Relative tolerance by the width of the mantissa; a TPU rounds the operands of f32 dots to bf16.
_TOLERANCE = {"float32": 2e-5, "bfloat16": 1e-2, "float16": 2e-3, "float64": 1e-12}
_TPU_TOLERANCE = 2e-2
_LARGE = 2_000_000  # elements that are compared at leisure
_MANY = 1000  # blocks


def on_tpu() -> bool:
    """True if JAX's default backend is a TPU."""
    return jax.default_backend() == "tpu"


def narrow(dtype: np.dtype) -> bool:
    """True for a float below 32 bits."""
    return dtype.itemsize <= 2 and jax.numpy.issubdtype(dtype, jax.numpy.floating)


@dataclass(frozen=True)
class Mismatch:
    """Where two arrays of equal shape differ: `wrong` marks the elements, `first` indexes one.

    excess: the largest error, in units of what is allowed there.
    """

    wrong: np.ndarray
    first: tuple[int, ...]
    expected: Any
    got: Any
    count: int
    excess: float = np.inf


def compare(want: np.ndarray, got: np.ndarray, tolerance: Tolerance) -> Mismatch | None:
    """The first disagreement of two arrays of one shape, or None.

    `tolerance` is relative, and absolute in units of the root mean square of `want`.
    """
    want, got = np.asarray(want), np.asarray(got)
    if np.array_equal(want, got):  # a tenth of the time that tolerances take
        return None
    found = _errors(want, got, tolerance)
    wrong = found > 1
    if not wrong.any():
        return None
    first = tuple(int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    return Mismatch(wrong, first, want[first], got[first], int(wrong.sum()), float(found.max()))


def _errors(
    want: np.ndarray, got: np.ndarray, tolerance: Tolerance, neighbours: bool = False
) -> np.ndarray:
    """Each element's error in units of what is allowed there: 1 is the limit.

    What is no float, or not finite, is equal or infinitely far.
    """
    if want.dtype.kind in "biu":
        return np.where(want == got, 0.0, np.inf)
    w, g = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(w)
    size = math.sqrt(np.mean(np.square(w[finite]))) if finite.any() else 0.0
    with np.errstate(all="ignore"):
        digit = np.abs(np.spacing(want)).astype(np.float64) if neighbours else 0.0
        off = np.maximum(np.abs(g - w) - digit, 0)
        found = off / (tolerance_of(want, tolerance) * (np.abs(w) + size))
    same = (g == w) | (np.isnan(g) & np.isnan(w))
    return np.where(same, 0.0, np.where(finite & ~np.isnan(found), found, np.inf))


def tolerance_of(want: np.ndarray, tolerance: Tolerance) -> float:
    """The tolerance that numbers like `want` are held to: the puzzle's, or their dtype's."""
    given = tolerance.get(want.dtype.name) if isinstance(tolerance, Mapping) else tolerance
    usual = _TOLERANCE.get(want.dtype.name, 1e-2) if given is None else given
    return max(usual, _TPU_TOLERANCE) if on_tpu() else usual


def largest_error(
    want: np.ndarray, got: np.ndarray, tolerance: Tolerance, neighbours: bool = False
) -> float:
    """The largest error of two arrays of one shape in units of the tolerance; 1 is the limit.

    neighbours: forgives a last digit of the dtype, which one number rounded twice may differ by.
    """
    return float(_errors(np.asarray(want), np.asarray(got), tolerance, neighbours).max(initial=0))


def index_words(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]"


def number_words(x: Any) -> str:
    if np.asarray(x).dtype.kind in "biu":
        return str(x)
    return f"{float(x):.6g}"


def likeness(
    want: np.ndarray,
    got: np.ndarray,
    wrong: np.ndarray,
    args: Mapping[str, Any],
    operand: Operand | None,
    same: float,
) -> str | None:
    """A sentence about wrong numbers that holds for all of them, or for all of the first block.

    `operand` is the output that the result is, where its blocks lie in the result as they are;
    `same` is how far numbers may be apart, relatively, that count as the same.
    """
    if not 1 < want.size <= _LARGE or want.dtype.kind in "biu" or got.dtype.kind in "biu":
        return None
    want, got = want.astype(np.float64), got.astype(np.float64)
    for name, value in args.items():
        same_form = getattr(value, "shape", None) == got.shape  # a pair of arrays has none
        if same_form and _equal(got, np.asarray(value, np.float64)):
            return sentence("numbers of an argument", name=name)
    if got.ndim == 2 and got.shape[0] == got.shape[1] > 1 and _equal(got.T, want):
        return sentence("swapped")
    whole = _law(want, got, same)
    if whole is not None:
        return sentence("every number", law=whole)
    if operand is None or operand.shape != want.shape or None in operand.block:
        return None
    first = tuple(int(n) for n in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    block = tuple(n // size for n, size in zip(first, operand.sizes, strict=True))
    here = _cut(operand, block)
    counts = tuple(-(-n // size) for n, size in zip(want.shape, operand.sizes, strict=True))
    if np.prod(counts) > 1:
        law = _law(want[here], got[here], same)
        if law is not None:
            return sentence("every number here", law=law)
        for other in np.ndindex(counts) if np.prod(counts) <= _MANY else ():
            theirs = want[_cut(operand, other)]
            if other != block and theirs.shape == got[here].shape and _equal(got[here], theirs):
                return sentence("of another block", other=other)
    return None


def _cut(operand: Operand, block: tuple[int, ...]) -> tuple[slice, ...]:
    pairs = zip(block, operand.sizes, strict=True)
    return tuple(slice(n * size, (n + 1) * size) for n, size in pairs)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    scale = np.sqrt(np.mean(np.square(other))) if other.size else 0.0
    return bool(np.isfinite(scale) and np.allclose(one, other, rtol=1e-5, atol=1e-5 * scale))


def _law(want: np.ndarray, got: np.ndarray, same: float) -> str | None:
    """One factor, or one summand, that makes all wrong numbers of the right ones."""
    if want.size < 2 or not (np.isfinite(want).all() and np.isfinite(got).all()):
        return None
    scale = float(np.sqrt(np.mean(want**2)))
    if not scale or np.ptp(want) <= 10 * same * scale:
        return None
    clear = np.abs(want) > 0.1 * scale
    ratios = got[clear] / want[clear]
    factor = float(np.median(ratios))
    if not got.any():
        return "0"
    if np.allclose(got, factor * want, rtol=0, atol=same * abs(factor) * scale):
        if abs(factor + 1) < same:
            return sentence("other sign")
        return sentence("one factor", factor=factor)
    summand = float(np.median(got - want))
    if np.allclose(got, want + summand, rtol=0, atol=same * min(abs(summand), scale)):
        return sentence("too large" if summand > 0 else "too small", by=abs(summand))
    return None
