"""Kernels that speak to each other, simulated on as many devices of the host as they are.

JAX's simulator has a thread for each device, and memory that all share. Here each device has a
watch; a wait is in vain only once all of them wait, or have ended.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from puzzles._jax import JaxprEqn, forget_callbacks, jaxpr_as_fun, reset_tpu_interpret_mode_state
from puzzles._launch import (
    PALLAS_CALL,
    Finding,
    Launch,
    Traced,
    line_of,
    text_of,
    told,
    visited,
    when,
)
from puzzles._rules import sentence
from puzzles._tpu import simulator_words as words
from puzzles._tpu.sanitizer import AFTER_THE_FIRST, Sanitized, differing, refused
from puzzles._tpu.simulator import Run, SimulationError, drawn, listening, simulated
from puzzles._tpu.watch import WAITS, End, How, Watch, given_to

STEPS = 500  # of all devices
CALLS = 20_000  # of Python by each
PATIENCE = 15  # seconds in which no device has done anything
# Where the simulator lets devices wait for each other, however the kernel is written.
_MEETINGS = ("_barrier", "_clean_up_shared_memory")


def axes_around(traced: Traced) -> list[dict[str, int]]:
    """For each kernel call the axes of the mesh that it is mapped over, and their lengths."""
    around = []
    for equation, path in visited(traced.jaxpr.jaxpr):
        if equation.primitive.name == PALLAS_CALL:
            around.append({name: n for one in path for name, n in _mapped_over(one)})
    return around


def _mapped_over(equation: JaxprEqn) -> Iterator[tuple[str, int]]:
    if equation.primitive.name == "shard_map":
        mesh = equation.params["mesh"]
        manual = equation.params.get("manual_axes", mesh.axis_names)
        yield from ((name, mesh.shape[name]) for name in mesh.axis_names if name in manual)


def sanitize_together(
    traced: Traced, launch: Launch, axes: Mapping[str, int], seed: int = 0
) -> Sanitized:
    """What the simulator finds in one launch that runs on every device of a mesh at once.

    Arguments that are only shapes get other data on each device. Nothing is simulated where this
    Python has too few devices.
    """
    count = math.prod(axes.values())
    here = jax.local_devices(backend="cpu")
    if len(here) < count:
        return Sanitized(why_not=sentence("too few devices", count=count, here=len(here)))
    if launch.steps * count > STEPS:
        return Sanitized(why_not=f"{launch.steps:,} steps on {count} devices take too long")
    if (why := refused(traced, (launch,))) is not None:
        return Sanitized(why_not=why)
    (call,) = traced.jaxpr.jaxpr.eqns
    equation, program = simulated(call, traced.jaxpr, 0)
    args = [_rows(x, count, seed + n) for n, x in enumerate(traced.leaves)]
    execute = _on_each(jaxpr_as_fun(program), traced, axes, here[:count], args)
    said = f"all steps on {count} devices"
    try:
        _, found = differing(
            lambda how: _Together(equation, launch, count, how).run(execute, args),
            How(calls=CALLS),
            ("eager", "unwritten"),
        )
    except SimulationError as error:
        if error.finding is None:
            return Sanitized(why_not=f"the simulator cannot run this: {error}")
        return Sanitized((error.finding,), said, AFTER_THE_FIRST)
    if found is None:
        return Sanitized((), said)
    line = found.line or launch.line
    return Sanitized((dataclasses.replace(found, launch=launch.name, line=line),), said)


def _rows(leaf: Any, count: int, seed: int) -> Any:
    """For each device its part along the first axis; what is known is the same for all."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        first, *others = leaf.shape
        return drawn(jax.ShapeDtypeStruct((count * first, *others), leaf.dtype), seed)
    return np.asarray(leaf)


def _on_each(
    fn: Callable, traced: Traced, axes: Mapping[str, int], devices: list[Any], args: list[Any]
) -> Callable[..., Any]:
    """The function compiled for each device's part of the arguments, at once."""
    if axes:
        mesh = jax.sharding.Mesh(np.array(devices).reshape(*axes.values()), tuple(axes))
        parts = jax.sharding.PartitionSpec(tuple(axes))
        everywhere = jax.sharding.PartitionSpec()
        drawn = (isinstance(leaf, jax.ShapeDtypeStruct) for leaf in traced.leaves)
        given = tuple(parts if one else everywhere for one in drawn)
        fn = jax.shard_map(fn, mesh=mesh, in_specs=given, out_specs=parts, check_vma=False)
    return jax.jit(fn).lower(*args).compile()


@dataclasses.dataclass(eq=False)
class _Copy:
    """A copy that is kept back: what makes it, and what it brings to which semaphores."""

    make: Callable[[], Any]
    brings: dict[End, int]
    target: End


class _Together:
    """A watch for each device, and what the devices wait for.

    Of the copies that tell one semaphore the simulator makes the last first; here they are made in
    turn, as kernels of JAX's own count on: the simulator is told of a copy when somebody waits for
    either end of it, and what came to that end before was waited for.
    """

    def __init__(self, equation: JaxprEqn, launch: Launch, count: int, how: How) -> None:
        self.launch, self.count, self.late = launch, count, not how.eager
        steps = [tuple(ids) for ids in launch.program_ids.tolist()]
        self.watches = [Watch(equation, how, steps) for _ in range(count)]
        self.changed = threading.Condition()
        self.pending: dict[int, Callable[[bool], bool]] = {}  # what a device waits for
        self.met: Counter[str] = Counter()  # how often a device has come to a meeting
        self.kept: list[_Copy] = []
        self.told: Counter[End] = Counter()  # what came to a semaphore, less what was waited for
        self.barriers: set[int] = set()  # semaphores, by their number
        self.ends: set[int] = set()  # those that tell of copies
        self.gone: Finding | None = None
        self.failed = False
        self.starved = False

    def run(self, execute: Callable, args: list[Any]) -> Run:
        """What all devices give; raises `SimulationError`."""
        try:
            with listening(self):
                results = [np.asarray(out) for out in jax.block_until_ready(execute(*args))]
        except Exception as error:
            forget_callbacks()
            raise SimulationError(self.translated(error)) from None
        finally:
            reset_tpu_interpret_mode_state()
        left = {number for (_, number), count in self.told.items() if count > 0}
        left |= {number for copy in self.kept for _, number in copy.brings}
        if left:
            rule = "semaphore left signalled"
            if self.barriers & left:
                rule = "barrier left signalled"
            elif self.ends & left:
                rule = "remote copy never waited for"
            raise SimulationError(self.found("hazard", rule))
        return Run(results, self.watches)

    def translated(self, error: Exception) -> Finding | str:
        if self.gone is not None:
            return self.gone
        if self.starved:
            return "a device did not get its turn: set NPROC=16 before JAX"
        watch = next((one for one in self.watches if one.failure is not None), None)
        cause = error if watch is None else watch.failure
        if watch is None or not isinstance(cause, Exception):
            return f"{type(cause).__name__}: {cause}"
        return words.translate(cause, watch)

    def found(
        self, kind: str, words: str, step: Any = None, info: Any = None, /, **facts: Any
    ) -> Finding:
        """What is told in words of that name, at a grid step and the line of `info`."""
        where = dict(launch=self.launch.name, line=line_of(info) or self.launch.line)
        facts |= dict(when=when(step), where=when(step, text_of(info)))
        return told(kind, words, **where, **facts)

    def here(self, *given: Any) -> Any:
        """The simulator's `grid_point_recorder`, which does not know which device calls."""
        *token, _, _ = given
        return token[0] if token else ()

    def call(self, *args: Any, callback: Any, **more: Any) -> Any:
        """In place of JAX's `io_callback_impl`, in the thread of a device."""
        name, given = given_to(callback, args)
        device = int(given.get("device_id", 0))
        watch = self.watches[device]
        make = partial(watch.call, *args, callback=callback, **more)
        brings = watch.brings(name, given)
        try:
            self.are_there(name, given, device, brings)
            if name == "dma_start":
                ends = [self.watches[there] for there, _ in brings]
                self.until(device, lambda _: all(one.launched for one in ends))
                self.ends |= {number for _, number in brings}
                if self.late:
                    with self.changed:
                        self.kept.append(_Copy(make, brings, list(brings)[-1]))
                        self.changed.notify_all()
                    return [np.asarray(given["token"])] if "token" in given else []
            elif name in _MEETINGS:
                self.meet(name, device)
            elif name in WAITS:
                self.wait(name, given, device)
            result = make()
        except BaseException:
            with self.changed:
                self.failed = True
                self.changed.notify_all()
            raise
        if name == "get_barrier_semaphore":
            self.barriers.add(int(result[-1]))
        with self.changed:
            self.told.update(brings)
            self.changed.notify_all()
        return result

    def are_there(
        self, name: str, given: Mapping[str, Any], device: int, brings: Mapping[End, int]
    ) -> None:
        """Whether devices that something comes to are."""
        for there, _ in brings:
            if not 0 <= there < self.count:
                words = "copies to no such device" if name == "dma_start" else "no such device"
                step, info = self.watches[device].step, given.get("source_info")
                facts = dict(device=device, there=there, count=self.count)
                gone = self.found("out-of-bounds", words, step, info, step=step, **facts)
                self.gone = self.gone or gone
                raise RuntimeError("a device that is not there")

    def meet(self, name: str, device: int) -> None:
        """Wait until all have come as often."""
        with self.changed:
            all_there = (self.met[name] // self.count + 1) * self.count
            self.met[name] += 1
        self.until(device, lambda _: self.met[name] >= all_there)

    def wait(self, name: str, given: Mapping[str, Any], device: int) -> None:
        """Wait until the simulator's own wait will end at once."""
        rule, wanted = WAITS[name]
        end, count = (device, int(given["sem_id"])), int(given[wanted])
        step, info = self.watches[device].step, given.get("source_info")
        in_vain = partial(self.found, "hazard", rule, step, info)
        with self.changed:
            self.until(device, lambda anyhow: self.comes(end, count, anyhow), in_vain)
            self.told[end] -= count

    def comes(self, end: End, count: int, anyhow: bool) -> bool:
        """Whether so much has come to a semaphore, if copies that are due are told.

        anyhow: also those before whose turn it is.
        """
        while self.told[end] < count:
            copy = next((one for one in self.kept if end in one.brings), None)
            if copy is None:
                return False
            if self.told[copy.target] > 0 and copy.target != end and not anyhow:
                return False
            self.kept.remove(copy)
            copy.make()
            self.told.update(copy.brings)
            self.changed.notify_all()
        return True

    def until(
        self,
        device: int,
        ready: Callable[[bool], bool],
        in_vain: Callable[[], Finding] | None = None,
    ) -> None:
        """Let a device wait; in vain, if all of them do, and copies out of turn would not help."""
        with self.changed:
            self.pending[device] = ready
            self.changed.notify_all()  # who waits in vain asks whether all do
            while not ready(False):
                all_wait = len(self.pending) == self.count
                if all_wait and not any(one(False) for one in self.pending.values()):
                    if not any(one(True) for one in self.pending.values()) and in_vain is not None:
                        self.gone = self.gone or in_vain()
                        raise RuntimeError("the wait never ends")
                    if ready(False):
                        break
                self.starved |= not self.changed.wait(PATIENCE)
                if self.failed or self.gone or self.starved:
                    raise RuntimeError("another device is the cause")
            del self.pending[device]
