"""The copies of a kernel moment by moment: what flies, what is waited for, what is computed on.

Read from the walk over the kernel, which does not run, with the rules of `hazards`. Moments are in
the kernel's own order; how long each of them takes is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from puzzles._launch import (
    UNNAMED,
    Event,
    Launch,
    Part,
    Ranges,
    overlap,
    ranges_of,
    ranges_shown,
)
from puzzles._tpu.hazards import Flight, Flights, Hazard, Outside, Stuck, line
from puzzles._tpu.simulator_words import hazard_words, stuck_words

MOMENTS = 256  # that are followed
_LOOKS = 200_000  # at an event in a step; most may have nothing to do there
_TOO_LONG = "The kernel goes on for longer than is followed here."


@dataclass(frozen=True)
class Slot:
    """A part of a buffer that copies come to or go from: `part` is "[0]", or "" for all of it."""

    name: str
    part: str
    ref: Any
    ranges: Ranges | None


@dataclass(frozen=True)
class Trip:
    """A copy in flight from the moment `start` up to `end`, not included; None: it never ends.

    `other` is what lies at its other end.
    """

    slot: int
    other: str
    inward: bool
    start: int
    end: int | None
    line: str


@dataclass(frozen=True)
class Moment:
    """What happens between two starts of copies: the kernel "waits", "computes", or "ends".

    `slots` are touched, and if it is `wrong`, one of them must not be.
    """

    step: int
    kind: str
    line: str
    slots: tuple[int, ...] = ()
    wrong: bool = False


@dataclass(frozen=True)
class Wrong:
    """What goes wrong at a moment, in the line `line`.

    kind: "hazard", "outside", "unequal" (the two ends of a copy), "stuck".
    """

    moment: int
    kind: str
    line: str
    says: str


@dataclass(frozen=True)
class Timeline:
    """What becomes of copies; `unknown` says why it ends early, if it does."""

    slots: tuple[Slot, ...]
    trips: tuple[Trip, ...]
    moments: tuple[Moment, ...]
    faults: tuple[Wrong, ...]
    unknown: str

    def flying(self, moment: int) -> tuple[Trip, ...]:
        """The copies in flight at a moment."""
        last = len(self.moments)
        return tuple(
            t for t in self.trips if t.start <= moment < (last if t.end is None else t.end)
        )

    @property
    def overlap(self) -> tuple[int, int]:
        """At how many moments the kernel computes, and at how many of them a copy is in flight."""
        computing = [n for n, one in enumerate(self.moments) if one.kind == "computes"]
        return len(computing), sum(1 for n in computing if self.flying(n))


class _Unknown(Exception):
    """Nothing is known from here on; `args[0]` says why."""


@lru_cache(maxsize=4)  # a verdict asks several times of the same launches
def timeline(launch: Launch) -> Timeline | None:
    """What becomes of the copies that a kernel starts by hand; None if it starts none."""
    if not any(event.name == "dma_start" for event in launch.events):
        return None
    follower = _Follower(launch)
    unknown = ""
    try:
        follower.follow()
    except _Unknown as error:
        unknown = error.args[0]
    return follower.result(unknown)


class _Follower:
    """Tells the watch what happens, and writes down what is in flight."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.watch = Flights()
        self.numbers: dict[Any, int] = {}  # of buffers, for the watch
        self.semaphores: dict[tuple[Any, Ranges], int] = {}
        self.slots: list[Slot] = []
        self.trips: list[Trip] = []
        self.moments: list[Moment] = []
        self.faults: dict[tuple[str, str], Wrong] = {}  # by kind and line
        self.under_way: dict[Flight, int] = {}  # the places of their trips
        self.fresh = True  # what comes next is a new moment
        self.step, self.ids = 0, [0] * len(launch.grid)

    def result(self, unknown: str) -> Timeline:
        """All of it, with the slots of a buffer side by side."""
        refs = list(dict.fromkeys(slot.ref for slot in self.slots))
        order = sorted(
            range(len(self.slots)),
            key=lambda n: (refs.index(self.slots[n].ref), self.slots[n].ranges or ()),
        )
        place = {n: at for at, n in enumerate(order)}
        moments = tuple(
            replace(one, slots=tuple(sorted(place[n] for n in one.slots))) for one in self.moments
        )
        trips = tuple(
            replace(trip, slot=place[trip.slot])
            for trip in self.trips
            if trip.start < len(self.moments)
        )
        faults = tuple(sorted(self.faults.values(), key=lambda one: one.moment))
        return Timeline(tuple(self.slots[n] for n in order), trips, moments, faults, unknown)

    def follow(self) -> None:
        events, looks = self.launch.events, 0
        copied = {part[0] for event in events for part in self.ends(event)}
        for step, ids in enumerate(self.launch.program_ids.tolist()):
            self.step, self.ids, self.fresh = step, ids, True
            for event in events:
                looks += 1
                most, least = event.times(self.ids)
                if looks > _LOOKS or most > 1:
                    raise _Unknown(_TOO_LONG)
                if most != least and event.name in ("dma_start", "dma_wait"):
                    raise _Unknown(
                        "Data decide which copies come next: their order is known only when the "
                        "kernel runs."
                    )
                if most:
                    self.one(event, copied)
            if self.launch.cut:
                raise _Unknown(_TOO_LONG)
        try:
            self.watch.nothing_left()
        except Stuck as error:
            self.moment("ends", "", fresh=True)
            self.wrong("", ("stuck", stuck_words(error, "")))

    def ends(self, event: Event) -> Sequence[Part]:
        """Source and target of a copy; nothing for another event."""
        return event.parts(self.ids)[:2] if event.name == "dma_start" else ()

    def one(self, event: Event, copied: set[Any]) -> None:
        text, info = line(event.equation.source_info), {"source_info": event.equation.source_info}
        parts = event.parts(self.ids)
        if event.name == "dma_start":
            (source, here), (target, there), _ = parts
            given = {
                "src_id": self.number(source),
                "dst_id": self.number(target),
                "src_transforms": here,
                "dst_transforms": there,
                "dst_sem_id": self.semaphore(parts[2]),
            }
            self.fresh = True
            self.size(source, here)
            unequal, says = self.unequal(parts, text), self.told("dma_start", given | info, text)
            self.started(parts, text)
            if what := unequal or says:
                self.note(len(self.moments), text, what)
        elif event.name == "dma_wait":
            source, here = parts[0]
            size = self.size(source, here)
            self.moment("waits", text)
            says = self.told("dma_wait", {"sem_id": self.semaphore(parts[2]), "size": size}, text)
            if says:
                self.wrong(text, says)
                raise _Unknown("The kernel never gets beyond its last wait.")
            self.landed()
        elif event.name == "work":
            self.moment("computes", text)
        elif parts[0][0] in copied:
            ref, transforms = parts[0]
            ranges = ranges_of(transforms)
            slots = tuple(
                n for n, s in enumerate(self.slots) if s.ref == ref and overlap(s.ranges, ranges)
            )
            self.moment("computes", text, slots)
            given = {"buffer_id": self.number(ref), "transforms": transforms}
            name = "get" if event.name == "get" else "store"
            if says := self.told(name, given | info, text):
                self.wrong(text, says)

    def size(self, ref: Any, transforms: Sequence[Any]) -> int:
        """Bytes of a part of a buffer."""
        for index in (i for one in transforms for i in getattr(one, "indices", ())):
            if hasattr(index, "stride") and not hasattr(index.size, "__int__"):
                raise _Unknown("How much is copied is known only when the kernel runs.")
        return self.watch.size_of(self.number(ref), transforms)

    def unequal(self, parts: Sequence[Part], text: str) -> tuple[str, str] | None:
        """A copy whose ends do not hold equally much."""
        ends = parts[:2]
        source, target = (f"`{self.name(self.number(ref))}{_part(ref, t)}`" for ref, t in ends)
        taken, room = (self.size(*end) for end in ends)
        if taken == room:
            return None
        here, there = (self.watch.form(self.number(ref))[1] for ref, _ in ends)
        why = "both ends have one shape"
        if here != there:
            why = f"one end is of {here}, the other of {there}, and a copy casts nothing"
        return "unequal", (
            f"{_who(text)} takes {taken:,} bytes from {source} to {target}, which "
            f"holds {room:,}: {why}."
        )

    def told(self, name: str, given: dict[str, Any], text: str) -> tuple[str, str] | None:
        """Tell the watch; what it objects to, and of which kind that is."""
        step = tuple(self.ids) if self.launch.grid else ()
        try:
            self.watch.seen(name, given)
        except Hazard as error:
            names = {"name": self.name(error.buffer), "other": self.name(error.other)}
            return "hazard", hazard_words(error, names, text, name == "dma_start", step)
        except Stuck as error:
            at = f" at grid step {step}" if step else ""
            return "stuck", stuck_words(error, f"{at}, in `{text}`")
        except Outside as error:
            where = ", ".join(f"{a}" if b is None else f"{a}:{b}" for a, b in error.ranges)
            name = self.name(error.buffer)
            return "outside", (
                f"{_who(text)} reaches outside `{name}`, which has shape "
                f"{error.shape}: `{name}[{where}]`."
            )
        return None

    def moment(
        self, kind: str, text: str, slots: tuple[int, ...] = (), *, fresh: bool = False
    ) -> None:
        """The same moment goes on if what happens is of its kind, and nothing was started since."""
        if not (self.fresh or fresh) and self.moments[-1].kind == kind:
            last = self.moments[-1]
            both = tuple(dict.fromkeys((*last.slots, *slots)))
            text = last.line if last.slots or not slots else text  # a slot's line says most
            self.moments[-1] = replace(last, slots=both, line=text)
            return
        if len(self.moments) == MOMENTS:
            raise _Unknown(f"Only the first {MOMENTS} moments are shown.")
        self.moments.append(Moment(self.step, kind, text, slots))
        self.fresh = False

    def wrong(self, text: str, what: tuple[str, str]) -> None:
        self.moments[-1] = replace(self.moments[-1], wrong=True)
        self.note(len(self.moments) - 1, text, what)

    def note(self, moment: int, text: str, what: tuple[str, str]) -> None:
        """The same in each round is one."""
        kind, says = what
        self.faults.setdefault((kind, text), Wrong(moment, kind, text, says))

    def started(self, parts: Sequence[Part], text: str) -> None:
        """The row of a copy is its end in the core; of two, where it goes to."""
        source, target, _ = parts
        inward = not (_far(target[0]) and not _far(source[0]))
        own, other = (target, source) if inward else (source, target)
        there = self.name(self.number(other[0])) + _part(*other)
        trip = Trip(self.slot(own, other[0]), there, inward, len(self.moments), None, text)
        self.under_way[self.watch.flying[-1]] = len(self.trips)
        self.trips.append(trip)

    def landed(self) -> None:
        """What the watch no longer has in flight ends with this moment."""
        flying = set(self.watch.flying)
        for flight in [one for one in self.under_way if one not in flying]:
            place = self.under_way.pop(flight)
            self.trips[place] = replace(self.trips[place], end=len(self.moments))

    def slot(self, own: Part, other: Any) -> int:
        """The row of one end of a copy; a buffer that nobody has named is that of an array."""
        ref, transforms = own
        name = self.name(self.number(ref))
        name = f"buffer of {other.name}" if name == UNNAMED else name
        one = Slot(name, _part(*own), ref, ranges_of(transforms))
        if one not in self.slots:
            self.slots.append(one)
        return self.slots.index(one)

    def number(self, ref: Any) -> int:
        """What the watch calls a buffer."""
        if not hasattr(ref, "dtype"):
            raise _Unknown("Which buffers are copied is known only when the kernel runs.")
        if ref not in self.numbers:
            self.numbers[ref] = len(self.numbers)
            contents = np.broadcast_to(np.zeros((), ref.dtype), ref.shape)
            self.watch.allocated(self.numbers[ref], contents)
        return self.numbers[ref]

    def name(self, number: int | None) -> str:
        return next((ref.name for ref, n in self.numbers.items() if n == number), "")

    def semaphore(self, part: Part) -> int:
        """What the watch calls a semaphore."""
        ref, transforms = part
        indices = ranges_of(transforms)
        if indices is None:
            raise _Unknown("Which semaphore is used is known only when the kernel runs.")
        return self.semaphores.setdefault((ref, indices), len(self.semaphores))


def _who(text: str) -> str:
    return f"The copy that `{text}` starts" if text else "A copy"


def _far(ref: Any) -> bool:
    return getattr(ref, "space", "") == "hbm"


def _part(ref: Any, transforms: Sequence[Any]) -> str:
    ranges = ranges_of(transforms)
    return "[?]" if ranges is None else ranges_shown(ranges, ref.shape)
