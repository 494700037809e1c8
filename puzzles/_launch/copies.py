"""Copies that a kernel starts by hand: their source, target and bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from puzzles._equations import copy_parts
from puzzles._jax import JaxprEqn, made_by_a_pipeline
from puzzles._launch.abstract_refs import called, place
from puzzles._launch.finding import text_of
from puzzles._launch.operand import Operand, itemsize


@dataclass(frozen=True)
class Move:
    """The refs at both ends of a copy, their memory spaces, and the sizes of their slices.

    `extents` are the sizes of both slices along the axes of their refs. If data decide, `extents`
    and `bytes_each` are the largest possible, and `exact` is False.
    """

    source: str
    target: str
    spaces: tuple[str, str]  # of source and target: "hbm", "vmem", "smem"
    bytes_each: int
    extents: tuple[tuple[int, ...], tuple[int, ...]]
    exact: bool


@dataclass(frozen=True)
class Copy(Move):
    """One copy in the text of a kernel: `make_async_copy`, `sync_copy`, or by a pipeline.

    A line that copies slices of several sizes gives a Copy for each size.
    """

    line: str  # of the kernel, stripped; empty if it is unknown
    executed: np.ndarray = field(compare=False)  # (steps,) int: starts by each step
    by_pipeline: bool = False  # `emit_pipeline` starts it

    @classmethod
    def of(cls, move: Move, path: Sequence[JaxprEqn], executed: np.ndarray) -> Copy:
        """The copy that the last equation of `path` starts, inside the equations before it."""
        line = next(
            filter(None, (text_of(equation.source_info) for equation in reversed(path))), ""
        )
        by_pipeline = made_by_a_pipeline(path[-1].source_info)
        return cls(**vars(move), line=line, executed=executed, by_pipeline=by_pipeline)

    @property
    def times(self) -> int:
        """The number of its starts in all steps."""
        return int(self.executed.sum())

    @property
    def bytes(self) -> int:
        """Bytes that all its executions move."""
        return self.bytes_each * self.times


def copied(operand: Operand, copies: Sequence[Copy]) -> Operand:
    """An operand in HBM, with the transfers of the kernel's own copies from it and to it."""
    if operand.piped:
        return operand
    own = [
        (copy, extents)
        for copy in copies
        for end, extents in zip((copy.source, copy.target), copy.extents, strict=True)
        if end == operand.name and len(extents) == len(operand.shape)
    ]
    portions = [(0,) * len(operand.shape), *(extents for copy, extents in own if copy.times)]
    return replace(
        operand,
        transfers=sum(copy.times for copy, _ in own),
        hbm_bytes=sum(copy.bytes for copy, _ in own),
        portion=tuple(map(max, zip(*portions, strict=True))),
    )


def moved(equation: JaxprEqn, parts: Sequence[Any], rank: int) -> Iterator[tuple[Move, np.ndarray]]:
    """The moves of a `dma_start`, a move for each size, with a mask over the grid of its steps."""
    avals = copy_parts(equation.params["tree"], [v.aval for v in equation.invars])[:2]
    arrays = parts[:2]
    (source, seen_as), (target, _) = avals
    names = [called(ref) for ref, _ in arrays]
    ends = [
        _sizes(ref, transforms, there, rank)
        for (ref, transforms), (_, there) in zip(avals, arrays, strict=True)
    ]
    counts = [math.prod(sizes) for sizes, _ in ends]  # one of them, or arrays over the grid
    exact = [count for count, (_, sure) in zip(counts, ends, strict=True) if sure]
    count = np.asarray(exact[0] if exact else min(counts, key=np.max))
    first, second = (tuple(int(np.max(size)) for size in sizes) for sizes, _ in ends)
    places, item = (place(source), place(target)), itemsize(_dtype(source, seen_as))
    count = count.reshape(count.shape or (1,) * rank)
    for number in np.unique(count) if count.size > 1 else count.reshape(-1):
        size = int(number) * item
        yield Move(names[0], names[1], places, size, (first, second), bool(exact)), count == number


def bytes_of(ref: Any, transforms: Sequence[Any]) -> int | None:
    """Bytes of the part of a ref that transforms select; None if its size is unknown."""
    sizes, exact = _sizes(ref, transforms, transforms, 0)
    item = np.dtype(_dtype(ref, transforms)).itemsize
    return math.prod(map(int, sizes)) * item if exact else None


def _sizes(
    ref: Any, avals: Sequence[Any], values: Sequence[Any], rank: int
) -> tuple[list[Any], bool]:
    """The sizes that transforms select along the axes of a ref, and whether they are exact.

    A size is a number, or an array over the grid. A reshaped ref has new axes.
    """
    sizes, exact = list(ref.shape), True
    left = list(range(len(ref.shape)))  # axes that an index has not removed
    for aval, value in zip(avals, values, strict=True):
        if hasattr(aval, "indices"):
            for axis, selector, index in zip(tuple(left), aval.indices, value.indices, strict=True):
                if not hasattr(selector, "stride"):  # an integer, or an array of them
                    sizes[axis] = math.prod(getattr(selector, "shape", ()))
                    left.remove(axis)
                elif isinstance(index.size, np.ndarray):
                    sizes[axis] = index.size.reshape(index.size.shape[:rank]).astype(np.int64)
                elif isinstance(index.size, int | np.integer):
                    sizes[axis] = index.size
                else:
                    exact = False
        elif isinstance(shape := getattr(aval, "shape", None), tuple):
            sizes, left = list(shape), list(range(len(shape)))
    return sizes, exact


def _dtype(ref: Any, transforms: Sequence[Any]) -> Any:
    """The element type that is copied: transforms may view a ref as another type."""
    dtype = ref.dtype
    for transform in transforms:
        dtype = getattr(transform, "dtype", dtype)
    return dtype
