"""The knowledge of devices about each other, which signals and copies carry with them.

Each device has a vector clock: for each device, the number of events that happened before, by the
signals and copies that it waited for. An access races with a copy if no clock orders them, in
whichever order the threads of a run execute.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from puzzles._launch import View

VectorClock = tuple[int, ...]


class Clocks:
    """The vector clocks of devices. An epoch of a device is a time on its own clock."""

    def __init__(self, count: int) -> None:
        self._rows = [[0] * count for _ in range(count)]

    def now(self, device: int) -> int:
        """The epoch in which a device is."""
        return self._rows[device][device]

    def tick(self, device: int) -> int:
        """Begin a device's next epoch, and return it."""
        self._rows[device][device] += 1
        return self.now(device)

    def carried(self, device: int) -> VectorClock:
        """The clock that a signal or a copy carries; the device's next events are later."""
        clock = tuple(self._rows[device])
        self.tick(device)
        return clock

    def join(self, device: int, clock: Sequence[int]) -> None:
        """Let a device know all that a clock knows."""
        self._rows[device] = [*map(max, self._rows[device], clock)]

    def knows(self, device: int, peer: int, epoch: int | None) -> bool:
        """Whether a device knows that another device has reached an epoch; False for None."""
        return epoch is not None and self._rows[device][peer] >= epoch


@dataclass(eq=False)
class Copy:
    """A copy, the devices that send and receive it, and the line that starts it.

    semaphore: the address of the one that it signals; None for a copy with a device id.
    """

    source: View
    target: View
    semaphore: int | None
    sender: int
    receiver: int
    line: str
    data: np.ndarray | None = None
    landed: bool = False

    @property
    def remote(self) -> bool:
        """Whether it goes to another device."""
        return self.sender != self.receiver

    def leave(self) -> None:
        """Read the source."""
        if self.data is None:
            self.data = self.source.array.copy()

    def land(self) -> None:
        """Write the target."""
        self.leave()
        if not self.landed:
            self.target.array[...] = self.data
            self.landed = True


@dataclass(eq=False)
class End:
    """One end of a copy, in the memory of a device; at epoch `over` the device knows of its end."""

    copy: Copy
    lands: bool
    over: int | None = None

    @property
    def view(self) -> View:
        """The place that the copy reads or writes."""
        return self.copy.target if self.lands else self.copy.source

    def happen(self) -> None:
        """Read or write the place."""
        if self.lands:
            self.copy.land()
        else:
            self.copy.leave()


@dataclass(eq=False)
class Arrival:
    """Signals of a device to a semaphore, or the bytes of a copy of which this tells the `ends`."""

    sender: int
    size: int
    clock: VectorClock
    time: float
    ends: Sequence[End] = ()


@dataclass(eq=False)
class Semaphore:
    """Arrivals at a semaphore of a device since it was last at zero, and the amount waited for.

    in_order: copies end in the order of their starts; if not, in any order. came, taken: all that
    came, by sender, and all that was waited for, also before it was last at zero.
    """

    device: int
    name: str
    barrier: bool
    in_order: bool
    arrivals: list[Arrival] = field(default_factory=list)
    waited: int = 0
    came: Counter[int] = field(default_factory=Counter)
    taken: int = 0

    @property
    def total(self) -> int:
        """The amount that has arrived."""
        return sum(arrival.size for arrival in self.arrivals)

    @property
    def value(self) -> int:
        """The amount that has arrived and was not waited for."""
        return self.total - self.waited

    @property
    def ends(self) -> list[End]:
        """The ends of all copies that signal it."""
        return [end for arrival in self.arrivals for end in arrival.ends]

    def clock(self, count: int) -> VectorClock:
        """The knowledge of the waits so far: of each of `count` devices, the least that may be.

        That is the knowledge of the arrivals which know least, as many as the waits need.
        """
        clock = [0] * count
        for peer in range(count):
            known = [(arrival.clock[peer], arrival.size) for arrival in self.arrivals]
            if not self.in_order:
                known.sort(key=lambda pair: pair[0])
            came = 0
            for epoch, size in known:
                if came < self.waited:
                    clock[peer] = max(clock[peer], epoch)
                came += size
        return tuple(clock)

    def ended(self) -> Iterator[tuple[Arrival, bool]]:
        """Yield the arrivals that the waits so far have used, and whether they needed this one.

        They need an arrival if all others together are less than the amount waited for.
        """
        came, total = 0, self.total
        for arrival in self.arrivals:
            came += arrival.size
            if came - arrival.size < self.waited:
                later = total - arrival.size
                needed = came <= self.waited if self.in_order else later < self.waited
                yield arrival, needed
