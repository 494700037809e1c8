"""One ref of a kernel: the block of each grid step, its transfers, and its bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._equations import array_of
from puzzles._launch.abstract_refs import memory_space
from puzzles._launch.finding import line_of_function


@dataclass(frozen=True, eq=False)
class Operand:
    """One ref of a kernel: an input, an output, a prefetched scalar array or scratch.

    `block` has None for a squeezed axis. `blocks` holds the block index of every step, in elements
    on axes indexed by `pl.Element`; `stride` is the number of elements an index counts.
    """

    name: str
    output: bool
    shape: tuple[int, ...]
    dtype: Any
    block: tuple[int | None, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    space: str  # "vmem", "smem", "any", "hbm", "semaphore_mem"
    buffers: int
    blocks: np.ndarray  # (steps, rank) int
    fetched: np.ndarray  # (steps,) bool: the block is not the previous step's
    transfers: int  # blocks read; for an output, written back; in HBM, copies by the kernel
    hbm_bytes: int  # moved by those transfers, ragged edges of blocks clipped
    vmem_bytes: int
    smem_bytes: int
    portion: tuple[int, ...]  # sizes of the largest piece that is moved, or held, at once
    line: str | None = None  # the line of its index map
    elements: tuple[bool, ...] = ()  # which axes are indexed by `pl.Element`

    @property
    def piped(self) -> bool:
        """Whether the launch moves it, in blocks or whole; the kernel copies operands in HBM."""
        return self.space not in ("any", "hbm")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The block shape with 1 for squeezed axes."""
        return tuple(1 if b is None else b for b in self.block)

    @property
    def starts(self) -> np.ndarray:
        """First element of every step's block, shape (steps, rank)."""
        low = np.array([lo for lo, _ in self.padding], np.int64)
        return self.blocks * np.array(self.stride, np.int64) - low


def resident(name: str, aval: Any, grid: tuple[int, ...], prefetched: bool = False) -> Operand:
    """Scratch, or a scalar array that is read once before the first step."""
    space, shape, steps = memory_space(aval), tuple(aval.shape), math.prod(grid)
    fetched = np.zeros(steps, bool)
    fetched[:1] = prefetched
    return Operand(
        name=name,
        output=False,
        shape=shape,
        dtype=aval.dtype,
        block=shape,
        stride=shape,
        padding=((0, 0),) * len(shape),
        space=space,
        buffers=1,
        blocks=np.broadcast_to(np.int32(0), (steps, len(shape))),
        fetched=fetched,
        transfers=int(prefetched),
        hbm_bytes=math.prod(shape) * itemsize(aval.dtype) if prefetched else 0,
        vmem_bytes=vmem_size(shape, aval.dtype) if space == "vmem" else 0,
        smem_bytes=smem_size(shape, aval.dtype) if space == "smem" else 0,
        portion=shape,
    )


def blocked(
    name: str,
    output: bool,
    space: str,
    mapping: Any,
    index: Sequence[np.ndarray],
    grid: tuple[int, ...],
) -> Operand:
    """An input or output, from its block mapping and its block index along every axis."""
    aval = array_of(mapping)
    steps, shape, dims = math.prod(grid), tuple(aval.shape), mapping.block_shape
    block = tuple(getattr(d, "block_size", None) for d in dims)
    sizes = tuple(1 if b is None else b for b in block)
    kinds = [type(d).__name__ for d in dims]
    stride = tuple(b if k == "Blocked" else 1 for b, k in zip(sizes, kinds, strict=True))
    padding = tuple(tuple(getattr(d, "padding", (0, 0))) for d in dims)

    blocks = np.zeros((steps, len(shape)), np.int32)
    for axis, value in enumerate(index):
        blocks[:, axis].reshape(grid)[...] = value
    moves = space in ("vmem", "smem")
    fetched, moved, buffers = np.zeros(steps, bool), 0, 1
    if moves:
        key = spread(linear(index), grid)
        fetched[:1] = True
        fetched[1:] = key[1:] != key[:-1]
        elements = np.ones((), np.int64)
        for i, size, b, s, (low, _) in zip(index, shape, sizes, stride, padding, strict=True):
            start = i.astype(np.int64) * s - low
            covered = np.minimum(start + b, size) - np.maximum(start, 0)
            elements = elements * covered.clip(0)
        moved = int(spread(elements, grid)[fetched].sum()) * itemsize(aval.dtype)
        varies = steps > 1 and any(value.size > 1 for value in index)
        buffers, mode = 1 + varies, mapping.pipeline_mode
        if mode is not None and (varies or sizes != shape):
            buffers = mode.buffer_count
    return Operand(
        name=name,
        output=output,
        shape=shape,
        dtype=aval.dtype,
        block=block,
        stride=stride,
        padding=padding,
        space=space,
        buffers=buffers,
        blocks=blocks,
        fetched=fetched,
        transfers=int(fetched.sum()),
        hbm_bytes=moved,
        vmem_bytes=buffers * vmem_size(sizes, aval.dtype) if space == "vmem" else 0,
        smem_bytes=buffers * smem_size(sizes, aval.dtype) if space == "smem" else 0,
        portion=sizes,
        line=line_of_function(mapping.index_map_jaxpr.jaxpr),
        elements=tuple(kind == "Element" for kind in kinds),
    )


def spread(value: np.ndarray, grid: tuple[int, ...]) -> np.ndarray:
    """A value over the grid as one entry per step, shape (steps,)."""
    return np.broadcast_to(value, grid).reshape(-1)


def linear(index: Sequence[np.ndarray]) -> np.ndarray:
    """An integer for each index tuple: equal if and only if the tuples are equal; broadcasts."""
    lows = [int(axis.min()) if axis.size else 0 for axis in index]
    spans = [
        int(axis.max()) - low + 1 if axis.size else 1 for axis, low in zip(index, lows, strict=True)
    ]
    key = np.zeros((), np.int64)
    for axis, low, span in zip(index, lows, spans, strict=True):
        key = key * span + (axis.astype(np.int64) - low)
    return key


def row_keys(blocks: np.ndarray) -> np.ndarray:
    """`linear` of block indices of shape (steps, rank): shape (steps,)."""
    return np.broadcast_to(linear(list(blocks.T)), (len(blocks),))


def first_seen(key: np.ndarray) -> np.ndarray:
    """For each entry of a key, the first position of its value."""
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first[which.reshape(-1)]


def itemsize(dtype: Any) -> int:
    """Bytes of one element on the device; 0 for semaphores.

    Mosaic has no bool refs: JAX casts bool operands to int32 before the kernel.
    """
    return 4 if dtype == np.dtype(bool) else int(getattr(dtype, "itemsize", 0))


def vmem_size(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of one buffer in VMEM: the last axis padded to 128, the one before it to a tile.

    A tile has 8 rows, or for fewer 1, 2 or 4, which fill whole words of 32 bits: two rows of bf16,
    four of int8. So 8 rows of bf16 take half of 16.
    """
    item = itemsize(dtype)
    if not item or not shape:
        return item
    packing = max(1, 4 // item)
    if len(shape) == 1:
        return _up(shape[0], 128 * packing) * item
    *leading, rows, lanes = shape
    tile = max(packing, next((n for n in (1, 2, 4) if rows <= n), 8))
    return math.prod(leading) * _up(rows, tile) * _up(lanes, 128) * item


def smem_size(shape: Sequence[int], dtype: Any) -> int:
    """Bytes of one buffer in SMEM: 1-D as it is, from 2-D on the last axis padded to 128."""
    if len(shape) < 2:
        return math.prod(shape) * itemsize(dtype)
    return math.prod(shape[:-1]) * _up(shape[-1], 128) * itemsize(dtype)


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple
