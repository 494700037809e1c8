"""The fresh case's data, drawn wild: other signs, sizes and repeats than the listed cases have.

An answer that clips, that takes what is small for zero, or that skips a block in which nothing is
positive, is right on ordinary numbers. `Puzzle.keeps` says what a rung's data must keep.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from puzzles._puzzle import Puzzle, array

_PERIOD = 8  # rows or columns that come again: no block is shorter
Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def wild(puzzle: Puzzle, args: tuple, seed: int) -> tuple[tuple, str]:
    """Arguments in which one thing is changed, and that in words; "" where nothing is.

    Of each argument floats are changed, and no more than `puzzle.keeps` lets.
    """
    r, name = np.random.default_rng([seed, 1]), change_of(seed)
    says, change = CHANGES[name]
    names = inspect.signature(puzzle.spec).parameters
    changed, which = [], []
    for argument, value in zip(names, args, strict=False):
        kept = puzzle.keeps.get(argument, "").split()
        floats = [x for x in jax.tree.leaves(value) if _is_float(x)]
        if floats and name not in kept and "all" not in kept:
            value = jax.tree.map(lambda x: _changed(x, change, r) if _is_float(x) else x, value)
            which.append(f"`{argument}`")
        changed.append(value)
    if not which:
        return args, ""
    return (*changed, *args[len(changed) :]), says.format(" and ".join(which))


def change_of(seed: int) -> str:
    """The name of what is changed in the data of the fresh case that `seed` draws."""
    return list(CHANGES)[seed % len(CHANGES)]


def _is_float(x: Any) -> bool:
    return isinstance(x, jax.Array) and jax.numpy.issubdtype(x.dtype, jax.numpy.floating)


def _changed(x: Any, change: Change, r: np.random.Generator) -> Any:
    return array(change(np.array(x, np.float32), r), x.dtype) if x.ndim and x.size else x


def _half(x: np.ndarray) -> tuple[slice, ...]:
    """The first half along the longest axis."""
    longest = int(np.argmax(x.shape))
    return tuple(slice(n // 2) if a == longest else slice(None) for a, n in enumerate(x.shape))


def _negative(x: np.ndarray, r: np.random.Generator) -> np.ndarray:
    x[_half(x)] = -np.abs(x[_half(x)])
    return x


def _size(x: np.ndarray, r: np.random.Generator) -> np.ndarray:
    return x * np.float32(2.0 ** r.choice([-6, -3, 2]))


def _jump(x: np.ndarray, r: np.random.Generator) -> np.ndarray:
    x[_half(x)] *= np.float32(2.0**-5)
    return x


def _repeats(x: np.ndarray, r: np.random.Generator) -> np.ndarray:
    longest = int(np.argmax(x.shape))
    return x.take(np.arange(x.shape[longest]) % _PERIOD, longest)


def _zeros(x: np.ndarray, r: np.random.Generator) -> np.ndarray:
    x[_half(x)] = 0
    return x


def _nan(x: np.ndarray, r: np.random.Generator) -> np.ndarray:
    x.reshape(-1)[int(r.integers(x.size))] = np.nan
    return x


# By the name that `Puzzle.keeps` has for what must not be changed: words, and how it is done.
CHANGES: dict[str, tuple[str, Change]] = {
    "sign": ("the first half of {} is negative", _negative),
    "size": ("all of {} is larger or smaller by a power of 2", _size),
    "jump": ("the first half of {} is 32 times smaller", _jump),
    "order": (f"{{}} comes again after {_PERIOD} rows or columns", _repeats),
    "zero": ("the first half of {} is zero", _zeros),
    "finite": ("one number of {} is NaN", _nan),
}
