"""The timeline of a kernel's copies: copies in flight, waits, and computation.

It follows the events of the abstract evaluation, or a run, with the rules of `Flights`. Moments are
in the kernel's own order; their durations are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from jax.core import ShapedArray

from puzzles._equations import is_remote
from puzzles._jax import JaxprEqn, made_by_a_pipeline
from puzzles._launch.copies import bytes_of
from puzzles._launch.copies_in_flight import Flight, Flights, Place
from puzzles._launch.events import COPIES, Event, Part
from puzzles._launch.finding import Finding, happens, line_of, text_of, told, when
from puzzles._launch.launch import Launch
from puzzles._launch.log import work
from puzzles._launch.slices import in_last_tile, ranges_of
from puzzles._program import FUEL
from puzzles._rules import sentence

MOMENTS = 256  # followed at most
_NUMBERS = 8  # of a prefetched array that a sentence names
_EVENTS = dict.fromkeys(("get", "masked_load"), "get") | {name: name for name in COPIES}
_EVENTS |= dict.fromkeys(("swap", "masked_swap", "addupdate"), "swap")
_ONCE = np.ones(2, np.int64)  # the weight of an event in a run
_KINDS = {"touched_too_early": "hazard"} | dict.fromkeys(
    ("copy_outside", "copy_of_a_pipeline_outside", "no_such_semaphore"), "outside"
)
_KINDS |= dict.fromkeys(("ends_of_one_type", "ends_of_two_types"), "unequal")


@dataclass(frozen=True)
class Slot:
    """A part of a buffer that is the source or the target of copies."""

    name: str  # of the buffer, as it is shown
    place: Place


@dataclass(frozen=True)
class CopySpan:
    """A copy in flight from the moment `start` up to `end`, not included; None: it never ends.

    `other` names the part of a buffer at its other end.
    """

    slot: int
    other: str
    inward: bool
    start: int
    end: int | None


@dataclass(frozen=True)
class Phase:
    """A phase between two starts of copies: the kernel "waits", "computes", or "ends".

    The kernel accesses `slots`; if the phase is `wrong`, one of these accesses is too early.
    """

    step: int
    kind: str
    line: str
    slots: tuple[int, ...] = ()
    wrong: bool = False


@dataclass(frozen=True)
class CopyFault:
    """A fault at a moment, in the line with the text `line`.

    kind: "hazard", "outside", "unequal" (the two ends of a copy), "stuck".
    """

    moment: int
    kind: str
    line: str
    finding: Finding

    @property
    def says(self) -> str:
        """The fault and its remedy, in words."""
        return self.finding.words


@dataclass(frozen=True)
class Timeline:
    """Copies and phases of a kernel; if it ends early, `unknown` gives the reason, else "".

    run: the data of the run that was followed, in words; "" for an abstract evaluation.
    """

    slots: tuple[Slot, ...]
    trips: tuple[CopySpan, ...]
    moments: tuple[Phase, ...]
    faults: tuple[CopyFault, ...]
    unknown: str
    run: str = ""

    def flying(self, moment: int) -> tuple[CopySpan, ...]:
        """The copies in flight at a moment."""
        begun = (trip for trip in self.trips if trip.start <= moment)
        return tuple(trip for trip in begun if trip.end is None or moment < trip.end)

    @property
    def overlap(self) -> tuple[int, int]:
        """The number of moments of computation, and of those with a copy in flight."""
        computing = [n for n, moment in enumerate(self.moments) if moment.kind == "computes"]
        return len(computing), sum(1 for n in computing if self.flying(n))


class _UnknownError(Exception):
    """The timeline ends here; `args[0]` is the key of the sentence with the reason."""


@lru_cache(maxsize=16)  # a verdict needs it several times for a launch
def timeline(launch: Launch) -> Timeline | None:
    """The timeline of the copies that a kernel makes by hand; None if it makes none."""
    if not any(event.name in COPIES for event in launch.log.events):
        return None
    follower = Follower(launch)
    try:
        follower.follow()
    except _UnknownError as error:
        follower.unknown = sentence(error.args[0], most=MOMENTS)
    return follower.result()


def faults_of_copies(launch: Launch) -> tuple[CopyFault, ...]:
    """The faults of the copies that a kernel makes by hand, as far as it is followed."""
    drawn = timeline(launch)
    return drawn.faults if drawn else ()


def copied(launch: Launch) -> Finding | None:
    """The first fault of the copies that a kernel makes by hand, as far as it is followed."""
    faults = faults_of_copies(launch)
    return faults[0].finding if faults else None


class Follower:
    """Replays events on `Flights`, and records the copies in flight.

    `follow` replays the events of the abstract evaluation; a run calls `enter`, `sees` and `ends`.
    """

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.flights = Flights()
        self.slots: list[Slot] = []
        self.trips: list[CopySpan] = []
        self.moments: list[Phase] = []
        self.faults: dict[tuple[str, str], CopyFault] = {}  # by their words' name, and the line
        self.under_way: dict[Flight, int] = {}  # the places of their trips
        self.fresh = True  # the next event begins a new moment
        self.certain = True  # the current event happens whatever the data are
        self.step, self.ids = 0, [0] * len(launch.grid)
        self.info: Any = None  # the source of the current equation
        self.copied: set[Any] = set()  # refs that are the source or the target of copies
        self.unknown = ""

    def result(self, run: str = "") -> Timeline:
        """The timeline, with the slots of a buffer next to each other."""
        refs = list(dict.fromkeys(slot.place.buffer for slot in self.slots))
        places = [slot.place for slot in self.slots]
        order = sorted(
            range(len(places)),
            key=lambda n: (refs.index(places[n].buffer), places[n].ranges or ()),
        )
        place = {n: at for at, n in enumerate(order)}
        moments = tuple(
            replace(moment, slots=tuple(sorted(place[n] for n in moment.slots)))
            for moment in self.moments
        )
        trips = tuple(
            replace(trip, slot=place[trip.slot])
            for trip in self.trips
            if trip.start < len(self.moments)
        )
        faults = tuple(sorted(self.faults.values(), key=lambda fault: fault.moment))
        slots = tuple(self.slots[n] for n in order)
        return Timeline(slots, trips, moments, faults, self.unknown, run)

    def enter(self, step: int) -> None:
        """Begin a grid step."""
        self.step, self.ids, self.fresh = step, self.launch.program_ids[step].tolist(), True
        self.flights.forget()

    def sees(self, equation: JaxprEqn, values: Sequence[Any]) -> None:
        """Follow an equation before a run executes it; its refs are `Buffer`s."""
        names = ["work"] * bool(work(equation)[0]) + [_EVENTS.get(equation.primitive.name, "")]
        for event in (Event(name, equation, tuple(values), _ONCE) for name in names if name):
            if self.unknown:
                return
            try:
                self.handle(event, event.parts(()))
            except _UnknownError as error:
                self.unknown = sentence(error.args[0], most=MOMENTS)

    def data(self) -> str:
        """The short prefetched arrays, in words."""
        pairs = zip(self.launch.scalars, self.launch.scalar_values, strict=True)
        short = [(o.name, x) for o, x in pairs if x is not None and np.size(x) <= _NUMBERS]
        listed = ", ".join(f"{name} = {np.asarray(x).tolist()}" for name, x in short)
        return listed or "these arguments"

    def follow(self) -> None:
        events, looks = self.launch.log.events, 0
        starts = [event for event in events if event.name == "dma_start"]
        self.copied = {ref for event in starts for ref, _ in event.parts(self.ids)[:2]}
        for step in range(self.launch.steps):
            self.enter(step)
            for event in events:
                looks += 1
                most, least = event.times(self.ids)
                if looks > FUEL or most > 1:
                    raise _UnknownError("goes_on_for_longer")
                if most != least and event.name in COPIES:
                    raise _UnknownError("data_decide_the_copies")
                if most:
                    self.certain = most == least
                    self.handle(event, event.parts(self.ids))
            if self.launch.log.cut:
                raise _UnknownError("goes_on_for_longer")
        self.ends()

    def ends(self) -> None:
        """Note a copy that nothing has waited for."""
        if (left := self.flights.left()) is not None:
            self.fresh, self.ids, self.info = True, [], None
            self.moment("ends", "")
            started = f": it was started in `{left.line}`" if left.line else ""
            self.wrong("copy_never_waited_for", then=started)

    def handle(self, event: Event, parts: Sequence[Part]) -> None:
        self.info = event.equation.source_info
        text = text_of(self.info)
        avals = [v.aval for v in event.equation.invars] if event.name in COPIES else []
        if any(isinstance(aval, ShapedArray) and aval.shape for aval in avals):
            raise _UnknownError("size_unknown")  # an array of indices
        if event.name == "dma_start":
            if is_remote(event.equation):
                raise _UnknownError("copied_to_another_device")
            self.copied |= {ref for ref, _ in parts[:2]}
            self.start(parts, text)
        elif event.name == "dma_wait":
            semaphore, size = _semaphore(parts[2]), _size(parts[0])
            self.moment("waits", text)
            if semaphore.beyond:
                self.wrong("no_such_semaphore", **_no_such(semaphore))
                raise _UnknownError("never_beyond_a_wait")
            if endless := self.flights.wait(semaphore, size):
                self.wrong(endless, wanted=size, due=self.flights.due[semaphore])
                raise _UnknownError("never_beyond_a_wait")
            self.landed()
        elif event.name == "work":
            self.moment("computes", text)
        elif parts[0][0] in self.copied:
            place = _place(parts[0])
            touched = (n for n, slot in enumerate(self.slots) if slot.place.meets(place))
            self.moment("computes", text, tuple(touched))
            how = "reads" if event.name == "get" else "writes"
            if why := self.flights.forbidden(how, place):
                self.wrong("touched_too_early", **self.early(f"`{text}`", why, place))
            if how == "writes" and self.certain:
                self.flights.changed(place)

    def start(self, parts: Sequence[Part], text: str) -> None:
        """Start a copy, even a faulty copy, and note its first fault."""
        source, target = map(_place, parts[:2])
        semaphore = _semaphore(parts[2])
        taken, room = map(_size, parts[:2])
        if not taken and not room:
            return  # nothing moves
        who = f"The copy that `{text}` starts" if text else "A copy"
        flight = Flight(source, target, semaphore, taken, text)
        refused: list[tuple[str, dict[str, Any]]] = []
        if semaphore.beyond:
            refused.append(("no_such_semaphore", _no_such(semaphore)))
        if taken != room:
            here, there = (np.dtype(ref.dtype) for ref, _ in parts[:2])
            words = "ends_of_one_type" if here == there else "ends_of_two_types"
            ends = dict(source=source, target=target, taken=taken, room=room)
            refused.append((words, dict(who=who, here=here, there=there, **ends)))
        for how, place in (("reads", source), ("writes", target)):
            ref, piped = place.buffer, made_by_a_pipeline(self.info)
            if place.beyond and not (piped and in_last_tile(place.ranges, ref)):
                words = "copy_of_a_pipeline_outside" if piped else "copy_outside"
                sides = zip(map(int, ref.shape), place.ranges or (), strict=False)
                axes = [a for a, (n, (i, end, _)) in enumerate(sides) if 0 < n <= min(i, end - i)]
                remedy = sentence("only_block", axis=axes[0]) if axes else ""
                where = dict(operand=ref.name, part=place.in_full, shape=ref.shape, only=remedy)
                refused.append((words, dict(kind="out-of-bounds", who=who, **where)))
            if why := self.flights.forbidden(how, place, flight):
                starts = f"the copy that `{text}` starts"
                refused.append(("touched_too_early", self.early(starts, why, place)))
        self.fresh = True
        self.flights.start(flight)
        self.started(flight)
        if refused:
            words, facts = refused[0]
            self.note(len(self.moments), words, **facts)

    def early(self, who: str, why: str, place: Place) -> dict[str, Any]:
        """The facts of an access that comes too early, while a copy is in flight."""
        says = happens(self.at, who if text_of(self.info) else "the kernel", why)
        return dict(says=says, operand=place.buffer.name)

    @property
    def at(self) -> tuple[int, ...] | None:
        """The program ids of the grid step; None without a grid, or after the last step."""
        return self.launch.at(self.step) if self.ids else None

    def moment(self, kind: str, text: str, slots: tuple[int, ...] = ()) -> None:
        """Add a moment, or extend the last moment if its kind is equal and no copy has started."""
        if not self.fresh and self.moments[-1].kind == kind:
            last = self.moments[-1]
            both = tuple(dict.fromkeys((*last.slots, *slots)))
            text = last.line if last.slots or not slots else text  # a slot's line says most
            self.moments[-1] = replace(last, slots=both, line=text)
            return
        if len(self.moments) == MOMENTS:
            raise _UnknownError("only_the_first_moments")
        self.moments.append(Phase(self.step, kind, text, slots))
        self.fresh = False

    def wrong(self, words: str, **facts: Any) -> None:
        self.moments[-1] = replace(self.moments[-1], wrong=True)
        self.note(len(self.moments) - 1, words, **facts)

    def note(self, moment: int, words: str, kind: str = "hazard", **facts: Any) -> None:
        """Keep a fault, once for each line: a loop repeats it in each round."""
        text = text_of(self.info)
        line = line_of(self.info) or self.launch.line
        where = dict(launch=self.launch.name, step=self.at, line=line)
        facts |= dict(when=when(self.at), where=when(self.at, text))
        fault = CopyFault(
            moment, _KINDS.get(words, "stuck"), text, told(kind, words, **where, **facts)
        )
        self.faults.setdefault((words, text), fault)

    def started(self, flight: Flight) -> None:
        """Add the span of a copy to the row of its end in the core; if both are, of its target."""
        source, target = flight.source, flight.target
        inward = not (_far(target) and not _far(source))
        own, far = (target, source) if inward else (source, target)
        name = own.buffer.name  # a buffer that nobody has named is that of an array
        slot = Slot(f"buffer of {far.buffer.name}" if not name.isidentifier() else name, own)
        if slot not in self.slots:
            self.slots.append(slot)
        row, now = self.slots.index(slot), len(self.moments)
        self.under_way[flight] = len(self.trips)
        self.trips.append(CopySpan(row, str(far), inward, now, None))

    def landed(self) -> None:
        """End the spans of copies that have landed, at this moment."""
        for flight in self.flights.landed:
            place = self.under_way[flight]
            self.trips[place] = replace(self.trips[place], end=len(self.moments))


def _place(part: Part) -> Place:
    ref, transforms = part
    if not hasattr(ref, "dtype"):
        raise _UnknownError("buffers_unknown")
    return Place(ref, ranges_of(transforms))


def _size(part: Part) -> int:
    """Bytes of a part of a buffer."""
    size = bytes_of(_place(part).buffer, part[1])
    if size is None:
        raise _UnknownError("size_unknown")
    return size


def _semaphore(part: Part) -> Place:
    place = _place(part)  # signals to a REGULAR semaphore are not followed
    if place.ranges is None or "dma" not in str(place.buffer.dtype):
        raise _UnknownError("semaphore_unknown")
    return place


def _no_such(semaphore: Place) -> dict[str, Any]:
    """The facts of a semaphore index that is out of bounds."""
    ref = semaphore.buffer
    facts = dict(name=ref.name, ref=f"`{ref.name}`", part=semaphore.in_full, shape=ref.shape)
    return dict(kind="out-of-bounds", operand=ref.name, **facts)


def _far(place: Place) -> bool:
    return getattr(place.buffer, "space", "") == "hbm"
