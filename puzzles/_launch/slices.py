"""The part of a buffer that a ref names: from the transforms of an access to ranges of elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from puzzles._program import bitcast

# Along every axis of a buffer: (start, stop, whether it is an index, not a slice).
Ranges = tuple[tuple[int, int, bool], ...]


def ranges_of(transforms: Sequence[Any]) -> Ranges | None:
    """The ranges of a buffer that transforms select; None if one is unknown, or not an index."""
    ranges: list[tuple[int, int, bool]] = []
    for number, transform in enumerate(_moving(transforms)):
        if (indices := getattr(transform, "indices", None)) is None:
            return None
        new = [_range(index) for index in indices]
        if any(index is None for index in new):
            return None
        parts = iter([index for index in new if index is not None])
        if number == 0:
            ranges = list(parts)
            continue
        inner = ((0, b - a, True) if index else next(parts) for a, b, index in ranges)
        # An axis that an index removed has no further range.
        ranges = [(a + c, a + d, i) for (a, *_), (c, d, i) in zip(ranges, inner, strict=True)]
    return tuple(ranges)


def _moving(transforms: Sequence[Any]) -> list[Any]:
    """The transforms without those of `pltpu.annotate`, which select the whole part."""
    return [one for one in transforms if "Assumption" not in type(one).__name__]


def _range(index: Any) -> tuple[int, int, bool] | None:
    if hasattr(index, "stride"):
        start, size = _number(index.start), _number(index.size)
        if start is None or size is None:
            return None
        return start, start + max(0, (size - 1) * int(index.stride) + 1), False
    if np.ndim(index):
        return None
    at = _number(index)
    return None if at is None else (at, at + 1, True)


def _number(value: Any) -> int | None:
    """The value as an int; None if it is unknown."""
    return int(value) if hasattr(value, "__int__") else None


def overlap(first: Ranges | None, second: Ranges | None) -> bool:
    """Whether two parts of a buffer certainly share an element; False if a part is unknown."""
    if first is None or second is None:
        return False
    return all(max(a, c) < min(b, d) for (a, b, _), (c, d, _) in zip(first, second, strict=False))


def in_last_tile(ranges: Ranges | None, ref: Any) -> bool:
    """True if a part begins inside an array and ends within the tiles to which HBM pads it.

    The last two axes have tiles. `emit_pipeline` fetches a last block to the end of its tile.
    """
    if ranges is None or len(ranges) != len(ref.shape):
        return False
    tiles = (1,) * (len(ranges) - 2) + (32 // np.dtype(ref.dtype).itemsize, 128)[-len(ranges) :]
    ends = zip(ranges, ref.shape, tiles, strict=True)
    return all(0 <= a < n and b <= -(-n // tile) * tile for (a, b, _), n, tile in ends)


def ranges_shown(ranges: Ranges | None, shape: Sequence[int]) -> str:
    """`[0, 64:128]`; without trailing whole axes, and "" if the ranges are unknown."""
    parts = [str(a) if index else f"{a}:{b}" for a, b, index in ranges or ()]
    whole = [f"0:{n}" for n in shape]
    while parts and parts[-1:] == whole[len(parts) - 1 : len(parts)]:
        parts.pop()
    return f"[{', '.join(parts)}]" if parts else ""


def taken(value: np.ndarray, transforms: Sequence[Any]) -> np.ndarray:
    """Apply reshapes, bitcasts and slices to an array: a view of it, except after bitcasts.

    Raises NotImplementedError for a slice beyond its edge.
    """
    for transform in _moving(transforms):
        if "Bitcast" in type(transform).__name__:
            value = bitcast(value, transform.dtype)
            continue
        if "Reshape" in type(transform).__name__:
            value = value.reshape(transform.shape)
            continue
        place = tuple(map(_place, transform.indices))
        for index, size in zip(place, value.shape, strict=True):
            first = index.start if isinstance(index, slice) else index
            last = index.stop if isinstance(index, slice) else index + 1
            if first < last and (first < 0 or last > size):  # a part of no elements is nowhere
                raise NotImplementedError("a slice beyond the edge of a ref")
        value = value[(*place, ...)]
    return value


def before_bitcast(
    bits: np.ndarray, value: np.ndarray, transforms: Sequence[Any]
) -> np.ndarray | None:
    """The view of an array whose bits `taken` returned; None if it returned only a part of a view.

    An index of leading axes after the bitcast counts too, because only the last two change.
    """
    if not bits.size or np.may_share_memory(bits, value):
        return bits
    transforms = _moving(transforms)
    casts = (n for n, transform in enumerate(transforms) if "Bitcast" in type(transform).__name__)
    if (n := next(casts, None)) is None:  # a reshape of rows with gaps is a copy, too
        return None
    view, after = taken(value, transforms[:n]), transforms[n + 1 : n + 2]
    leading = [_place(i) for transform in after for i in getattr(transform, "indices", ())[:-2]]
    view = view[(*leading, ...)]
    return view if view.nbytes == bits.nbytes and np.may_share_memory(view, value) else None


def unlike(value: np.ndarray, part: np.ndarray) -> np.ndarray:
    """The bits of `value`, in any shape, in the shape and the dtype of `part`."""
    ratio = part.dtype.itemsize / value.dtype.itemsize
    *leading, rows, lanes = part.shape
    return bitcast(value.reshape(*leading, int(rows * ratio), lanes), part.dtype)


def _place(index: Any) -> slice | int:
    if not hasattr(index, "stride"):
        return int(index)
    start, size, stride = int(index.start), int(index.size), int(index.stride)
    return slice(start, start + max(0, (size - 1) * stride + 1), stride)
