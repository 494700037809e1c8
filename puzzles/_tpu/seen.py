"""What a watch notes of a ref at a step, in a form in which two runs can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from puzzles._launch import ranges_of


@dataclass(frozen=True)
class Seen:
    """A ref at a grid step: `what` is its contents, or the line that read them."""

    operand: str | None
    step: tuple[int, ...] | None
    what: Any


def floating(value: np.ndarray) -> bool:
    """Whether it holds floats, narrow ones included."""
    return jnp.issubdtype(value.dtype, jnp.floating)


def comparable(value: np.ndarray) -> int:
    """A number that equal arrays share, NaNs of any kind included."""
    if floating(value):
        value = value.astype(np.float32)
        value = np.where(np.isnan(value), np.float32(np.nan), value)
    return hash((value.shape, value.tobytes()))


def inside(value: np.ndarray, transforms: Any, shape: tuple[int, ...]) -> np.ndarray:
    """The part of a block that does not hang over the edge of its array."""
    ranges = ranges_of(transforms)
    if ranges is None or len(ranges) != len(shape):
        return value
    kept = [max(0, n - a) for (a, _, index), n in zip(ranges, shape, strict=True) if not index]
    return value[tuple(map(slice, kept))] if len(kept) == value.ndim else value
