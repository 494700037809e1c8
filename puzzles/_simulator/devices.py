"""Kernels that speak to each other, simulated in NumPy: a thread for each device of a mesh.

One thread runs at a time, until it waits for another device. A wait is in vain only once all of
them wait, or have ended.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from puzzles._jax import JaxprEqn, copy_ends, copy_parts, is_remote
from puzzles._launch import Flight, Launch, Traced, taken, text_of, when
from puzzles._program import PALLAS_CALL, UnsupportedError, kernel_calls, visited
from puzzles._simulator.machine import Machine
from puzzles._simulator.programs import ProgramRun
from puzzles._simulator.sanitizer import AFTER_THE_FIRST, Sanitized, differing, given, refused
from puzzles._simulator.semantics import HazardError, RunLog, Semantics, address
from puzzles._simulator.simulator import cannot

STEPS = 500  # of all devices
_Values = list[Any]


def axes_around(traced: Traced) -> list[dict[str, int]]:
    """For each kernel call the axes of the mesh that it is mapped over, and their lengths."""
    around = []
    for equation, path in visited(traced.jaxpr.jaxpr):
        if equation.primitive.name == PALLAS_CALL:
            axes: dict[str, int] = {}
            for one in path:
                if one.primitive.name == "shard_map":
                    mesh = one.params["mesh"]
                    manual = one.params.get("manual_axes", mesh.axis_names)
                    axes |= {name: mesh.shape[name] for name in mesh.axis_names if name in manual}
            around.append(axes)
    return around


def sanitize_together(
    traced: Traced, launch: Launch, axes: Mapping[str, int], seed: int = 0
) -> Sanitized:
    """What is found in one launch that runs on every device of a mesh at once.

    Arguments that are only shapes get other data on each device.
    """
    count = math.prod(axes.values())
    if launch.steps * count > STEPS:
        return Sanitized(why_not=f"{launch.steps:,} steps on {count} devices take too long")
    if (why := refused(traced, (launch,))) is not None:
        return Sanitized(why_not=why)
    (call,) = kernel_calls(traced.jaxpr.jaxpr)
    each = [given(traced.leaves, seed + 1000 * device) for device in range(count)]
    said = f"all steps on {count} devices"
    try:
        _, found = differing(
            lambda how: _Mesh(call, launch, axes, how).run(each), Semantics(), ("late", "unwritten")
        )
    except HazardError as error:
        return Sanitized((error.finding,), said, AFTER_THE_FIRST)
    except Exception as error:  # whatever NumPy does not do
        return Sanitized(why_not=cannot(error))
    if found is None:
        return Sanitized((), said)
    line = found.line or launch.line
    return Sanitized((dataclasses.replace(found, launch=launch.name, line=line),), said)


@dataclasses.dataclass(eq=False)
class _Copy:
    """A copy that is kept back, and what it brings to which semaphores, the target's last."""

    source: np.ndarray
    target: np.ndarray
    brings: dict[int, int]

    def make(self) -> None:
        self.target[...] = self.source


class _Mesh:
    """A machine for each device, and what the devices wait for.

    A copy that is late is made when somebody waits for either end of it, and what came to that end
    before was waited for: kernels of JAX's own count on copies to one semaphore coming in turn.
    """

    def __init__(
        self, call: JaxprEqn, launch: Launch, axes: Mapping[str, int], how: Semantics
    ) -> None:
        self.launch, self.axes, self.how = launch, axes, how
        count = math.prod(axes.values())
        self.devices = [_Device(self, n, call) for n in range(count)]
        self.changed = threading.Condition()
        self.pending: dict[int, Callable[[bool], bool]] = {}  # what a device waits for
        self.kept: list[_Copy] = []
        self.came: Counter[int] = Counter()  # to a semaphore, less what was waited for
        self.barriers: set[int] = set()  # semaphores, by their address
        self.ends: set[int] = set()  # those that tell of copies
        self.failure: BaseException | None = None

    def run(self, each: Sequence[Sequence[Any]]) -> ProgramRun:
        """What all devices give; raises `HazardError`."""
        results: dict[int, list[Any]] = {}

        def one(device: _Device, values: Sequence[Any]) -> None:
            with self.changed:
                try:
                    with np.errstate(all="ignore"):
                        results[device.number] = device.results(values)
                except BaseException as error:
                    self.failure = self.failure or error
                self.pending[device.number] = lambda anyhow: False
                self.changed.notify_all()

        pairs = zip(self.devices, each, strict=True)
        threads = [threading.Thread(target=one, args=pair, daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        left = {at for at, count in self.came.items() if count > 0}
        left |= {at for copy in self.kept for at in copy.brings}
        if left:
            words = "semaphore left signalled"
            if self.barriers & left:
                words = "barrier left signalled"
            elif self.ends & left:
                words = "remote copy never waited for"
            self.devices[0].ids = ()
            self.devices[0].wrong(None, words)
        flat = [x for number in sorted(results) for x in results[number]]
        return ProgramRun(flat, [one.trail for one in self.devices if one.trail is not None])

    def comes(self, at: int, count: int, anyhow: bool) -> bool:
        """Whether so much has come to a semaphore, if copies that are due are made.

        anyhow: also those before whose turn it is.
        """
        while self.came[at] < count:
            copy = next((one for one in self.kept if at in one.brings), None)
            if copy is None:
                return False
            last = list(copy.brings)[-1]
            if self.came[last] > 0 and last != at and not anyhow:
                return False
            self.kept.remove(copy)
            copy.make()
            self.came.update(copy.brings)
            self.changed.notify_all()
        return True

    def until(
        self, device: int, ready: Callable[[bool], bool], in_vain: Callable[[], None]
    ) -> None:
        """Let a device wait; in vain, if all of them do, and copies out of turn would not help."""
        self.pending[device] = ready
        self.changed.notify_all()  # who waits in vain asks whether all do
        while not ready(False):
            if self.failure is not None:
                raise RuntimeError("another device is the cause")
            all_wait = len(self.pending) == len(self.devices)
            if all_wait and not any(one(False) for one in self.pending.values()):
                if not any(one(True) for one in self.pending.values()):
                    in_vain()
                self.changed.notify_all()
                if ready(False):
                    break
            self.changed.wait()
        del self.pending[device]


class _Device(Machine):
    """One device's run of the launch."""

    def __init__(self, mesh: _Mesh, number: int, call: JaxprEqn) -> None:
        super().__init__(call, mesh.launch, mesh.how, trail=RunLog(mesh.launch))
        self.mesh, self.number = mesh, number
        self.barrier = np.zeros((), np.int64)

    def ends(self) -> None:
        """What is left is seen once all devices have ended."""

    def there(self, equation: JaxprEqn, device: Any, words: str) -> _Device:
        """The device of an id: its number, its place along each axis, or along some by name."""
        sizes = tuple(self.mesh.axes.values())
        if device is None:
            return self
        number = device
        if isinstance(device, Mapping | tuple | list):
            own = np.unravel_index(self.number, sizes)
            named = device if isinstance(device, Mapping) else {}
            places = [*map(int, jax.tree.leaves(device))] if not named else [
                int(named.get(name, at)) for name, at in zip(self.mesh.axes, own, strict=True)
            ]  # fmt: skip
            strides = [math.prod(sizes[n + 1 :]) for n in range(len(sizes))]
            number = sum(at * n for at, n in zip(places, strides, strict=True))
        there, count = int(number), len(self.mesh.devices)
        if not 0 <= there < count:
            facts = dict(device=self.number, there=there, count=count, when=when(self.ids))
            self.wrong(equation, words, "out-of-bounds", **facts)
        return self.mesh.devices[there]

    def at(self, other: _Device, equation: JaxprEqn, ref: Any, transforms: Sequence) -> np.ndarray:
        """What another device has where this one has a part of a buffer."""
        if ref is self.barrier:
            return taken(other.barrier, transforms)
        place = next((n for n, one in enumerate(self.buffers) if one is ref), None)
        if place is None:
            raise UnsupportedError("a copy to a part of memory that has no name")
        if len(other.buffers) <= place:
            in_vain = partial(self.wrong, equation, "wait never ends")
            self.mesh.until(self.number, lambda _: len(other.buffers) > place, in_vain)
        return taken(other.buffers[place], transforms)

    def _axis_index(self, equation: JaxprEqn, _: _Values) -> _Values:
        sizes, named = tuple(self.mesh.axes.values()), equation.params["axis_name"]
        own = dict(zip(self.mesh.axes, np.unravel_index(self.number, sizes), strict=True))
        index = 0
        for name in named if isinstance(named, tuple) else (named,):
            index = index * self.mesh.axes[name] + int(own[name])
        return [np.int32(index)]

    def _barrier(self, *_: Any) -> _Values:
        self.mesh.barriers.add(address(self.barrier))
        return [self.barrier]

    def _dma_start(self, equation: JaxprEqn, values: _Values) -> _Values:
        parts, device = copy_ends(equation.params["tree"], values)
        source, target, semaphore, sending = parts
        other = self.there(equation, device, "copies to no such device")
        old, same = (self.end(equation, *one) for one in (source, target))
        self.touches(equation, "reads", old, *source)
        if other is self:
            self.touches(equation, "writes", same, *target)
        new, line = self.at(other, equation, *target), text_of(equation.source_info)
        ends = self.view(old, *source), self.view(new, *target)
        brings: Counter[int] = Counter()
        if is_remote(equation):
            first = self.semaphore(equation, *sending)
            brings[first] += old.nbytes
            self.flights.flying.append(Flight(*ends, first, old.nbytes, line))
        last = address(self.at(other, equation, *semaphore))
        brings[last] += old.nbytes
        other.flights.flying.append(Flight(*ends, last, old.nbytes, line))
        self.mesh.ends |= set(brings)
        copy = _Copy(old, new, dict(brings))
        if self.mesh.how.late:
            self.mesh.kept.append(copy)
        else:
            copy.make()
            self.mesh.came.update(brings)
        self.mesh.changed.notify_all()
        return []

    def _waits(self, equation: JaxprEqn, at: int, count: int, words: str) -> _Values:
        """Let the device wait until so much has come to a semaphore."""
        in_vain = partial(self.wrong, equation, words)
        self.mesh.until(self.number, lambda anyhow: self.mesh.comes(at, count, anyhow), in_vain)
        self.mesh.came[at] -= count
        return []

    def _dma_wait(self, equation: JaxprEqn, values: _Values) -> _Values:
        _, target, semaphore = copy_parts(equation.params["tree"], values)
        at, size = self.semaphore(equation, *semaphore), taken(*target).nbytes
        self._waits(equation, at, size, "wait never ends")
        rest = self.mesh.came[at] or any(at in copy.brings for copy in self.mesh.kept)
        flying = self.flights.flying
        for one in [one for one in flying if one.semaphore == at]:  # they come in turn
            size -= one.size
            if size >= 0 or not rest:
                flying.remove(one)
        return []

    def _signal(self, equation: JaxprEqn, values: _Values) -> _Values:
        ref, transforms, count, device, _ = equation.params["args_tree"].unflatten(values)
        other = self.there(equation, device, "no such device")
        self.mesh.came[address(self.at(other, equation, ref, transforms))] += int(count)
        self.mesh.changed.notify_all()
        return []

    def _wait(self, equation: JaxprEqn, values: _Values) -> _Values:
        ref, transforms, count, *_ = equation.params["args_tree"].unflatten(values)
        at = self.semaphore(equation, ref, transforms)
        return self._waits(equation, at, int(count), "semaphore never signalled")


_Device.meanings = Machine.meanings | {
    "axis_index": _Device._axis_index,
    "get_barrier_semaphore": _Device._barrier,
    "dma_start": _Device._dma_start,
    "dma_wait": _Device._dma_wait,
    "semaphore_signal": _Device._signal,
    "semaphore_wait": _Device._wait,
}
