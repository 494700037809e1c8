"""Copies in flight, and who touches a buffer that one of them may still read or write.

A copy is known to be over when all that was started on its semaphore has been waited for: copies
that share one may end in any order, and a wait counts bytes, whosesoever they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._launch import Ranges, overlap, ranges_of, ranges_shown


class Hazard(Exception):
    """An access that a copy in flight forbids; `args[0]` says which, `buffer` is touched."""

    def __init__(self, buffer: int, says: str, other: int | None = None) -> None:
        super().__init__(says)
        self.buffer, self.other = buffer, other  # `{name}` and `{other}` in what it says


class Outside(Exception):
    """A copy is started from or to where its buffer has nothing."""

    def __init__(self, buffer: int, ranges: Ranges, shape: tuple[int, ...]) -> None:
        super().__init__(ranges, shape)
        self.buffer, self.shape = buffer, shape
        self.ranges = tuple((a, None if index else b) for a, b, index in ranges)


class Stuck(Exception):
    """A semaphore or copy that is waited for in vain, or left behind; `args` say which, and how."""


Place = tuple[int, Sequence[Any]]  # a buffer, and the transforms that name a part of it


@dataclass(frozen=True)
class End:
    """A part of a buffer at one end of a copy, and the semaphore that tells when it is free."""

    buffer: int
    ranges: Ranges | None  # None: not known
    semaphore: int


@dataclass(frozen=True, eq=False)
class Flight:
    """A copy that is under way: both ends, and the line that started it."""

    source: End
    target: End
    line: str

    @property
    def semaphore(self) -> int:
        """What tells of its end."""
        return self.target.semaphore


_WORDS = {
    ("reads", "target"): (
        "and the copy into it, started in `{line}`, has not been waited for. On a TPU the old "
        "numbers may still be there, or a part of the new ones.{shared} Wait for that copy first."
    ),
    ("writes", "target"): (
        "and the copy into it, started in `{line}`, has not been waited for: on a TPU it may land "
        "on top of what is written now.{shared} Wait for that copy first."
    ),
    ("writes", "source"): (
        "and the copy out of it, started in `{line}`, has not been waited for: on a TPU it may "
        "carry away the new numbers.{shared} Wait for that copy first."
    ),
}


class Flights:
    """The copies of one launch between their start and the wait that tells of their end."""

    def __init__(self) -> None:
        self._forms: dict[int, tuple[tuple[int, ...], Any]] = {}
        self._flights: list[Flight] = []
        self._due: Counter[int] = Counter()  # bytes started and not yet waited for, by semaphore
        self._waited: Counter[int] = Counter()  # waits since the semaphore was last at zero
        self._ended: Flight | None = None  # the last copy that was waited for

    def allocated(self, buffer: int, shape: tuple[int, ...], dtype: Any) -> None:
        """A buffer of this shape and dtype."""
        self._forms[buffer] = shape, np.dtype(dtype)

    @property
    def flying(self) -> tuple[Flight, ...]:
        """The copies that are in flight, or may be, in the order of their starts."""
        return tuple(self._flights)

    def form(self, buffer: int) -> tuple[tuple[int, ...], Any]:
        """Shape and dtype of a buffer."""
        return self._forms[buffer]

    def start(self, source: Place, target: Place, semaphore: int, line: str) -> None:
        """A copy starts; raises `Hazard` and `Outside`, and the copy is in flight all the same."""
        ends = [End(buffer, ranges_of(there), semaphore) for buffer, there in (source, target)]
        try:
            for how, end in zip(("reads", "writes"), ends, strict=True):
                self._inside(end.buffer, end.ranges)
                self.touch(how, end.buffer, end.ranges)
        finally:
            self._flights.append(Flight(ends[0], ends[1], line))
            self._due[semaphore] += self.size_of(*source)

    def wait(self, semaphore: int, size: int) -> None:
        """A wait for so many bytes; raises `Stuck` where nothing will ever end it."""
        due = self._due[semaphore]
        if due <= 0:
            raise Stuck("copy never started")
        if size > due:
            raise Stuck("copy too small", f"{size:,}", f"{due:,}")
        self._due[semaphore] -= size
        self._waited[semaphore] += 1
        if self._due[semaphore] == 0:
            self._waited[semaphore] = 0
            self._ended = self._on(semaphore)[-1]
            self._flights = [one for one in self._flights if one.semaphore != semaphore]

    def nothing_left(self) -> None:
        """At the end of the launch; raises `Stuck`."""
        for semaphore, due in self._due.items():
            if due > 0:
                raise Stuck("copy never waited for", self._on(semaphore)[-1].line)

    def touch(self, how: str, buffer: int, ranges: Ranges | None) -> None:
        """The kernel "reads" or "writes" a part of a buffer; raises `Hazard`."""
        for flight in self._flights:
            ends = {"target": flight.target}
            if how != "reads":
                ends["source"] = flight.source
            for role, end in ends.items():
                if end.buffer == buffer and overlap(end.ranges, ranges):
                    other = self._ended.target.buffer if self._ended else None
                    raise Hazard(buffer, self._says(how, role, flight, end, ranges), other)

    def _on(self, semaphore: int) -> list[Flight]:
        return [one for one in self._flights if one.semaphore == semaphore]

    def _says(self, how: str, role: str, flight: Flight, end: End, ranges: Any) -> str:
        """`reads` / the place / why not; the place is filled in by who knows the names."""
        shared = ""
        if self._waited[end.semaphore]:
            count = len(self._on(end.semaphore))
            shared = (
                f" There was a wait on its semaphore, but {count} copies were in flight on it, "
                "and any of them may have ended that wait: give each its own, or wait for the "
                "bytes of all."
                if count > 1
                else " There was a wait on its semaphore, but for fewer bytes than it brings."
            )
        elif self._ended is not None:
            last = self._ended.target
            piece = ranges_shown(last.ranges, self._forms[last.buffer][0])
            shared = f" The last wait was for a copy into `{{other}}{piece}`."
        started = (flight.line or "the kernel").replace("{", "{{").replace("}", "}}")
        why = _WORDS[how, role].format(line=started, shared=shared)
        shape = self._forms.get(end.buffer, ((), None))[0]
        return f"{how} `{{name}}{ranges_shown(ranges, shape)}`, {why}"

    def _inside(self, buffer: int, ranges: Ranges | None) -> None:
        shape = self._forms.get(buffer, ((), None))[0]
        if ranges is None or len(ranges) != len(shape):
            return
        if any(a < 0 or b > n for (a, b, _), n in zip(ranges, shape, strict=True)):
            raise Outside(buffer, ranges, shape)

    def size_of(self, buffer: int, transforms: Sequence[Any]) -> int:
        """Bytes of a part of a buffer."""
        shape, dtype = self._forms.get(buffer, ((), np.dtype(np.int8)))
        size: tuple[int, ...] = shape
        for transform in transforms:
            dtype = getattr(transform, "dtype", dtype)
            if (indices := getattr(transform, "indices", None)) is not None:
                size = tuple(int(i.size) for i in indices if hasattr(i, "stride"))
            else:
                size = tuple(getattr(transform, "shape", size))
        return math.prod(size) * np.dtype(dtype).itemsize
