"""The copies of a kernel moment by moment: what flies, what is waited for, what is computed on.

Read from the walk over the kernel, which does not run, with the rules of `hazards`. Moments are in
the kernel's own order; how long each of them takes is not known here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from puzzles._jax import is_remote
from puzzles._launch import (
    ERROR,
    UNNAMED,
    Event,
    Finding,
    Launch,
    Part,
    Ranges,
    line_of,
    overlap,
    ranges_of,
    ranges_shown,
    text_of,
)
from puzzles._rules import stuck
from puzzles._tpu.hazards import Flight, Flights, Hazard, Outside, Stuck

MOMENTS = 256  # that are followed
_COPIES = ("dma_start", "dma_wait")
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
    """What goes wrong at a moment, in the line whose text is `line`.

    kind: "hazard", "outside", "unequal" (the two ends of a copy), "stuck".
    """

    moment: int
    kind: str
    line: str
    finding: Finding

    @property
    def says(self) -> str:
        """What is wrong, and what to try."""
        return self.finding.words


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


@lru_cache(maxsize=16)  # a verdict asks several times of the same launches
def timeline(launch: Launch) -> Timeline | None:
    """What becomes of the copies that a kernel makes by hand; None if it makes none."""
    if not any(event.name in _COPIES for event in launch.log.events):
        return None
    follower = _Follower(launch)
    unknown = ""
    try:
        follower.follow()
    except _Unknown as error:
        unknown = error.args[0]
    return follower.result(unknown)


def copied(launch: Launch) -> Finding | None:
    """The first thing that is wrong with a kernel's copies by hand, as far as it is followed."""
    found = timeline(launch)
    return found.faults[0].finding if found and found.faults else None


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
        self.info: Any = None  # where the equation stands that is told about

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
        events, looks = self.launch.log.events, 0
        copied = {part[0] for event in events for part in self.ends(event)}
        for step, ids in enumerate(self.launch.program_ids.tolist()):
            self.step, self.ids, self.fresh = step, ids, True
            for event in events:
                looks += 1
                most, least = event.times(self.ids)
                if looks > _LOOKS or most > 1:
                    raise _Unknown(_TOO_LONG)
                if most != least and event.name in _COPIES:
                    raise _Unknown(
                        "Data decide which copies come next: their order is known only when the "
                        "kernel runs."
                    )
                if most:
                    self.one(event, copied)
            if self.launch.log.cut:
                raise _Unknown(_TOO_LONG)
        try:
            self.watch.nothing_left()
        except Stuck as error:
            self.moment("ends", "", fresh=True)
            self.ids, self.info = [], None
            self.wrong("stuck", self.stuck(error))

    def ends(self, event: Event) -> Sequence[Part]:
        """Source and target of a copy; nothing for another event."""
        return event.parts(self.ids)[:2] if event.name == "dma_start" else ()

    def one(self, event: Event, copied: set[Any]) -> None:
        self.info = event.equation.source_info
        text, parts = text_of(self.info), event.parts(self.ids)
        if event.name == "dma_start":
            if is_remote(event.equation):
                raise _Unknown("A copy goes to another device.")
            source, target = ((self.number(ref), there) for ref, there in parts[:2])
            semaphore = self.semaphore(parts[2])
            unequal = self.unequal(parts, text)
            if not self.size(*parts[0]) and unequal is None:
                return  # nothing moves
            self.fresh = True
            refused = self.told(
                lambda: self.watch.start(source, target, semaphore, text), starts=True
            )
            self.started(parts, text)
            if what := unequal or refused:
                self.note(len(self.moments), *what)
        elif event.name == "dma_wait":
            semaphore, size = self.semaphore(parts[2]), self.size(*parts[0])
            if not size:
                return
            self.moment("waits", text)
            if what := self.told(lambda: self.watch.wait(semaphore, size), starts=False):
                self.wrong(*what)
                raise _Unknown("The kernel never gets beyond its last wait.")
            self.landed()
        elif event.name == "work":
            self.moment("computes", text)
        elif parts[0][0] in copied:
            ref, transforms = parts[0]
            ranges, number = ranges_of(transforms), self.number(ref)
            slots = tuple(
                n for n, s in enumerate(self.slots) if s.ref == ref and overlap(s.ranges, ranges)
            )
            self.moment("computes", text, slots)
            how = "reads" if event.name == "get" else "writes"
            if what := self.told(lambda: self.watch.touch(how, number, ranges), starts=False):
                self.wrong(*what)

    def size(self, ref: Any, transforms: Sequence[Any]) -> int:
        """Bytes of a part of a buffer."""
        for index in (i for one in transforms for i in getattr(one, "indices", ())):
            if hasattr(index, "stride") and not hasattr(index.size, "__int__"):
                raise _Unknown("How much is copied is known only when the kernel runs.")
        return self.watch.size_of(self.number(ref), transforms)

    def unequal(self, parts: Sequence[Part], text: str) -> tuple[str, Finding] | None:
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
        says = (
            f"{_who(text)} takes {taken:,} bytes from {source} to {target}, which holds {room:,}:"
        )
        return "unequal", self.finding("hazard", says, f"{why}.")

    def told(self, tell: Callable[[], None], starts: bool) -> tuple[str, Finding] | None:
        """Tell the watch; what it objects to, and of which kind that is."""
        try:
            tell()
        except Hazard as error:
            return "hazard", self.hazard(error, starts)
        except Stuck as error:
            return "stuck", self.stuck(error)
        except Outside as error:
            return "outside", self.outside(error)
        return None

    @property
    def at(self) -> tuple[int, ...] | None:
        """The grid step, where there is a grid."""
        return tuple(self.ids) or None

    def finding(self, kind: str, says: str, remedy: str, operand: str | None = None) -> Finding:
        name, line = self.launch.name, line_of(self.info)
        return Finding(kind, ERROR, says, remedy, name, operand, self.at, line)

    def hazard(self, error: Hazard, starts: bool) -> Finding:
        """Who touches what while a copy is in flight; starts: it is the start of a copy."""
        text, name = text_of(self.info), self.name(error.buffer)
        names = {"name": name, "other": self.name(error.other)}
        who = f"the copy that `{text}` starts" if starts else f"`{text}`"
        at = f"At grid step {self.at}, " if self.at else ""
        says = f"{at}{who if text else 'the kernel'} "
        says += error.args[0].format(
            **{key: one or "a scoped buffer" for key, one in names.items()}
        )
        says, _, remedy = says.rpartition(". ")
        return self.finding("hazard", f"{says[0].upper()}{says[1:]}.", remedy, name or None)

    def stuck(self, error: Stuck) -> Finding:
        """What the kernel waits for in vain, or leaves behind."""
        rule, *facts = error.args
        what, remedy = stuck(rule)
        what = what.format(*facts)
        if rule == "copy never waited for" and facts[0]:
            what += f": it was started in `{facts[0]}`"
        at, text = f" at grid step {self.at}" if self.at else "", text_of(self.info)
        where = f"{at}, in `{text}`" if text else at
        return self.finding("hazard", f"The kernel {what}{where}.", remedy)

    def outside(self, error: Outside) -> Finding:
        """A copy that begins or ends where its buffer has nothing."""
        where = ", ".join(f"{a}" if b is None else f"{a}:{b}" for a, b in error.ranges)
        name, at = self.name(error.buffer), f" at grid step {self.at}" if self.at else ""
        text = text_of(self.info)
        remedy = "Check the bounds of what is copied."
        if not text:
            remedy = "In a pipeline, index maps and the grid count blocks, and not elements."
        says = (
            f"{_who(text)} reaches outside `{name}`, which has shape {error.shape}: "
            f"`{name}[{where}]`{at}."
        )
        return self.finding("out-of-bounds", says, remedy, name)

    def moment(
        self, kind: str, text: str, slots: tuple[int, ...] = (), *, fresh: bool = False
    ) -> None:
        """Add a moment, or go on with the last one: of the same kind, and nothing started since."""
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

    def wrong(self, kind: str, finding: Finding) -> None:
        self.moments[-1] = replace(self.moments[-1], wrong=True)
        self.note(len(self.moments) - 1, kind, finding)

    def note(self, moment: int, kind: str, finding: Finding) -> None:
        """Keep a finding, once for each kind and line: a loop makes it again in each round."""
        text = text_of(self.info)
        self.faults.setdefault((kind, text), Wrong(moment, kind, text, finding))

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
            self.watch.allocated(self.numbers[ref], tuple(ref.shape), ref.dtype)
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
