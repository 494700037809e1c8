"""Copies in flight, and accesses to the buffers that they may still read or write.

A copy has certainly ended when the kernel has waited for all copies started on its semaphore:
copies that share a semaphore may end in any order, and a wait counts their bytes only.
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
    """A part of a buffer; `ranges` is None if the part is unknown."""

    buffer: Any
    ranges: Ranges | None

    @property
    def part(self) -> str:
        """`[0, 64:128]`; "" for the whole buffer."""
        return "[?]" if self.ranges is None else ranges_shown(self.ranges, self.buffer.shape)

    @property
    def in_full(self) -> str:
        """`0:64, 3`, with the whole axes."""
        return ", ".join(f"{a}" if index else f"{a}:{b}" for a, b, index in self.ranges or ())

    def __str__(self) -> str:
        return f"{self.buffer.name}{self.part}"

    @property
    def beyond(self) -> bool:
        """True if the part reaches outside the buffer."""
        shape = self.buffer.shape
        if self.ranges is None or len(self.ranges) != len(shape):
            return False
        not_empty = all(a < b for a, b, _ in self.ranges)  # a part of no elements is nowhere
        return not_empty and any(
            a < 0 or b > n for (a, b, _), n in zip(self.ranges, shape, strict=True)
        )

    def meets(self, place: Place) -> bool:
        """Return True if two places certainly share an element."""
        return self.buffer == place.buffer and overlap(self.ranges, place.ranges)


@dataclass(frozen=True, eq=False)
class View:
    """A part of a buffer during a run, and a function that returns its name."""

    array: np.ndarray
    name: Callable[[], str]

    def __str__(self) -> str:
        return self.name()

    def meets(self, view: View) -> bool:
        """Return True if two views share an element."""
        return np.shares_memory(self.array, view.array)


@dataclass(frozen=True, eq=False)
class Flight:
    """A copy of `size` bytes in flight, and the line that started it.

    source, target: two Places in a kernel that does not run, or two Views in a run.
    """

    source: Any
    target: Any
    semaphore: Hashable  # signalled at its end
    size: int
    line: str

    @property
    def harmless(self) -> bool:
        """True if a read of its target may come early: the target holds the bytes that it brings.

        Only a run tells, so without a run this is True for the copies of `emit_pipeline`, which
        writes blocks back and fetches them again. Integers of one value may be equal by chance,
        because integer arguments are zeros unless they are given: False.
        """
        source, target = (getattr(end, "array", None) for end in (self.source, self.target))
        if source is None or target is None:
            return not self.line
        proof = not np.issubdtype(source.dtype, np.integer) or len(np.unique(source)) > 1
        return proof and source.tobytes() == target.tobytes()


class Flights:
    """The copies of one launch between their starts and their waits."""

    def __init__(self) -> None:
        self.flying: list[Flight] = []  # possibly in flight, in the order of their starts
        self.landed: list[Flight] = []  # the copies that the last wait ended
        self.due: Counter[Hashable] = Counter()  # bytes or signals without a wait
        self._waited: Counter[Hashable] = Counter()  # waits since the semaphore was last at zero
        self._ended: Flight | None = None  # the copy that the last wait ended

    def start(self, flight: Flight) -> None:
        """Add a copy, unless it has no elements."""
        if flight.size:
            self.flying.append(flight)
            self.due[flight.semaphore] += flight.size

    def wait(self, semaphore: Hashable, size: int) -> str:
        """Wait for `size` bytes. Return the key of a message if the wait never ends, else ""."""
        self.landed = []
        if not size:
            return ""
        if self.due[semaphore] < size:
            return "copy_too_small" if self.due[semaphore] > 0 else "copy_never_started"
        self.due[semaphore] -= size
        self._waited[semaphore] += 1
        if not self.due[semaphore]:
            self.landed = self._on(semaphore)
        if self.landed:
            self._waited[semaphore] = 0
            self._ended = self.landed[-1]
            self.flying = [copy for copy in self.flying if copy.semaphore != semaphore]
        return ""

    def left(self) -> Flight | None:
        """A copy without a wait; None if there is none."""
        open_ends = (self._on(semaphore) for semaphore, due in self.due.items() if due > 0)
        return next((flights[-1] for flights in open_ends if flights), None)

    def forbidden(self, how: str, place: Any) -> str:
        """The reason why the kernel must not access a place ("reads", "writes"); "" if it may."""
        for flight in self.flying:
            writes = how == "writes"
            ends = {"writes_into" if writes else "reads_into": flight.target}
            if writes:
                ends["writes_out_of"] = flight.source
            for key, end in ends.items():
                if end.meets(place) and (writes or not flight.harmless):
                    line, waited = flight.line or "the kernel", self._waits(flight.semaphore)
                    return sentence(key, place=place, line=line, waited=waited)
        return ""

    def _on(self, semaphore: Hashable) -> list[Flight]:
        return [copy for copy in self.flying if copy.semaphore == semaphore]

    def _waits(self, semaphore: Hashable) -> str:
        """A clause about the waits that came instead of this semaphore's."""
        if self._waited[semaphore]:
            count = len(self._on(semaphore))
            return sentence("waited_for_less" if count == 1 else "waited_for_any", count=count)
        target = str(self._ended.target) if self._ended else "("  # "VMEM((…": a pipeline's own slot
        return "" if "(" in target else sentence("waited_for_another", target=target)
