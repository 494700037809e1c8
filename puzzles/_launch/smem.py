"""What a walk knows of memory: scalars in SMEM, and nothing of blocks of data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
UNNAMED = "a scoped ref"  # what `run_scoped` allocates for a parameter without a name


@dataclass(frozen=True)
class Buffer:
    """A ref of which only its form is known, and where it is: "hbm" is any memory off the core.

    `path` is where `run_scoped` allocates it, empty for a parameter of the kernel.
    """

    name: str
    space: str
    shape: tuple[int, ...] = ()
    dtype: Any = None
    path: tuple[int, ...] = ()

    @classmethod
    def of(cls, name: str, aval: Any, path: tuple[int, ...] = ()) -> Buffer:
        """The ref of a kernel's parameter, or of what `run_scoped` allocates."""
        shape = tuple(getattr(aval, "shape", ()))
        return cls(name, place(aval), shape, getattr(aval, "dtype", None), path)


def memory_space(aval: Any) -> str:
    """Memory space of a ref in lower case; blocks go to VMEM unless told otherwise."""
    space = str(getattr(aval, "memory_space", None)).rsplit(".", 1)[-1].lower()
    return "vmem" if space in ("none", "default") else space


def place(aval: Any) -> str:
    """`memory_space`, where "any" is HBM: that is where it puts what is too large for VMEM."""
    space = memory_space(aval)
    return "hbm" if space == "any" else space


def called(ref: Any) -> str:
    """The name of a ref, or words where it has none."""
    return getattr(ref, "name", "") or "a ref"


def at_step(value: Any, ids: Sequence[int]) -> Any:
    """A value over the grid at one step: a number; what is none is as it is."""
    if not isinstance(value, np.ndarray) or value.ndim < len(ids):
        return value
    return value[tuple(min(i, n - 1) for i, n in zip(ids, value.shape, strict=False))]


_INSIDE = np.iinfo(np.int32).max
LOOKS = 32  # reads of scalars that are kept: executions of an equation, for all steps at once


@dataclass(frozen=True)
class Look:
    """A read of a scalar: which steps execute it, and the element in each, in a flat array.

    index: what a step asks for that is not there, else `_INSIDE`.
    """

    ref: Ref
    weight: np.ndarray
    element: np.ndarray
    index: np.ndarray

    @property
    def stray(self) -> np.ndarray:
        """(per grid step) bool: the step reads outside."""
        return np.asarray((self.weight > 0) & (self.index != _INSIDE))


@dataclass(eq=False)
class Ref:
    """Scalars in SMEM: the whole array, and per axis where the block starts and if it is squeezed.

    `contents` is None when the data are not known; `absent`, if given, then raises. What a kernel
    allocates holds garbage at first, for which zeros stand.
    """

    contents: np.ndarray | None
    start: tuple[np.ndarray, ...]
    visible: tuple[bool, ...]
    absent: Callable[[], Any] | None = None
    name: str = ""
    path: tuple[int, ...] = ()  # see `Buffer`

    @classmethod
    def whole(
        cls,
        shape: tuple[int, ...],
        contents: np.ndarray | None,
        absent: Callable[[], Any] | None = None,
        name: str = "",
        path: tuple[int, ...] = (),
    ) -> Ref:
        """A ref to all of an array."""
        start = (np.zeros((), np.int32),) * len(shape)
        return cls(contents, start, (True,) * len(shape), absent, name, path)

    def store(self, transforms: Sequence[Any], value: Any, weight: np.ndarray) -> None:
        """Keep a number that is stored for certain; else nothing is known.

        weight: (2, *grid), of the one step that stores it; of what the kernel allocates, of all
        steps, each of which stores the same.
        """
        contents = self.contents
        self.lost()
        steps = np.argwhere(weight[0])
        indices = [getattr(one, "indices", (None,)) for one in transforms]
        if contents is None or len(steps) != 1 or weight.sum() != 2 or len(indices) > 1:
            return
        index = [getattr(one, "start", one) for one in (*indices, (0,) * contents.ndim)[0]]
        if not all(isinstance(one, int | np.integer | np.ndarray) for one in (value, *index)):
            return
        over = np.broadcast_shapes(weight.shape[1:], *map(np.shape, (value, *index)))
        if len(index) != contents.ndim or (self.path and math.prod(over) != 1):
            return
        new, *place = (at_step(one, steps[0]) for one in (value, *index))
        if all(0 <= i < n for i, n in zip(place, contents.shape, strict=True)):
            contents = np.array(contents)  # the old one is what was passed in
            contents[tuple(place)] = new
        self.contents = contents

    def lost(self) -> None:
        """Somebody has written, and nobody knows what or where."""
        self.contents = None

    def load(
        self, transforms: Sequence[Any], shape: tuple[int, ...], weight: np.ndarray
    ) -> tuple[Any, Look | None]:
        """One element for every grid step of a weight's, and what is to be kept of this read."""
        if self.contents is None:
            return (UNKNOWN if self.absent is None else self.absent()), None
        indices = getattr(transforms[0], "indices", None) if len(transforms) == 1 else None
        if indices is None and not transforms and math.prod(shape) == 1:
            indices = (0,) * sum(self.visible)  # `ref[...]` of a block that is a single scalar
        if indices is None or len(indices) != sum(self.visible) or math.prod(shape) != 1:
            return UNKNOWN, None
        asked = iter(indices)
        place, outside = [], np.array(_INSIDE)
        for size, start, visible in zip(self.contents.shape, self.start, self.visible, strict=True):
            index = next(asked) if visible else 0
            index = getattr(index, "start", index)  # a slice of one element
            if not isinstance(index, int | np.integer | np.ndarray):
                return UNKNOWN, None
            flat = np.asarray(index)
            if flat.dtype.kind == "f":  # the CPU cuts it off, Mosaic will refuse it
                flat = np.nan_to_num(flat, posinf=size, neginf=-1).astype(np.int64)
            wrong = np.where((flat + start < 0) | (flat + start >= size), flat, _INSIDE)
            if (wrong != _INSIDE).any():
                outside = wrong
            place.append(np.clip(flat + start, 0, size - 1))
        elements = np.arange(self.contents.size).reshape(self.contents.shape)
        look = Look(self, weight, np.asarray(elements[tuple(place)]), outside)
        found = np.asarray(self.contents[tuple(place)])
        return found.reshape(found.shape or (1,) * weight.ndim), look
