"""Copies in flight, and who touches a buffer that one of them may still read or write.

A copy is known to be over when all that was started on its semaphore has been waited for: copies
that share one may end in any order, and a wait counts bytes, whosesoever they are.
"""

from __future__ import annotations

import linecache
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._jax import user_frame
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


@dataclass(frozen=True)
class End:
    """A part of a buffer at one end of a copy, and the semaphore that tells when it is free."""

    device: int
    buffer: int
    ranges: Ranges | None  # None: not known
    semaphore: tuple[int, int]  # its device, too

    def at(self, device: int, buffer: int) -> bool:
        """Whether it is in this buffer of this device."""
        return (self.device, self.buffer) == (device, buffer)


@dataclass(frozen=True, eq=False)
class Flight:
    """A copy that is under way: both ends, and the line that started it."""

    source: End
    target: End | None  # None: on another device
    line: str


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
    ("frees", "target"): (
        "and the copy into it, started in `{line}`, has not been waited for.{shared} Wait for it "
        "inside the scope."
    ),
    ("frees", "source"): (
        "and the copy out of it, started in `{line}`, has not been waited for.{shared} Wait for "
        "it inside the scope."
    ),
}
_TOUCH = {
    "get": "reads",
    "store": "writes",
    "swap": "writes",
    "_deallocate_buffer": "frees",
}


# The simulator's callbacks that say what is copied, waited for and touched.
WATCHED = frozenset({"dma_start", "dma_wait", "semaphore_signal", "semaphore_wait", *_TOUCH})


class Flights:
    """The copies of one launch between their start and the wait that tells of their end."""

    def __init__(self) -> None:
        self._forms: dict[int, tuple[tuple[int, ...], Any]] = {}
        self._flights: list[Flight] = []
        self._due: Counter[tuple[int, int]] = (
            Counter()
        )  # bytes started and not yet waited for, by semaphore
        self._waited: Counter[tuple[int, int]] = (
            Counter()
        )  # waits since the semaphore was last at zero
        self._signals: Counter[tuple[int, int]] = Counter()
        self._ended: Flight | None = None  # the last copy that was waited for

    def allocated(self, buffer: int, contents: Any) -> None:
        """A buffer of the shape and dtype of `contents`."""
        self._forms[buffer] = tuple(np.shape(contents)), np.asarray(contents).dtype

    @property
    def flying(self) -> tuple[Flight, ...]:
        """The copies that are in flight, or may be, in the order of their starts."""
        return tuple(self._flights)

    def form(self, buffer: int) -> tuple[tuple[int, ...], Any]:
        """Shape and dtype of a buffer."""
        return self._forms[buffer]

    def seen(self, name: str, given: Mapping[str, Any]) -> None:
        """Before the simulator's callback `name` runs.

        Raises `Stuck` for a wait that nothing will ever end, `Hazard` and `Outside`.
        """
        device = int(given.get("device_id") or 0)
        if name == "dma_start":
            self._start(given, device)
        elif name == "dma_wait":
            self._wait((device, int(given["sem_id"])), int(given["size"]))
        elif name == "semaphore_signal":
            target = given.get("target_device_id")
            there = device if target is None else int(target)
            self._signals[there, int(given["sem_id"])] += int(given["inc"])
        elif name == "semaphore_wait":
            semaphore = device, int(given["sem_id"])
            self._signals[semaphore] -= int(given["value"])
            if self._signals[semaphore] + self._due[semaphore] < 0:
                raise Stuck("semaphore never signalled")
        elif name in _TOUCH and self._flights:
            touched = ranges_of(given.get("transforms", ()))
            buffer, how = int(given["buffer_id"]), _TOUCH[name]
            if how == "reads" and given.get("source_info") is None:
                self._fetched(device, buffer, touched)
            self._touch(how, device, buffer, touched)

    def _fetched(self, device: int, buffer: int, ranges: Ranges | None) -> None:
        """No line of the kernel reads this, but who carries its results away after it."""
        for flight in self._flights:
            end = flight.target
            if end and end.at(device, buffer) and overlap(end.ranges, ranges):
                raise Stuck("copy never waited for", flight.line)

    def nothing_left(self) -> None:
        """At the end of the launch; raises `Stuck`."""
        for semaphore, due in self._due.items():
            if due > 0:
                ends = (e for f in self._flights for e in (f.source, f.target) if e)
                if any(end.semaphore == semaphore for end in ends):
                    raise Stuck("copy never waited for", self._starter(semaphore))
                raise Stuck("copy never waited for")
        if any(n > 0 for n in self._signals.values()):
            raise Stuck("semaphore left signalled")

    def _starter(self, semaphore: tuple[int, int]) -> str:
        """The line that started the last copy on a semaphore."""
        mine = (f for f in reversed(self._flights) if (f.target or f.source).semaphore == semaphore)
        return next((f.line for f in mine), "")

    def _start(self, given: Mapping[str, Any], device: int) -> None:
        source, target = int(given["src_id"]), int(given["dst_id"])
        here, there = ranges_of(given["src_transforms"]), ranges_of(given["dst_transforms"])
        to, sent = given.get("dst_device_id"), given.get("src_sem_id")
        goal = device if to is None else int(to)
        signals, remote = (goal, int(given["dst_sem_id"])), goal != device
        size = self.size_of(source, given["src_transforms"])
        leaves = signals if sent is None else (device, int(sent))
        end = End(device, source, here, leaves)
        arrives = None if remote else End(device, target, there, signals)
        try:
            self._inside(source, here)
            self._touch("reads", device, source, here)
            if not remote:
                self._inside(target, there)
                self._touch("writes", device, target, there)
        finally:  # who goes on after an error finds the copy in flight
            self._flights.append(Flight(end, arrives, line(given.get("source_info"))))
            for semaphore in {end.semaphore, signals}:
                self._due[semaphore] += size

    def _wait(self, semaphore: tuple[int, int], size: int) -> None:
        due = self._due[semaphore] + self._signals[semaphore]
        if due <= 0:
            raise Stuck("copy never started")
        if size > due:
            raise Stuck("copy too small", f"{size:,}", f"{due:,}")
        self._due[semaphore] -= size
        self._waited[semaphore] += 1
        if self._due[semaphore] <= 0:
            self._waited[semaphore] = 0
            left = list(self._without(semaphore))
            over = [f for f in self._flights if f not in left and f.target is not None]
            self._ended = over[-1] if over else self._ended
            self._flights = left

    def _without(self, semaphore: tuple[int, int]) -> Iterator[Flight]:
        """The flights that are not over when a semaphore is at zero."""
        for flight in self._flights:
            source = flight.source.semaphore == semaphore
            target = flight.target is None or flight.target.semaphore == semaphore
            if not (source and target):
                yield flight

    def _touch(self, how: str, device: int, buffer: int, ranges: Ranges | None) -> None:
        for flight in self._flights:
            ends = {"target": flight.target}
            if how != "reads":
                ends["source"] = flight.source
            for role, end in ends.items():
                if end is None or not end.at(device, buffer):
                    continue
                if how == "frees" or overlap(end.ranges, ranges):
                    says = self._says(how, role, flight, end, ranges)
                    ended = self._ended
                    other = ended.target.buffer if ended and ended.target else None
                    raise Hazard(buffer, says, other)

    def _says(self, how: str, role: str, flight: Flight, end: End, ranges: Any) -> str:
        """`reads` / the place / why not; the place is filled in by who knows the names."""
        shared = ""
        if self._waited[end.semaphore]:
            mine = (f for f in self._flights if (f.target or f.source).semaphore == end.semaphore)
            count = sum(1 for _ in mine)
            shared = (
                f" There was a wait on its semaphore, but {count} copies were in flight on it, "
                "and any of them may have ended that wait: give each its own, or wait for the "
                "bytes of all."
                if count > 1
                else " There was a wait on its semaphore, but for fewer bytes than it brings."
            )
        elif self._ended is not None and (last := self._ended.target):
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


def line(info: Any) -> str:
    """The learner's line at which an equation was traced, stripped; empty if it is not known."""
    frame = None if info is None else user_frame(info)
    return "" if frame is None else linecache.getline(frame.file_name, frame.start_line).strip()
