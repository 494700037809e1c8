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


@dataclass(frozen=True)
class Buffer:
    """A ref of which only the name is known, and where it is: "hbm" is any memory off the core."""

    name: str
    space: str

    @classmethod
    def of(cls, name: str, aval: Any) -> Buffer:
        """The ref of a kernel's parameter, or of what `run_scoped` allocates."""
        return cls(name, place(aval))


def memory_space(aval: Any) -> str:
    """Memory space of a ref in lower case; blocks go to VMEM unless told otherwise."""
    space = str(getattr(aval, "memory_space", None)).rsplit(".", 1)[-1].lower()
    return "vmem" if space in ("none", "default") else space


def place(aval: Any) -> str:
    """`memory_space`, where "any" is HBM: that is where it puts what is too large for VMEM."""
    space = memory_space(aval)
    return "hbm" if space == "any" else space


_INSIDE = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Stray:
    """A read of a scalar that is not there: which steps execute it, and the index in each."""

    ref: Ref
    weight: np.ndarray
    index: np.ndarray

    @property
    def asked(self) -> np.ndarray:
        """(per grid step) bool: the step reads outside."""
        return (self.weight > 0) & (self.index != _INSIDE)


@dataclass(eq=False)
class Ref:
    """Scalars in SMEM: the whole array, and per axis where the block starts and if it is squeezed.

    `contents` is None when the data are not known; `absent`, if given, then raises.
    """

    contents: np.ndarray | None
    start: tuple[np.ndarray, ...]
    visible: tuple[bool, ...]
    absent: Callable[[], Any] | None = None
    outside: np.ndarray | None = None  # of the last load: per grid step, an index that is not there
    name: str = ""

    @classmethod
    def whole(
        cls,
        shape: tuple[int, ...],
        contents: np.ndarray | None,
        absent: Callable[[], Any] | None = None,
        name: str = "",
    ) -> Ref:
        """A ref to all of an array."""
        start = (np.zeros((), np.int32),) * len(shape)
        return cls(contents, start, (True,) * len(shape), absent, name=name)

    def load(self, transforms: Sequence[Any], shape: tuple[int, ...], rank: int) -> Any:
        """One element for every grid step; `outside` says who asks for none that is there."""
        self.outside = None
        if self.contents is None:
            return UNKNOWN if self.absent is None else self.absent()
        indices = getattr(transforms[0], "indices", None) if len(transforms) == 1 else None
        if indices is None and not transforms and math.prod(shape) == 1:
            indices = (0,) * sum(self.visible)  # `ref[...]` of a block that is a single scalar
        if indices is None or len(indices) != sum(self.visible) or math.prod(shape) != 1:
            return UNKNOWN
        asked = iter(indices)
        place = []
        for size, start, visible in zip(self.contents.shape, self.start, self.visible, strict=True):
            index = next(asked) if visible else 0
            index = getattr(index, "start", index)  # a slice of one element
            if not isinstance(index, int | np.integer | np.ndarray):
                return UNKNOWN
            flat = np.reshape(index, np.shape(index)[:rank])
            if flat.dtype.kind == "f":  # the CPU cuts it off, Mosaic will refuse it
                flat = np.nan_to_num(flat, posinf=size, neginf=-1).astype(np.int64)
            wrong = np.where((flat + start < 0) | (flat + start >= size), flat, _INSIDE)
            if (wrong != _INSIDE).any():
                self.outside = wrong
            place.append(np.clip(flat + start, 0, size - 1))
        found = np.asarray(self.contents[tuple(place)])
        lead = found.shape if found.ndim == rank else (1,) * rank
        return found.reshape(lead + shape)
