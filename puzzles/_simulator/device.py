"""A machine that runs one launch on one device of a mesh, and copies to the other devices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from puzzles._equations import Part, compiler_param, copy_ends, is_remote
from puzzles._jax import JaxprEqn
from puzzles._launch import View, may_overlap, memory_space, same_bytes, taken, when
from puzzles._program import COLLECTIVES, UnsupportedError, Values, equations
from puzzles._rules import sentence
from puzzles._simulator.clocks import Arrival, Copy, End, Semaphore
from puzzles._simulator.machine import Machine, signals_of
from puzzles._simulator.mesh import Access, Mesh, line_words
from puzzles._simulator.semantics import RunLog, Semantics, address
from puzzles._simulator.wire import HOP_SECONDS

_WAITS = {"signals": "device_waits_for_signals", "bytes": "device_waits_for_bytes"}
_DEVICES = ("me", "there", "sender", "device")  # facts that are the numbers of devices
_INTO = {"reads": "device_reads_into", "writes": "device_writes_into"}
_LANDS_BEFORE = {"reads": "lands_before_it_reads", "writes": "lands_before_it_writes"}


@lru_cache(maxsize=64)
def _meets_first(call: JaxprEqn) -> bool:
    """Whether a kernel copies or signals without a barrier: then the devices enter it together."""
    names = {equation.primitive.name for equation in equations(call.params["jaxpr"])}
    speaks = "dma_start" in names or "semaphore_signal" in names
    return speaks and "get_barrier_semaphore" not in names


@lru_cache(maxsize=1024)
def _in_hbm(equation: JaxprEqn) -> list[bool]:
    """Whether the source and the target of a copy are in HBM."""
    parts, _ = copy_ends(equation.params["tree"], [v.aval for v in equation.invars])
    return [memory_space(ref) in ("any", "hbm") for ref, _ in parts[:2]]


class Device(Machine):
    """One launch on one device."""

    def __init__(
        self, mesh: Mesh, number: int, nth: int, call: JaxprEqn, log: RunLog, how: Semantics
    ) -> None:
        super().__init__(call, log.launch, how, trail=log)
        self.mesh, self.number, self.nth, self.late = mesh, number, nth, how.late
        self.collective = compiler_param(call.params["compiler_params"], "collective_id")
        launch = log.launch
        operands = enumerate((*launch.inputs, *launch.outputs), len(launch.scalars))
        self.moving = {n for n, operand in operands if operand.piped and launch.steps > 1}
        self.fetched: list[End] = []  # of copies within the device
        mesh.enter(self, number, nth, _meets_first(call))

    def ends(self) -> None:
        """Do nothing: semaphores are checked after all devices have ended."""

    def wrong(
        self, equation: JaxprEqn | None, words: str, kind: str = "hazard", **facts: Any
    ) -> None:
        facts = dict(me=self.number) | facts
        devices = {key: facts[key] for key in _DEVICES if isinstance(facts.get(key), int)}
        facts |= {key: self.mesh.shape.name(device) for key, device in devices.items()}
        super().wrong(equation, words, kind, **facts)

    def there(self, equation: JaxprEqn, given: Any, words: str) -> int:
        """The number of a device by its id: a number, or all or some coordinates on the mesh."""
        if given is None:
            return self.number
        shape = self.mesh.shape
        logical = "LOGICAL" in str(equation.params.get("device_id_type"))
        flat = logical and not isinstance(given, Mapping | tuple | list)
        sizes = (shape.count,) if flat else shape.sizes
        places = shape.coordinates_of(given, self.number)
        axes, count = ", ".join(shape.axes), len(sizes)
        if len(places) != count:
            facts: dict[str, Any] = dict(given=len(places), axes=axes, count=count)
            key = "several_devices" if count == 1 else "device_id_of_other_mesh"
            self.wrong(equation, key, "out-of-bounds", **facts)
        if not all(0 <= at < size for at, size in zip(places, sizes, strict=True)):
            facts = dict(count=" × ".join(map(str, sizes)), when=when(self.ids))
            facts["order"] = sentence("order_of_axes", axes=axes) if count > 1 else ""
            facts["there"] = str((*places,) if count > 1 else places[0])
            self.wrong(equation, words, "out-of-bounds", device=self.number, **facts)
        return int(np.ravel_multi_index(places, sizes))

    def enters(self, equation: JaxprEqn, there: int, does: str) -> Machine:
        """The machine of a device; this device must know that the other one is in this launch."""
        mesh, me = self.mesh, self.number
        if there != me and not mesh.entered(me, there, self.nth):
            peers = (n for n in range(mesh.count) if n != me)
            heard = [n for n in peers if mesh.entered(me, n, self.nth)]
            words = sentence("heard_from", devices=mesh.shape.names(heard)) if heard else ""
            for semaphore in mesh.semaphores.values():
                own = semaphore.barrier and semaphore.device == me and me in semaphore.came
                words += sentence("heard_itself") if own else ""
                facts: dict[str, Any] = dict(waited=semaphore.waited, sent=semaphore.total)
                if semaphore.device == me and 0 < semaphore.waited < semaphore.total and not words:
                    facts["devices"] = mesh.shape.names(sorted(semaphore.came))
                    words = sentence("heard_some", **facts)
            self.wrong(equation, "device_not_entered", there=there, does=does, heard=words)
        return mesh.launches[self.nth][there][0]

    def part_on(self, peer: Machine, equation: JaxprEqn, part: Part, words: str) -> np.ndarray:
        """Return the part of a buffer in the memory of a device, as `Machine.part` does."""
        own = self.part(equation, *part, words)
        if peer is self:
            return own
        ref, transforms = part
        place = next((n for n, buffer in enumerate(self.buffers) if buffer is ref), None)
        if place is None:
            raise UnsupportedError("a copy to a part of memory that has no name")
        if len(peer.buffers) <= place:
            ready = lambda: len(peer.buffers) > place  # noqa: E731
            self.mesh.wait(self.number, ready, "device_waits_for_others", self)
        return taken(peer.buffers[place], transforms)

    def semaphore_of(self, device: int, array: np.ndarray, part: Part) -> Semaphore:
        """The record of a semaphore in the memory of a device."""
        mesh, at = self.mesh, (device, address(array))  # a literal is one array on all devices
        if at not in mesh.semaphores:
            barrier = mesh.is_barrier(part[0])
            name = "the barrier semaphore" if barrier else f"`{self.view(array, *part)}`"
            mesh.semaphores[at] = Semaphore(device, name, barrier, mesh.in_order)
            mesh.kept.append(array)  # else another semaphore may get its address
        return mesh.semaphores[at]

    def arrives(self, device: int, array: np.ndarray, part: Part, arrival: Arrival) -> None:
        """Add to a semaphore in the memory of a device."""
        semaphore = self.semaphore_of(device, array, part)
        semaphore.arrivals.append(arrival)
        semaphore.came[arrival.sender] += arrival.size

    def touches(
        self, equation: JaxprEqn, how: str, array: np.ndarray, ref: np.ndarray, transforms: Any,
        copy: Any = None,
    ) -> None:  # fmt: skip
        view, mesh, me = self.view(array, ref, transforms), self.mesh, self.number
        self.meets_copies(equation, how, view)
        if not any(n in self.moving and buffer is ref for n, buffer in enumerate(self.buffers)):
            access = Access(how, view, mesh.clocks.now(me), line_words(equation))
            mesh.accesses[me][how, view.key] = access

    def meets_copies(
        self, equation: JaxprEqn, how: str, view: View, copy: Copy | None = None, words: str = ""
    ) -> None:
        """Raise `HazardError` for an access to a copy's target, or a write to its source.

        copy: within the device, which writes. words: the key of the message, if it is not about the
        access.
        """
        for end in self.mesh.ends[self.number]:
            if end.over is None and (end.lands or how == "writes") and end.view.meets(view):
                if copy is not None and end.lands and may_overlap(end.copy, copy):
                    continue
                if how == "reads" and self.is_there(end, view):
                    continue
                key = _INTO[how] if end.lands else "device_writes_out_of"
                own = end.copy.sender == end.copy.receiver
                key = "device_meets_its_own_copy" if own else key
                facts: dict[str, Any] = dict(sender=end.copy.sender, there=end.copy.receiver)
                facts["does"] = how
                facts |= dict(text=line_words(equation), place=view, copy=end.copy.line)
                self.wrong(equation, words or key, waited=self.waited(end), **facts)

    def is_there(self, end: End, view: View) -> bool:
        """Whether an earlier copy brought to a place the bytes that a copy in flight brings."""
        copy, place = end.copy, view.array
        at, first = address(place), address(place) - address(copy.target.array)
        before = (old for old in self.fetched if old.over is not None)
        same = (old.view.array for old in before if same_bytes(old.copy, copy))
        around = any(0 <= at - address(old) <= old.nbytes - place.nbytes for old in same)
        ends = (copy.source.array, copy.target.array, place)
        if not around or not all(one.flags.c_contiguous for one in ends):
            return False
        new, held, _ = (one.reshape(-1).view(np.uint8) for one in ends)
        part = slice(max(0, first), max(0, first + place.nbytes))
        return bool((new[part] == held[part]).all())

    def waited(self, end: End) -> str:
        """That a wait on the copy's semaphore may have taken another copy's bytes."""
        for semaphore in self.mesh.semaphores.values():
            if semaphore.waited and end in semaphore.ends:
                facts = dict(name=semaphore.name, count=len(semaphore.arrivals))
                return sentence("semaphore_is_shared", **facts)
        return ""

    def lands(self, equation: JaxprEqn, there: int, copy: Copy) -> None:
        """Raise `HazardError` if a copy to another device may meet an access or a copy there."""
        mesh, me, view = self.mesh, self.number, copy.target
        for words, facts in self.clashes(there, view):
            signals, signallers = "", sorted(mesh.signalled[me])
            if signallers and there not in signallers:
                who = dict(devices=mesh.shape.names(signallers), me=mesh.shape.name(me))
                signals = sentence("signals_come_from", **who)
            if copy.source.array.dtype.kind == "f" and np.isnan(copy.source.array).all():
                words, signals = "sends_what_is_not_there", ""
            mesh.time.sends(me, there, view.array.nbytes, copy.line, view, ())
            mesh.time.wire.transfers[-1].crossed = True
            facts |= dict(there=there, place=view, text=copy.line, source=copy.source)
            self.wrong(equation, words, signals=signals, **facts)

    def clashes(self, there: int, view: View) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield copies and accesses at a place of another device that this one knows not over."""
        mesh, me = self.mesh, self.number
        for end in mesh.ends[there]:
            if not mesh.clocks.knows(me, there, end.over) and end.view.meets(view):
                words = "lands_before_it_is_sent" if end.copy.remote else "lands_before_it_reads"
                words = "lands_where_another_lands" if end.lands else words
                facts = dict(other=end.copy.line, sender=end.copy.sender, first=end.copy.source)
                yield words, facts
        for access in mesh.accesses[there].values():
            if not mesh.clocks.knows(me, there, access.epoch) and access.view.meets(view):
                yield _LANDS_BEFORE[access.how], dict(other=access.line)

    def _dma_start(self, equation: JaxprEqn, values: Values) -> Values:
        (source, target, landing, sending), device = copy_ends(equation.params["tree"], values)
        mesh, me, line = self.mesh, self.number, line_words(equation)
        there = self.there(equation, device, "copies_to_no_such_device")
        old, same = (self.end(equation, *part) for part in (source, target))
        if equation.params.get("add"):
            raise UnsupportedError(f"an addition of {_form(old)} to {_form(same)}, {line}")
        if (old.dtype, old.shape) != (same.dtype, same.shape):
            forms = dict(source=_form(old), target=_form(same))
            self.wrong(equation, "copy_between_forms", "unequal-copy", **forms)
        peer = self.enters(equation, there, "copies")
        new = self.part_on(peer, equation, target, "copy_of_a_ref_outside")
        remote = is_remote(equation)
        at = None if remote else self.semaphore(equation, *landing)
        copy = Copy(self.view(old, *source), self.view(new, *target), at, me, there, line)
        itself = there == me and copy.source.key == copy.target.key
        words = "started_to_describe" if itself else ""
        self.meets_copies(equation, "reads", copy.source, words=words)
        if there == me:
            self.meets_copies(equation, "writes", copy.target, copy, words)
        else:
            self.lands(equation, there, copy)
        in_hbm = _in_hbm(equation)
        time = mesh.time.sends(me, there, old.nbytes, line, copy.target, in_hbm)
        clock, sends, lands = mesh.clocks.carried(me), End(copy, False), End(copy, True)
        mesh.ends[me].append(sends)
        mesh.ends[there].append(lands)
        self.fetched += [lands] * (there == me)
        array = self.part_on(peer, equation, landing, "no_such_semaphore")
        count, ends = signals_of(equation, old.nbytes), [lands] if remote else [sends, lands]
        self.arrives(there, array, landing, Arrival(me, count, clock, time, ends))
        if remote:
            array = self.part(equation, *sending, "no_such_semaphore")
            count = signals_of(equation, old.nbytes, 3)
            self.arrives(me, array, sending, Arrival(me, count, clock, time, [sends]))
        if not self.late:
            copy.land()
        return []

    def waits_for(self, equation: JaxprEqn, semaphore: Part, count: int, unit: str) -> None:
        array = self.part(equation, *semaphore, "no_such_semaphore")
        record = self.semaphore_of(self.number, array, semaphore)
        self.mesh.wait_for(self, equation, record, count, _WAITS[unit])

    def _signal(self, equation: JaxprEqn, values: Values) -> Values:
        ref, transforms, count, device, _ = equation.params["args_tree"].unflatten(values)
        mesh, me = self.mesh, self.number
        there = self.there(equation, device, "no_such_device")
        if mesh.is_barrier(ref):
            array = taken(mesh.barrier(there, self.collective), transforms)
        else:
            peer = self.enters(equation, there, "signals")
            array = self.part_on(peer, equation, (ref, transforms), "no_such_semaphore")
            mesh.signalled[there].add(me)
        time = mesh.time.now[me] + (HOP_SECONDS if there != me else 0)
        arrival = Arrival(me, int(count), mesh.clocks.carried(me), time)
        self.arrives(there, array, (ref, transforms), arrival)
        return []

    def _barrier(self, *_: Any) -> Values:
        return [self.mesh.barrier(self.number, self.collective)]

    def _dot(self, equation: JaxprEqn, values: Values) -> Values:
        (contracted, _), _ = equation.params["dimension_numbers"]
        inner = math.prod(values[0].shape[axis] for axis in contracted)
        flops = 2 * math.prod(equation.outvars[0].aval.shape) * inner
        self.mesh.time.works(self.number, flops)
        return self.computation(equation)(self, equation, values)


def _form(array: np.ndarray) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _collective(on: Any, equation: JaxprEqn, _: Values) -> Values:
    """Raise `HazardError`: a kernel has no collectives."""
    on.wrong(equation, "collective_in_a_kernel", "lowering", name=equation.primitive.name)
    return []


def axis_index(on: Any, equation: JaxprEqn, _: Values) -> Values:
    """The index of the device that `on` runs on, as a result of the primitive."""
    return [np.int32(on.mesh.shape.index(on.number, equation.params["axis_name"]))]


Device.meanings = Machine.meanings | {
    "axis_index": axis_index,
    "get_barrier_semaphore": Device._barrier,
    "dma_start": Device._dma_start,
    "dot_general": Device._dot,
    "semaphore_signal": Device._signal,
}
Device.meanings |= dict.fromkeys(COLLECTIVES, _collective)
