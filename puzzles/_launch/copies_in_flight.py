"""Copies in flight, and who touches a buffer that one of them may still read or write.

A copy is known to be over when all that was started on its semaphore has been waited for: copies
that share one may end in any order, and a wait counts bytes, whosesoever they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._launch.slices import Ranges, overlap, ranges_shown
from puzzles._rules import sentence


@dataclass(frozen=True)
class Place:
    """A part of a buffer; which one, nobody knows where `ranges` is None."""

    buffer: Any
    ranges: Ranges | None

    @property
    def part(self) -> str:
        """`[0, 64:128]`, or nothing for all of the buffer."""
        return "[?]" if self.ranges is None else ranges_shown(self.ranges, self.buffer.shape)

    @property
    def in_full(self) -> str:
        """`0:64, 3`, with the axes that are taken whole."""
        return ", ".join(f"{a}" if index else f"{a}:{b}" for a, b, index in self.ranges or ())

    def __str__(self) -> str:
        return f"{self.buffer.name}{self.part}"

    @property
    def beyond(self) -> bool:
        """Whether it reaches to where the buffer has nothing."""
        shape = self.buffer.shape
        if self.ranges is None or len(self.ranges) != len(shape):
            return False
        return any(a < 0 or b > n for (a, b, _), n in zip(self.ranges, shape, strict=True))

    def meets(self, other: Place) -> bool:
        """Whether two places surely share an element."""
        return self.buffer == other.buffer and overlap(self.ranges, other.ranges)


@dataclass(frozen=True, eq=False)
class View:
    """A part of a buffer as a run has it, and what gives its name."""

    array: np.ndarray
    name: Callable[[], str]

    def __str__(self) -> str:
        return self.name()

    def meets(self, other: View) -> bool:
        """Whether two views share an element."""
        return np.shares_memory(self.array, other.array)


@dataclass(frozen=True, eq=False)
class Flight:
    """A copy of `size` bytes that is under way, and the line that started it.

    Both ends are a Place, where a kernel is followed without running it, or else a View.
    """

    source: Any
    target: Any
    semaphore: Hashable  # which tells of its end
    size: int
    line: str


class Flights:
    """The copies of one launch between their start and the wait that tells of their end."""

    def __init__(self) -> None:
        self.flying: list[Flight] = []  # or maybe: in the order of their starts
        self.landed: list[Flight] = []  # those of which the last wait told the end
        self.due: Counter[Hashable] = Counter()  # bytes, or signals, not yet waited for
        self._waited: Counter[Hashable] = Counter()  # waits since the semaphore was last at zero
        self._ended: Flight | None = None  # the last copy that was waited for

    def start(self, flight: Flight) -> None:
        """A copy starts, be it right or wrong."""
        self.flying.append(flight)
        self.due[flight.semaphore] += flight.size

    def wait(self, semaphore: Hashable, size: int) -> str:
        """A wait for so many bytes; the name of what is wrong, if it will never end."""
        if self.due[semaphore] < size:
            return "copy_too_small" if self.due[semaphore] > 0 else "copy_never_started"
        self.due[semaphore] -= size
        self._waited[semaphore] += 1
        self.landed = [] if self.due[semaphore] else self._on(semaphore)
        if self.landed:
            self._waited[semaphore] = 0
            self._ended = self.landed[-1]
            self.flying = [one for one in self.flying if one.semaphore != semaphore]
        return ""

    def left(self) -> Flight | None:
        """A copy that nobody has waited for."""
        open_ends = (self._on(semaphore) for semaphore, due in self.due.items() if due > 0)
        return next((flights[-1] for flights in open_ends if flights), None)

    def forbidden(self, how: str, place: Any) -> str:
        """Why the kernel must not do that ("reads" or "writes") to a place; "" where it may."""
        for flight in self.flying:
            writes = how == "writes"
            ends = {"writes_into" if writes else "reads_into": flight.target}
            if writes:
                ends["writes_out_of"] = flight.source
            for key, end in ends.items():
                if end.meets(place):
                    line, waited = flight.line or "the kernel", self._waits(flight.semaphore)
                    return sentence(key, place=place, line=line, waited=waited)
        return ""

    def _on(self, semaphore: Hashable) -> list[Flight]:
        return [one for one in self.flying if one.semaphore == semaphore]

    def _waits(self, semaphore: Hashable) -> str:
        """What was waited for instead."""
        if self._waited[semaphore]:
            count = len(self._on(semaphore))
            return sentence("waited_for_less" if count == 1 else "waited_for_any", count=count)
        return sentence("waited_for_another", target=self._ended.target) if self._ended else ""
