"""What a watch notes of a ref at a step, in a form in which two runs can be compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def bytes_of(shape: tuple[int, ...], dtype: Any, transforms: Sequence[Any]) -> int | None:
    """Of what transforms leave of a buffer; None where its size is not known."""
    for one in transforms:
        dtype = getattr(one, "dtype", dtype)
        if (indices := getattr(one, "indices", None)) is None:
            shape = tuple(getattr(one, "shape", shape))
            continue
        sizes = [index.size for index in indices if hasattr(index, "stride")]
        if not all(hasattr(size, "__int__") for size in sizes):
            return None
        shape = tuple(map(int, sizes))
    return math.prod(shape) * np.dtype(dtype).itemsize


def recasts(transform: Any) -> bool:
    """Whether a transform of a ref is `ref.reshape` or `ref.bitcast`."""
    return any(what in type(transform).__name__ for what in ("Reshape", "Bitcast"))


def taken(value: np.ndarray, transforms: Sequence[Any]) -> np.ndarray:
    """What reshapes, bitcasts and slices leave of an array; raises where they reach beyond it."""
    for one in transforms:
        if recasts(one):
            recast = _bitcast if "Bitcast" in type(one).__name__ else np.reshape
            value = recast(value, one.dtype if recast is _bitcast else one.shape)
            continue
        place = tuple(map(_place, one.indices))
        for index, size in zip(place, value.shape, strict=True):
            last = index.stop if isinstance(index, slice) else index + 1
            if last > size:
                raise NotImplementedError("a slice beyond the edge of a ref with another form")
        value = value[place]
    return value


def _bitcast(value: np.ndarray, dtype: Any) -> np.ndarray:
    """The same bits: rows that lie in one word of 32 bits become one row, or the other way."""
    old, new = value.dtype.itemsize, np.dtype(dtype).itemsize
    *leading, rows, lanes = value.shape
    if new > old:
        words = value.reshape(*leading, rows * old // new, new // old, lanes)
        return np.ascontiguousarray(np.swapaxes(words, -1, -2)).view(dtype)[..., 0]
    parts = np.ascontiguousarray(value)[..., None].view(dtype)
    return np.swapaxes(parts, -1, -2).reshape(*leading, rows * old // new, lanes)


def _place(index: Any) -> slice | int:
    if not hasattr(index, "stride"):
        return int(index)
    start, size, stride = int(index.start), int(index.size), int(index.stride)
    return slice(start, start + (size - 1) * stride + 1, stride)
