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

    def may_meet(self, place: Place) -> bool:
        """Return False if two places certainly share no element."""
        unknown = self.ranges is None or place.ranges is None
        return self.buffer == place.buffer and (unknown or self.meets(place))

    def offset_from(self, source: Place) -> Hashable | None:
        """The distance of each element from the source of its copy; None if it is unknown."""
        if self.ranges is None or source.ranges is None or len(self.ranges) != len(source.ranges):
            return None
        axes = [*zip(self.ranges, source.ranges, strict=True)]
        if any(b - a != d - c or i != j for (a, b, i), (c, d, j) in axes):
            return None  # strides, or another order of axes
        return source.buffer, *(a - c for (a, *_), (c, *_) in axes)

    @property
    def key(self) -> Hashable:
        """The same for places of the same elements; None if the part is unknown."""
        return None if self.ranges is None else (self.buffer, self.ranges)


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

    may_meet = meets

    def offset_from(self, source: View) -> Hashable | None:
        """The distance of each element from the source of its copy; None if it is not constant."""
        distance = self.key[0][0] - source.key[0][0]
        return distance if self.array.strides == source.array.strides else None

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for views of the same elements."""
        array = self.array
        return array.__array_interface__["data"], array.shape, array.strides


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


def same_bytes(first: Any, second: Any) -> bool:
    """Whether two copies bring the same bytes to the elements that both write."""
    offset = first.target.offset_from(first.source)
    return offset is not None and offset == second.target.offset_from(second.source)


def may_overlap(first: Any, second: Any) -> bool:
    """Whether two copies may be in flight to shared elements.

    They may if they bring the same bytes, and if a wait for one cannot take those of the other.
    A copy with a device id has the semaphore None: nobody needs it besides a local copy.
    """
    semaphores = {first.semaphore, second.semaphore}
    return len(semaphores) == 2 and None not in semaphores and same_bytes(first, second)


class Flights:
    """The copies of one launch between their starts and their waits."""

    def __init__(self) -> None:
        self.flying: list[Flight] = []  # possibly in flight, in the order of their starts
        self.landed: list[Flight] = []  # the copies that the last wait ended
        self.due: Counter[Hashable] = Counter()  # bytes or signals without a wait
        self._waited: Counter[Hashable] = Counter()  # waits since the semaphore was last at zero
        self._ended: Flight | None = None  # the copy that the last wait ended
        self._alike: dict[Hashable, Flight] = {}  # copies whose ends nothing has written since
        self._again: set[Flight] = set()  # copies in flight between two ends that were alike
        self.earlier: list[Flight] = []  # copies that earlier grid steps left in flight

    def start(self, flight: Flight) -> None:
        """Add a copy, unless it has no elements."""
        if not flight.size:
            return
        self.flying.append(flight)
        self.due[flight.semaphore] += flight.size
        ends = frozenset((flight.source.key, flight.target.key))
        if ends in self._alike:  # in this direction or back
            self._again.add(flight)
            return
        self.changed(flight.target)
        if None not in ends:
            self._alike[ends] = flight

    def changed(self, place: Any) -> None:
        """Note that a place is written: it no longer holds what a copy brought or took."""
        for ends, copy in [*self._alike.items()]:
            if copy.source.may_meet(place) or copy.target.may_meet(place):
                del self._alike[ends]

    def forget(self) -> None:
        """Begin a grid step: its blocks may be new ones in the same buffers."""
        self._alike, self.earlier = {}, [*self.flying]

    def wait(self, semaphore: Hashable, size: int) -> str:
        """Wait for `size` bytes. Return the key of a message if the wait never ends, else ""."""
        self.landed = []
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
            self._again.difference_update(self.landed)
        return ""

    def left(self) -> Flight | None:
        """A copy without a wait; None if there is none."""
        open_ends = (self._on(semaphore) for semaphore, due in self.due.items() if due > 0)
        return next((flights[-1] for flights in open_ends if flights), None)

    def forbidden(self, how: str, place: Any, copy: Flight | None = None) -> str:
        """The reason why the kernel must not access a place ("reads", "writes"); "" if it may.

        It may read the target of a copy that brings the bytes which are there. `emit_pipeline` does
        so when it fetches a block that it writes back unchanged. copy: the copy that accesses it.
        """
        for flight in self.flying:
            writes = how == "writes"
            ends = {"writes_into" if writes else "reads_into": flight.target}
            if writes and copy is not None and may_overlap(flight, copy):
                ends = {}
            if writes:
                ends["writes_out_of"] = flight.source
            for key, end in ends.items():
                if end.meets(place) and (writes or flight not in self._again):
                    line, waited = flight.line or "the kernel", self._waits(flight.semaphore)
                    step = (
                        sentence("earlier_time") if copy is not None and copy.line == line else ""
                    )
                    step = sentence("earlier_step") if flight in self.earlier else step
                    return sentence(key, place=place, line=line, step=step, waited=waited)
        return ""

    def _on(self, semaphore: Hashable) -> list[Flight]:
        return [copy for copy in self.flying if copy.semaphore == semaphore]

    def _waits(self, semaphore: Hashable) -> str:
        """A clause about the waits that came instead of this semaphore's."""
        if self._waited[semaphore]:
            count = len(self._on(semaphore))
            return sentence("waited_for_less" if count == 1 else "waited_for_any", count=count)
        target = str(self._ended.target) if self._ended else "("  # "VMEM((…": a pipeline's own slot
        elsewhere = self._ended is not None and self._ended.semaphore != semaphore
        words = "waited_elsewhere" if elsewhere else "waited_for_another"
        return "" if "(" in target else sentence(words, target=target)
