"""Kernels that copy between devices, run in NumPy: a thread for each device of a mesh.

Each device has a vector clock: for each device, the number of events that happened before, by the
signals and copies that it waited for. An access races with a copy if no clock orders them, in
whichever order the threads of this run execute.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from puzzles._jax import (
    JaxprEqn,
    close,
    compiler_param,
    copy_ends,
    copy_parts,
    is_remote,
    jaxpr_as_fun,
)
from puzzles._launch import Launch, Traced, View, program_of, taken, text_of, when
from puzzles._program import (
    COLLECTIVES,
    FUEL,
    ProgramInterpreter,
    UnsupportedError,
    axes_around_kernels,
    equations,
    mesh_axes,
    one_blas_thread,
    over_axes,
    single,
)
from puzzles._rules import sentence
from puzzles._simulator.machine import Machine, signals_of
from puzzles._simulator.semantics import HazardError, ProgramRun, RunLog, Semantics, address, drawn
from puzzles._simulator.turns import DeadlockError, Turns
from puzzles._simulator.wire import HOP_SECONDS, V5E_SPEEDS, Clock, Speeds, Wire

_Values = list[Any]
_Clock = tuple[int, ...]
_SPEAKING = ("get_barrier_semaphore", "semaphore_signal", "dma_start")
_WAITS = {
    "signals": "device_waits_for_signals",
    "bytes": "device_waits_for_bytes",
    "others": "device_waits_for_others",
    "collective": "device_waits_in_collective",
}
_INTO = {"reads": "device_reads_into", "writes": "device_writes_into"}
_LANDS_BEFORE = {"reads": "lands_before_it_reads", "writes": "lands_before_it_writes"}


@dataclass
class DevicesRun(ProgramRun):
    """The run of a program on a mesh: global results, and the traffic between the devices."""

    wire: Wire = field(default_factory=Wire)
    operations: int = 0


@one_blas_thread()
def run_devices(
    traced: Traced,
    how: Semantics,
    slowest: int | None = None,
    in_order: bool = False,
    fuel: int = FUEL,
    speeds: Speeds = V5E_SPEEDS,
) -> DevicesRun:
    """Run a program with a `shard_map` on the devices of its mesh.

    Args:
        slowest: the device that continues only when no other device can; None: they take turns.
        in_order: copies on one semaphore end in the order of their starts; a TPU promises nothing.
        fuel: equations of each launch on each device.
        speeds: those of a chip, for the times of the traffic.

    Arguments that are only shapes get data. Raises `HazardError`, whose `wire` is the traffic so
    far, for a race, a deadlock or a semaphore left above zero.
    """
    program = _Program(how, slowest, in_order, fuel)
    program.wire.speeds = speeds
    leaves = [
        drawn(x, n) if isinstance(x, jax.ShapeDtypeStruct) else np.asarray(x)
        for n, x in enumerate(traced.leaves)
    ]
    try:
        with np.errstate(all="ignore"):
            results = program.closed(traced.jaxpr, leaves)
    except HazardError as error:
        error.wire = program.wire
        raise
    arrays = [np.asarray(x) for x in results]
    return DevicesRun(arrays, program.trails, program.wire, program.spent)


def on_mesh(traced: Traced) -> dict[str, int]:
    """The axes of the mesh around the kernels; empty on one device."""
    return axes_around_kernels(traced.jaxpr.jaxpr)


def schedules(count: int) -> Iterator[tuple[Semantics, int | None]]:
    """The runs of a program: some devices are the slowest in turn, copies are late or not."""
    yield Semantics(), None
    for slowest in sorted({0, 1, count - 1}):
        late = slowest % 2 == 1
        yield Semantics(late=late, unwritten="nan" if late else "zero"), slowest


class _Program(ProgramInterpreter):
    """A program in which each `shard_map` runs on all devices of its mesh."""

    def __init__(self, how: Semantics, slowest: int | None, in_order: bool, fuel: int) -> None:
        super().__init__()
        self.how, self.slowest, self.in_order, self.most = how, slowest, in_order, fuel
        self.wire, self.spent = Wire(), 0
        self.trails: list[RunLog] = []

    def _shard_map(self, equation: JaxprEqn, values: _Values) -> _Values:
        params, mesh = equation.params, _Mesh(mesh_axes(equation), self)
        body, pairs = close(params["jaxpr"]), [*zip(values, params["in_specs"], strict=True)]

        def work(device: int) -> _Values:
            local = [np.asarray(x)[mesh.part(spec, np.shape(x), device)] for x, spec in pairs]
            return _Body(mesh, device).closed(body, local)

        try:
            parts = mesh.turns.run(work)
        except DeadlockError:
            mesh.deadlock()
        mesh.finish()
        columns = zip(*(parts[n] for n in range(mesh.count)), strict=True)
        specs = params["out_specs"]
        return [mesh.gathered(each, spec) for each, spec in zip(columns, specs, strict=True)]


_Program.meanings = ProgramInterpreter.meanings | {"shard_map": _Program._shard_map}


class _Body(ProgramInterpreter):
    """A `shard_map`'s function on one device."""

    def __init__(self, mesh: _Mesh, number: int) -> None:
        super().__init__(self._runs)
        self.mesh, self.number, self.launched, self.met = mesh, number, 0, 0

    def _runs(self, call: JaxprEqn, values: _Values) -> _Values:
        device = _Device(self.mesh, self.number, call, _launch(call, values), self.launched)
        self.launched += 1
        results = device.results(values)
        self.mesh.program.spent += self.mesh.program.most - device.fuel
        return results

    def _collective(self, equation: JaxprEqn, values: _Values) -> _Values:
        self.met += 1
        return self.mesh.meet(self.number, self.met, equation, values)


def _axis_index(on: _Body | _Device, equation: JaxprEqn, _: _Values) -> _Values:
    return [on.mesh.index(on.number, equation.params["axis_name"])]


_Body.meanings = ProgramInterpreter.meanings | {"axis_index": _axis_index}
_Body.meanings |= dict.fromkeys(COLLECTIVES, _Body._collective)


@lru_cache(maxsize=64)
def _plain_launch(call: JaxprEqn) -> Launch:
    """The launch of a call that no operand steers, read once for all devices."""
    return program_of(call).launches[0]


def _launch(call: JaxprEqn, values: _Values) -> Launch:
    mapping = call.params["grid_mapping"]
    if not (mapping.num_index_operands or mapping.num_dynamic_grid_bounds):
        return _plain_launch(call)
    program, operands = single(call, values)
    return Traced(program, tuple(operands), None).launches[0]


@lru_cache(maxsize=64)
def _primitives(call: JaxprEqn) -> frozenset[str]:
    """The primitives of a kernel that concern other devices."""
    names = (e.primitive.name for e in equations(call.params["jaxpr"]))
    return frozenset(name for name in names if name in _SPEAKING)


@dataclass(eq=False)
class _Copy:
    """A copy, the devices that send and receive it, and the line that starts it."""

    source: View
    target: View
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
class _End:
    """One end of a copy, in the memory of a device; at epoch `over` the device knows of its end."""

    copy: _Copy
    lands: bool
    over: int | None = None

    @property
    def view(self) -> View:
        """The place that the copy reads or writes."""
        return self.copy.target if self.lands else self.copy.source


@dataclass(eq=False)
class _Arrival:
    """Signals that come to a semaphore, or the bytes of a copy of which this tells the `ends`."""

    size: int
    clock: _Clock
    time: float
    ends: Sequence[_End] = ()


@dataclass(eq=False)
class _Semaphore:
    """Arrivals at a semaphore of a device since it was last at zero, and the amount waited for."""

    device: int
    name: str
    barrier: bool
    arrivals: list[_Arrival] = field(default_factory=list)
    waited: int = 0

    @property
    def value(self) -> int:
        """The amount that has arrived and was not waited for."""
        return sum(each.size for each in self.arrivals) - self.waited


class _Mesh:
    """The devices of one `shard_map`: clocks, semaphores, and the copies in flight."""

    def __init__(self, axes: Mapping[str, int], program: _Program) -> None:
        self.axes, self.program, self.how = axes, program, program.how
        self.count = math.prod(axes.values())
        first, rotates = (program.slowest or 0) + 1, program.slowest is None
        self.turns = Turns([(first + n) % self.count for n in range(self.count)], rotates)
        self.clocks = [[0] * self.count for _ in range(self.count)]
        self.time = Clock(program.wire, axes)
        self.launched: list[dict[int, _Device]] = []  # of each launch its devices, by number
        self.semaphores: dict[int, _Semaphore] = {}
        self.barriers: dict[tuple[int, Any], np.ndarray] = {}
        self.ends: list[list[_End]] = [[] for _ in range(self.count)]
        # Of a device: who has signalled it, apart from the barrier.
        self.signalled: list[set[int]] = [set() for _ in range(self.count)]
        # Of a device: accesses that another device may not know of, by place.
        self.accesses: list[dict[Any, tuple[str, View, int, str]]] = [{} for _ in self.clocks]
        self.waits: dict[int, tuple[_Device | None, Any, str, _Semaphore | None, int]] = {}
        self.met: dict[int, dict[int, tuple[_Values, _Clock]]] = {}  # of each collective, by device
        self.results: dict[int, list[Any]] = {}  # of each collective, of all devices

    def index(self, device: int, named: Any) -> np.int32:
        """`axis_index` of a device along an axis, or several."""
        place = np.unravel_index(device, tuple(self.axes.values()))
        index, places = 0, dict(zip(self.axes, place, strict=True))
        for name in named if isinstance(named, tuple) else (named,):
            if name not in places:
                names = ", ".join(map(repr, places))
                raise UnsupportedError(f"`lax.axis_index({name!r})`, on a mesh with {names}")
            index = index * self.axes[name] + int(places[name])
        return np.int32(index)

    def part(self, spec: Any, shape: Sequence[int], device: int) -> tuple[slice, ...]:
        """The slices of a global array that a device holds."""
        slices = []
        for names, size in zip(spec, shape, strict=False):
            names = () if names is None else names if isinstance(names, tuple) else (names,)
            block = size // math.prod(self.axes[name] for name in names)
            start = int(self.index(device, names)) * block
            slices.append(slice(start, start + block))
        return tuple(slices)

    def gathered(self, parts: Sequence[Any], spec: Any) -> np.ndarray:
        """A global array of the devices' parts."""
        sizes = list(np.shape(parts[0]))
        for axis, names in enumerate(spec):
            for name in () if names is None else names if isinstance(names, tuple) else (names,):
                sizes[axis] *= self.axes[name]
        whole = np.empty(sizes, np.asarray(parts[0]).dtype)
        for device, values in enumerate(parts):
            whole[self.part(spec, sizes, device)] = values
        return whole

    def launch(self, device: _Device, number: int, meets: bool) -> None:
        """Let a device enter a launch; it `meets` the others first if the kernel has no barrier."""
        while len(self.launched) <= number:
            self.launched.append({})
        here = self.launched[number]
        self.clocks[device.number][device.number] += 1
        device.entered = self.clocks[device.number][device.number]
        here[device.number] = device
        if meets:
            self.wait(device, device.number, None, "others", lambda: len(here) == self.count)
            for peer in here.values():
                self.join(device.number, peer.number, peer.entered)

    def meet(self, device: int, number: int, equation: JaxprEqn, values: _Values) -> _Values:
        """A device's results of its nth collective, which all devices call before any goes on."""
        entries = self.met.setdefault(number, {})
        entries[device] = values, self.carried(device)
        ready = lambda: len(entries) == self.count  # noqa: E731
        self.wait(None, device, equation, "collective", ready)
        if number not in self.results:
            rows = [single(equation, entries[n][0]) for n in range(self.count)]
            columns = [
                jnp.asarray(np.stack(x)) for x in zip(*(row for _, row in rows), strict=True)
            ]
            self.results[number] = over_axes(jaxpr_as_fun(rows[0][0]), self.axes)(*columns)
        for _, clock in entries.values() if equation.primitive.name != "ppermute" else ():
            self.clocks[device] = [*map(max, self.clocks[device], clock)]
        return [np.asarray(x[device]) for x in self.results[number]]

    def barrier(self, device: int, collective: Any) -> np.ndarray:
        """The barrier semaphore of a device that launches of one `collective_id` share."""
        return self.barriers.setdefault((device, collective), np.zeros((), np.int64))

    # Clocks: the knowledge of a device.

    def knows(self, device: int, peer: int, epoch: int | None) -> bool:
        """Whether an epoch of another device is known to be over."""
        return epoch is not None and self.clocks[device][peer] >= epoch

    def join(self, device: int, peer: int, epoch: int) -> None:
        """Let a device know an epoch of another device."""
        self.clocks[device][peer] = max(self.clocks[device][peer], epoch)

    def carried(self, device: int) -> _Clock:
        """The clock that a signal or a copy carries; the device's next events are later."""
        clock = tuple(self.clocks[device])
        self.clocks[device][device] += 1
        return clock

    def learn(self, device: int, semaphore: _Semaphore, count: int) -> None:
        """Update a device's clock after a wait, for any order of the arrivals.

        For each device, use the least epoch that enough arrivals carry. A copy is over if all
        other arrivals together are less than the amount waited for.
        """
        semaphore.waited += count
        arrivals, waited = semaphore.arrivals, semaphore.waited
        total = sum(each.size for each in arrivals)
        for peer in range(self.count):
            ordered = arrivals
            if not self.program.in_order:
                ordered = sorted(arrivals, key=lambda each: each.clock[peer])
            before = itertools.accumulate((each.size for each in ordered), initial=0)
            pairs = zip(ordered, before, strict=False)
            needed = (each.clock[peer] for each, size in pairs if size < waited)
            self.join(device, peer, max(needed, default=0))
        self.clocks[device][device] += 1
        now, came = self.clocks[device][device], 0
        latest = 0.0
        for each in arrivals:
            came += each.size
            if came - each.size < waited:
                latest = max(latest, each.time)
                for end in each.ends:
                    (end.copy.land if end.lands else end.copy.leave)()
            over = came <= waited if self.program.in_order else total - each.size < waited
            for end in each.ends:
                end.over = now if over and end.over is None else end.over
        remote = any(end.copy.remote for each in arrivals for end in each.ends)
        self.time.waits(device, latest, remote)
        if total == waited:
            semaphore.arrivals, semaphore.waited = [], 0
        everybody = range(self.count)
        self.ends[device] = [
            end for end in self.ends[device]
            if not all(self.knows(peer, device, end.over) for peer in everybody)
        ]  # fmt: skip

    # Waits, and semaphores at the end.

    def wait(
        self, device: _Device | None, number: int, equation: JaxprEqn | None, unit: str,
        ready: Callable[[], bool], semaphore: _Semaphore | None = None, count: int = 0,
    ) -> None:  # fmt: skip
        """Let a device wait, in a launch if `device` is one; `unit` tells `deadlock` for what."""
        self.waits[number] = (device, equation, unit, semaphore, count)
        self.turns.wait(number, ready)
        del self.waits[number]

    def deadlock(self) -> None:
        """Raise `HazardError` with the line in which each device waits."""
        places: dict[str, list[int]] = {}
        for number in range(self.count):
            text = sentence("device_ended")
            if number in self.waits:
                _, equation, unit, semaphore, count = self.waits[number]
                facts = dict(name="", came=0, count=count, line=_text(equation))
                if semaphore is not None:
                    facts |= dict(name=semaphore.name, came=semaphore.value)
                text = sentence(_WAITS[unit], **facts)
            places.setdefault(text, []).append(number)
        listed = "; ".join(f"{_named(devices)} {text}" for text, devices in places.items())
        inside = (
            (device, at) for _, (device, at, *_) in sorted(self.waits.items()) if device is not None
        )
        device, equation = next(inside, (None, None))
        if device is None:
            raise UnsupportedError("a collective that some devices never call")
        device.wrong(equation, "devices_deadlock", listed=listed)

    def finish(self) -> None:
        """Raise `HazardError` if a semaphore is not back at zero."""
        for semaphore in sorted(
            self.semaphores.values(), key=lambda semaphore: not semaphore.barrier
        ):
            if semaphore.value <= 0:
                continue
            device = self.launched[-1][semaphore.device]
            where: dict[str, Any] = dict(device=semaphore.device)
            words = "barrier_left_signalled" if semaphore.barrier else "semaphore_of_device_left"
            end = next((end for each in semaphore.arrivals for end in each.ends), None)
            if end is not None:
                words = "landing_not_waited" if end.lands else "sending_not_waited"
                words = words if end.copy.remote else "copy_of_device_not_waited"
                where = dict(copy=end.copy.line, there=end.copy.receiver, device=end.copy.sender)
            device.ids = ()
            device.wrong(None, words, name=semaphore.name, count=semaphore.value, **where)


def _text(equation: JaxprEqn | None) -> str:
    """An equation's line, in backticks; JAX does not know those of `sync_copy` and the like."""
    text = "" if equation is None else text_of(equation.source_info)
    return f"`{text}`" if text else "in the kernel"


def _named(devices: Sequence[int]) -> str:
    """ "device 2", or "devices 0, 1 and 3"."""
    if len(devices) == 1:
        return f"device {devices[0]}"
    return f"devices {', '.join(map(str, devices[:-1]))} and {devices[-1]}"


class _Device(Machine):
    """One launch on one device."""

    entered = 0

    def __init__(self, mesh: _Mesh, number: int, call: JaxprEqn, launch: Launch, nth: int) -> None:
        trail = RunLog(launch)
        super().__init__(call, launch, mesh.how, trail=trail)
        self.mesh, self.number, self.nth = mesh, number, nth
        self.fuel = mesh.program.most
        mesh.program.trails.append(trail)
        self.collective = compiler_param(call.params["compiler_params"], "collective_id")
        operands = enumerate((*launch.inputs, *launch.outputs), len(launch.scalars))
        self.moving = {n for n, operand in operands if operand.piped and launch.steps > 1}
        speaks = _primitives(call)
        mesh.launch(self, nth, meets=bool(speaks) and "get_barrier_semaphore" not in speaks)

    def ends(self) -> None:
        """Do nothing: semaphores are checked after all devices have ended."""

    def wrong(
        self, equation: JaxprEqn | None, words: str, kind: str = "hazard", **facts: Any
    ) -> None:
        super().wrong(equation, words, kind, **dict(me=self.number) | facts)

    def there(self, equation: JaxprEqn, device: Any, words: str) -> int:
        """The number of a device by its id: a number, or all or some coordinates on the mesh."""
        axes, sizes = self.mesh.axes, tuple(self.mesh.axes.values())
        if device is None:
            return self.number
        if isinstance(device, Mapping):
            own = np.unravel_index(self.number, sizes)
            device = [device.get(name, at) for name, at in zip(axes, own, strict=True)]
        logical = "LOGICAL" in str(equation.params.get("device_id_type"))
        if isinstance(device, tuple | list) or not (logical or len(sizes) == 1):
            places = [*map(int, jax.tree.leaves(device))]
            if len(places) != len(sizes):
                facts = dict(given=len(places), axes=", ".join(axes), count=len(sizes))
                self.wrong(equation, "device_id_of_other_mesh", "out-of-bounds", **facts)
            device = places[0] if len(places) == 1 else -1
            if all(0 <= at < size for at, size in zip(places, sizes, strict=True)):
                device = np.ravel_multi_index(places, sizes)
        there, count = int(device), self.mesh.count
        if not 0 <= there < count:
            facts = dict(device=self.number, count=" × ".join(map(str, sizes)), when=when(self.ids))
            order = f"along the mesh's axes ({', '.join(axes)}), in this order"
            facts["there"] = there if len(sizes) == 1 else f"{(*places,)} {order}"
            self.wrong(equation, words, "out-of-bounds", **facts)
        return there

    def enters(self, equation: JaxprEqn, there: int, does: str) -> _Device:
        """The machine of another device in this launch, which this one must know to be in it."""
        here, mesh = self.mesh.launched[self.nth], self.mesh
        peer = here.get(there)
        if there != self.number and not (
            peer is not None and mesh.knows(self.number, there, peer.entered)
        ):
            heard = [
                n for n in range(mesh.count)
                if n != self.number and n in here and mesh.knows(self.number, n, here[n].entered)
            ]  # fmt: skip
            facts: dict[str, Any] = dict(there=there, does=does)
            facts["heard"] = sentence("heard_from", devices=_named(heard)) if heard else ""
            self.wrong(equation, "device_not_entered", **facts)
        assert peer is not None
        return peer

    def of(self, peer: _Device, ref: Any, transforms: Sequence) -> np.ndarray:
        """The other device's memory for a part of a buffer of this device."""
        place = next((n for n, buffer in enumerate(self.buffers) if buffer is ref), None)
        if place is None:
            raise UnsupportedError("a copy to a part of memory that has no name")
        if len(peer.buffers) <= place:
            self.mesh.wait(self, self.number, None, "others", lambda: len(peer.buffers) > place)
        return taken(peer.buffers[place], transforms)

    def arrives(self, owner: int, array: np.ndarray, part: Any, arrival: _Arrival) -> None:
        """Add to a semaphore of a device."""
        self.semaphore_of(owner, array, *part).arrivals.append(arrival)

    def semaphore_of(self, owner: int, array: np.ndarray, ref: Any, transforms: Any) -> _Semaphore:
        """The record of a semaphore."""
        barrier = any(ref is semaphore for semaphore in self.mesh.barriers.values())
        at = address(array)
        if at not in self.mesh.semaphores:
            name = "the barrier semaphore" if barrier else f"`{self.view(array, ref, transforms)}`"
            self.mesh.semaphores[at] = _Semaphore(owner, name, barrier)
        return self.mesh.semaphores[at]

    def touches(
        self, equation: JaxprEqn, how: str, array: np.ndarray, ref: np.ndarray, transforms: Any
    ) -> None:
        view, mesh, me = self.view(array, ref, transforms), self.mesh, self.number
        self.meets_copies(equation, how, view)
        if not any(n in self.moving and buffer is ref for n, buffer in enumerate(self.buffers)):
            key = how, address(array), array.shape, array.strides
            mesh.accesses[me][key] = how, view, mesh.clocks[me][me], _text(equation)

    def meets_copies(self, equation: JaxprEqn, how: str, view: View) -> None:
        """Raise `HazardError` for an access to a copy's target, or a write to its source."""
        for end in self.mesh.ends[self.number]:
            if end.over is not None or not (end.lands or how == "writes"):
                continue
            if end.view.meets(view):
                key = _INTO[how] if end.lands else "device_writes_out_of"
                facts: dict[str, Any] = dict(text=_text(equation), place=view, copy=end.copy.line)
                facts |= dict(sender=end.copy.sender, there=end.copy.receiver)
                facts["waited"] = self.waited(end)
                self.wrong(equation, key, **facts)

    def waited(self, end: _End) -> str:
        """That a wait on the copy's semaphore may have taken another copy's bytes."""
        for semaphore in self.mesh.semaphores.values():
            if semaphore.waited and any(end in each.ends for each in semaphore.arrivals):
                facts = dict(name=semaphore.name, count=len(semaphore.arrivals))
                return sentence("semaphore_is_shared", **facts)
        return ""

    def lands(self, equation: JaxprEqn, there: int, copy: _Copy) -> None:
        """Raise `HazardError` if a copy to another device may meet an access or a copy there."""
        mesh, me, view = self.mesh, self.number, copy.target
        words, facts = "", dict[str, Any](there=there, place=view, text=copy.line)
        for end in mesh.ends[there]:
            if not mesh.knows(me, there, end.over) and end.view.meets(view):
                words = "lands_where_another_lands" if end.lands else "lands_before_it_is_sent"
                facts |= dict(other=end.copy.line, sender=end.copy.sender)
                break
        for how, place, epoch, text in mesh.accesses[there].values() if not words else ():
            if not mesh.knows(me, there, epoch) and place.meets(view):
                words, facts["other"] = _LANDS_BEFORE[how], text
                break
        if words:
            signallers = mesh.signalled[me]
            senders = (
                dict(devices=_named(sorted(signallers)), me=me)
                if signallers and there not in signallers
                else {}
            )
            facts["signals"] = sentence("signals_come_from", **senders) if senders else ""
            mesh.time.sends(me, there, view.array.nbytes, copy.line, view)
            mesh.program.wire.transfers[-1].crossed = True
            self.wrong(equation, words, **facts)

    def _dma_start(self, equation: JaxprEqn, values: _Values) -> _Values:
        parts, device = copy_ends(equation.params["tree"], values)
        source, target, landing, sending = parts
        mesh, me, line = self.mesh, self.number, _text(equation)
        there = self.there(equation, device, "copies_to_no_such_device")
        old, same = (self.end(equation, *part) for part in (source, target))
        if equation.params.get("add") or old.shape != same.shape or old.dtype != same.dtype:
            forms = (f"{x.dtype}{list(x.shape)}" for x in (old, same))
            raise UnsupportedError(f"a copy of {' into '.join(forms)}, `{line}`")
        peer = self.enters(equation, there, "copies")
        new = same if there == me else self.of(peer, *target)
        copy = _Copy(self.view(old, *source), self.view(new, *target), me, there, line)
        if old.size:
            self.meets_copies(equation, "reads", copy.source)
            if there == me:
                self.meets_copies(equation, "writes", copy.target)
            else:
                self.lands(equation, there, copy)
        time, clock = mesh.time.sends(me, there, old.nbytes, line, copy.target), mesh.carried(me)
        sends, lands = _End(copy, False), _End(copy, True)
        if old.size:
            mesh.ends[me].append(sends)
            mesh.ends[there].append(lands)
        array = self.part(equation, *landing, "no_such_semaphore")
        array = array if there == me else self.of(peer, *landing)
        ends = [lands] if is_remote(equation) else [sends, lands]
        count = signals_of(equation, old.nbytes)
        self.arrives(there, array, landing, _Arrival(count, clock, time, ends))
        if is_remote(equation):
            array = self.part(equation, *sending, "no_such_semaphore")
            count = signals_of(equation, old.nbytes, 3)
            self.arrives(me, array, sending, _Arrival(count, clock, time, [sends]))
        if self.how is None or not self.how.late:
            copy.land()
        return []

    def _dma_wait(self, equation: JaxprEqn, values: _Values) -> _Values:
        _, target, (ref, transforms) = copy_parts(equation.params["tree"], values)
        array = self.part(equation, ref, transforms, "no_such_semaphore")
        size = signals_of(equation, self.end(equation, *target).nbytes)
        return self.takes(equation, array, ref, transforms, size, "bytes")

    def takes(
        self, equation: JaxprEqn, array: np.ndarray, ref: Any, transforms: Any, count: int,
        unit: str,
    ) -> _Values:  # fmt: skip
        """Wait until so much has come to a semaphore."""
        semaphore = self.semaphore_of(self.number, array, ref, transforms)
        ready = lambda: semaphore.value >= count  # noqa: E731
        self.mesh.wait(self, self.number, equation, unit, ready, semaphore, count)
        self.mesh.learn(self.number, semaphore, count)
        return []

    def _signal(self, equation: JaxprEqn, values: _Values) -> _Values:
        ref, transforms, count, device, _ = equation.params["args_tree"].unflatten(values)
        mesh, me = self.mesh, self.number
        there = self.there(equation, device, "no_such_device")
        if any(ref is semaphore for semaphore in mesh.barriers.values()):
            array = taken(mesh.barrier(there, self.collective), transforms)
        else:
            peer = self.enters(equation, there, "signals")
            array = self.part(equation, ref, transforms, "no_such_semaphore")
            array = array if there == me else self.of(peer, ref, transforms)
            mesh.signalled[there].add(me)
        time = mesh.time.now[me] + (HOP_SECONDS if there != me else 0)
        arrival = _Arrival(int(count), mesh.carried(me), time)
        self.arrives(there, array, (ref, transforms), arrival)
        return []

    def _wait(self, equation: JaxprEqn, values: _Values) -> _Values:
        ref, transforms, count, *_ = equation.params["args_tree"].unflatten(values)
        array = self.part(equation, ref, transforms, "no_such_semaphore")
        return self.takes(equation, array, ref, transforms, int(count), "signals")

    def _barrier(self, *_: Any) -> _Values:
        return [self.mesh.barrier(self.number, self.collective)]

    def _dot(self, equation: JaxprEqn, values: _Values) -> _Values:
        (contracted, _), _ = equation.params["dimension_numbers"]
        inner = math.prod(values[0].shape[axis] for axis in contracted)
        flops = 2 * math.prod(equation.outvars[0].aval.shape) * inner
        self.mesh.time.works(self.number, flops)
        return self.computation(equation)(self, equation, values)


_Device.meanings = Machine.meanings | {
    "axis_index": _axis_index,
    "get_barrier_semaphore": _Device._barrier,
    "dma_start": _Device._dma_start,
    "dma_wait": _Device._dma_wait,
    "dot_general": _Device._dot,
    "semaphore_signal": _Device._signal,
    "semaphore_wait": _Device._wait,
}
