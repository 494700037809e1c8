"""Copies that a kernel starts by hand: from where to where, and how many bytes each moves."""

from __future__ import annotations

import linecache
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._jax import JaxprEqn, copy_ends, user_frame
from puzzles._launch.operand import itemsize, spread
from puzzles._launch.smem import place


@dataclass(frozen=True)
class Move:
    """The refs at both ends of a copy and their memory spaces; exact: its size is known."""

    source: str
    target: str
    spaces: tuple[str, str]
    exact: bool


@dataclass(frozen=True, eq=False)
class Copy:
    """One copy in the text of a kernel: `make_async_copy`, `sync_copy`, or what a pipeline starts.

    A place that copies slices of several sizes is one Copy for each of them.
    """

    line: str  # of the kernel, stripped; empty where it is not known
    source: str  # names of refs
    target: str
    spaces: tuple[str, str]  # of source and target: "hbm", "vmem", "smem"
    bytes_each: int
    exact: bool  # False: the slice's size depends on data, and bytes_each is the largest possible
    executed: np.ndarray  # (steps,) int: how often each grid step starts it

    @classmethod
    def of(
        cls,
        within: Sequence[JaxprEqn],
        move: Move,
        size: int,
        weight: np.ndarray,
        grid: tuple[int, ...],
    ) -> Copy:
        """The copy that the last equation of `within` starts, inside those before it."""
        frames = (user_frame(equation.source_info) for equation in reversed(within))
        frame = next((frame for frame in frames if frame is not None), None)
        line = "" if frame is None else linecache.getline(frame.file_name, frame.start_line).strip()
        executed = spread(weight, grid)
        return cls(line, move.source, move.target, move.spaces, size, move.exact, executed)

    @property
    def times(self) -> int:
        """How often it is started in all."""
        return int(self.executed.sum())

    @property
    def bytes(self) -> int:
        """What all its executions move."""
        return self.bytes_each * self.times

    @property
    def bytes_read(self) -> int:
        """What they read from HBM."""
        return self.bytes * (self.spaces[0] == "hbm")

    @property
    def bytes_written(self) -> int:
        """What they write to HBM."""
        return self.bytes * (self.spaces[1] == "hbm")


def moved(
    equation: JaxprEqn, values: Sequence[Any], rank: int
) -> Iterator[tuple[Move, int, np.ndarray]]:
    """What a `dma_start` moves, its size in bytes, and over the grid, which steps move so much."""
    avals = copy_ends(equation.params["tree"], [v.aval for v in equation.invars])
    known = copy_ends(equation.params["tree"], values)
    (source, seen_as), (target, _) = avals
    names = [getattr(ref, "name", "") or "a ref" for ref, _ in known]
    ends = [
        _elements(ref, transforms, there, rank)
        for (ref, transforms), (_, there) in zip(avals, known, strict=True)
    ]
    exact = [count for count, sure in ends if sure]
    count = exact[0] if exact else min((n for n, _ in ends), key=np.max)
    move = Move(names[0], names[1], (place(source), place(target)), bool(exact))
    size = itemsize(_dtype(source, seen_as))
    for one in np.unique(count):
        yield move, int(one) * size, count == one


def _elements(
    ref: Any, avals: Sequence[Any], known: Sequence[Any], rank: int
) -> tuple[np.ndarray, bool]:
    """(elements over the grid, whether that is exact) of a ref that transforms slice."""
    pairs = [p for p in zip(avals, known, strict=True) if hasattr(p[0], "indices")]
    if not pairs:
        return np.full((1,) * rank, math.prod(ref.shape)), True
    indexer, given = pairs[-1]
    count, exact = np.ones((1,) * rank, np.int64), True
    for index, aval, extent in zip(given.indices, indexer.indices, indexer.shape, strict=True):
        if not hasattr(index, "stride") or isinstance(index, np.ndarray):
            count = count * math.prod(getattr(aval, "shape", ()))  # one element, or an array
        elif isinstance(index.size, np.ndarray):
            count = count * index.size.reshape(index.size.shape[:rank]).astype(np.int64)
        elif isinstance(index.size, int | np.integer):
            count = count * index.size
        else:
            count, exact = count * extent, False
    return count, exact


def _dtype(ref: Any, transforms: Sequence[Any]) -> Any:
    """The element type that is copied: a ref may be seen as another one."""
    dtype = ref.dtype
    for transform in transforms:
        dtype = getattr(transform, "dtype", dtype)
    return dtype
