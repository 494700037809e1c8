"""Memory in an abstract evaluation: scalars in SMEM are known, blocks of data are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

UNKNOWN: Any = object()  # a value that the evaluation does not know


@dataclass(frozen=True)
class Buffer:
    """A ref with known shape, dtype and memory: "hbm" is any memory off the core.

    `path` is the place of the `run_scoped` that allocates it, empty for a kernel's parameter.
    """

    name: str
    space: str
    shape: tuple[int, ...] = ()
    dtype: Any = None
    path: tuple[int, ...] = ()

    @classmethod
    def of(cls, name: str, aval: Any, path: tuple[int, ...] = ()) -> Buffer:
        """The ref of a kernel's parameter, or of a buffer that `run_scoped` allocates."""
        shape = tuple(getattr(aval, "shape", ()))
        return cls(name, place(aval), shape, getattr(aval, "dtype", None), path)


@dataclass(frozen=True, eq=False)
class Cells(Buffer):
    """Scalars in SMEM that a kernel allocates, with the stored values that are known.

    JAX 0.7's `emit_pipeline` keeps the number of its slot there.
    """

    # By index, an array over the grid or UNKNOWN; None stands for all other indices.
    known: dict[tuple[int, ...] | None, Any] = field(default_factory=dict)

    def load(self, transforms: Sequence[Any]) -> Any:
        """The element of every grid step."""
        at = self._at(transforms)
        return UNKNOWN if at is None else self.known.get(at, UNKNOWN)

    def store(self, transforms: Sequence[Any], value: Any, weight: np.ndarray) -> None:
        """Keep a value that is stored for certain, else UNKNOWN; weight: (2, steps of the grid)."""
        at = self._at(transforms)
        if at is None:
            self.lost()
            return
        before = self.known.get(at, self.known.get(None))
        certain = (weight[0] == weight[1]).all() and weight.max(initial=0) <= 1
        self.known[at] = UNKNOWN
        if not certain or not isinstance(value, np.ndarray):
            return
        new = value.reshape(value.shape[: weight.ndim - 1])
        if before is None or weight[0].all():  # no value before: the other steps hold garbage
            self.known[at] = new
        elif before is not UNKNOWN:
            self.known[at] = np.where(weight[0] > 0, new, before)

    def lost(self) -> None:
        """Forget all values: an unknown value was written to an unknown place."""
        self.known.clear()
        self.known[None] = UNKNOWN

    def _at(self, transforms: Sequence[Any]) -> tuple[int, ...] | None:
        """The index of a single element that is equal at all steps; None for any other."""
        if not transforms and math.prod(self.shape) == 1:
            return (0,) * len(self.shape)
        indices = getattr(transforms[0], "indices", None) if len(transforms) == 1 else None
        if indices is None or any(getattr(index, "size", 1) != 1 for index in indices):
            return None
        starts = [np.asarray(getattr(index, "start", index)) for index in indices]
        if any(start.size != 1 or start.dtype.kind not in "iu" for start in starts):
            return None
        return tuple(int(start.reshape(())) for start in starts)


def allocated(jaxpr: Any, path: tuple[int, ...]) -> list[Buffer]:
    """The refs that `run_scoped` allocates for its function."""
    pairs = zip(scoped_names(jaxpr), (v.aval for v in jaxpr.invars), strict=True)
    return [
        (Cells if place(aval) == "smem" else Buffer).of(name, aval, (*path, n))
        for n, (name, aval) in enumerate(pairs)
    ]


def memory_space(aval: Any) -> str:
    """Memory space of a ref in lower case; the default for blocks is VMEM."""
    space = str(getattr(aval, "memory_space", None)).rsplit(".", 1)[-1].lower()
    return "vmem" if space in ("none", "default") else space


def place(aval: Any) -> str:
    """`memory_space`, but HBM for "any": arrays too large for VMEM are there."""
    space = memory_space(aval)
    return "hbm" if space == "any" else space


@lru_cache(maxsize=256)
def scoped_names(jaxpr: Any) -> list[str]:
    """The names of what `run_scoped` allocates: parameters, or `VMEM((8, 128), float32)`."""
    names = jaxpr.debug_info.arg_names or ()
    names = names if len(names) == len(jaxpr.invars) else [""] * len(jaxpr.invars)
    pairs = zip(names, (v.aval for v in jaxpr.invars), strict=True)
    return [name if name and name.isidentifier() else _form(aval) for name, aval in pairs]


def _form(aval: Any) -> str:
    """A buffer without a name, written as the argument of `run_scoped`."""
    return f"{memory_space(aval).upper()}({tuple(aval.shape)}, {aval.dtype})"


def called(ref: Any) -> str:
    """The name of a ref, or "a ref" if it has no name."""
    return getattr(ref, "name", "") or "a ref"


def at_step(value: Any, ids: Sequence[int]) -> Any:
    """The value at a step, of a value over the grid: a number, or an array of its own axes."""
    if not isinstance(value, np.ndarray) or value.ndim < len(ids):
        return value
    return value[tuple(min(i, n - 1) for i, n in zip(ids, value.shape, strict=False))]


LOOKS = 64  # reads of scalars that are kept: executions of an equation, for all steps at once


@dataclass(frozen=True)
class ScalarRead:
    """A read of a scalar: the steps that execute it, and the element in each, in a flat array.

    index: the index along each axis, by step. outside: the steps that read out of bounds.
    """

    ref: Ref
    weight: np.ndarray
    element: np.ndarray
    index: tuple[np.ndarray, ...]
    outside: np.ndarray

    @property
    def stray(self) -> np.ndarray:
        """(per grid step) bool: the step reads outside."""
        return np.asarray((self.weight > 0) & self.outside)


@dataclass(eq=False)
class Ref:
    """Scalars in SMEM: the whole array, and per axis the block's start and whether it is visible.

    `contents` is None if the data are unknown; `absent`, if given, then raises.
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
    ) -> Ref:
        """A ref to all of an array."""
        start = (np.zeros((), np.int32),) * len(shape)
        return cls(contents, start, (True,) * len(shape), absent, name=name)

    def store(self, transforms: Sequence[Any], value: Any, weight: np.ndarray) -> None:
        """Keep a number that a single grid step stores for certain; else all is unknown.

        weight: (2, *grid), of the whole grid.
        """
        contents = self.contents
        self.lost()  # until the value proves certain
        steps = np.argwhere(weight[0])
        indices = [getattr(transform, "indices", (None,)) for transform in transforms]
        if contents is None or len(steps) != 1 or weight.sum() != 2 or len(indices) > 1:
            return
        index = [getattr(entry, "start", entry) for entry in (*indices, (0,) * contents.ndim)[0]]
        if not all(isinstance(number, int | np.integer | np.ndarray) for number in (value, *index)):
            return
        new, *place = (np.asarray(at_step(number, steps[0])) for number in (value, *index))
        if (
            new.size == 1
            and len(place) == contents.ndim
            and all(number.size == 1 for number in place)
        ):
            where = tuple(int(number.reshape(())) for number in place)
            if all(0 <= i < n for i, n in zip(where, contents.shape, strict=True)):
                contents = np.array(contents)  # the old array belongs to the caller
                contents[where] = new.reshape(())
            self.contents = contents

    def lost(self) -> None:
        """Forget the contents: an unknown value was written to an unknown place."""
        self.contents = None

    def load(
        self, transforms: Sequence[Any], shape: tuple[int, ...], weight: np.ndarray
    ) -> tuple[Any, ScalarRead | None]:
        """The element of every grid step, and the read to keep; weight: (2, steps of the grid)."""
        rank = weight.ndim
        if self.contents is None:
            return (UNKNOWN if self.absent is None else self.absent()), None
        indices = getattr(transforms[0], "indices", None) if len(transforms) == 1 else None
        if indices is None and not transforms and math.prod(shape) == 1:
            indices = (0,) * sum(self.visible)  # `ref[...]` of a block that is a single scalar
        if indices is None or len(indices) != sum(self.visible) or math.prod(shape) != 1:
            return UNKNOWN, None
        entries = iter(indices)
        place, parts, outside = [], [], np.array(False)
        for size, start, visible in zip(self.contents.shape, self.start, self.visible, strict=True):
            index = next(entries) if visible else 0
            index = getattr(index, "start", index)  # a slice of one element
            if not isinstance(index, int | np.integer | np.ndarray):
                return UNKNOWN, None
            flat = np.reshape(index, np.shape(index)[:rank])
            if flat.dtype.kind == "f":  # the CPU truncates it, Mosaic will refuse it
                flat = np.nan_to_num(flat, posinf=size, neginf=-1).astype(np.int64)
            outside = outside | (flat + start < 0) | (flat + start >= size)
            parts += [flat] * visible
            place.append(np.clip(flat + start, 0, max(0, size - 1)))
        # each index of an empty array is outside of it
        few = np.maximum(self.contents.shape, 1)
        contents = self.contents if self.contents.size else np.zeros(few, self.contents.dtype)
        elements = np.arange(contents.size).reshape(contents.shape)
        look = ScalarRead(self, weight, np.asarray(elements[tuple(place)]), tuple(parts), outside)
        numbers = np.asarray(contents[tuple(place)])
        lead = numbers.shape if numbers.ndim == rank else (1,) * rank
        return numbers.reshape(lead + shape), look
