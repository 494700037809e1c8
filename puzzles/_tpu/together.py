"""Kernels that speak to each other, simulated on as many devices of the host as they are.

JAX's simulator has a thread for each device, and memory that all share. Here each device has a
watch; a wait is in vain only once all of them wait, or have ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from puzzles._jax import JaxprEqn, jaxpr_as_fun, reset_tpu_interpret_mode_state
from puzzles._launch import ERROR, PALLAS_CALL, Finding, Launch, Traced, line_of, visited
from puzzles._rules import stuck
from puzzles._tpu import simulator_words as words
from puzzles._tpu.sanitizer import Sanitized, differing, refused
from puzzles._tpu.simulator import Run, drawn, forget_callbacks, listening, simulated
from puzzles._tpu.watch import How, Stuck, Watch, given_to

STEPS = 500  # of all devices
CALLS = 20_000  # of Python by each
TURN = 30  # looks, 10 ms apart, after which the next copy is made all the same
QUIET = 300  # looks, 10 ms apart, at which no device has done anything
_ENDS = ("src_sem_id", "dst_sem_id")
_LEFT = re.compile(r"Semaphore (\d+) has non-zero count")


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
        return Sanitized(
            why_not=f"the kernel speaks to {count} devices, and this Python has {len(here)}: in a "
            "shell `python -m puzzles examine` starts one that has 8, and so does XLA_FLAGS="
            f"--xla_force_host_platform_device_count={count}, set before JAX is imported"
        )
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
    except _Found as error:
        return Sanitized((error.finding,), said, "what comes after the first error")
    except NotImplementedError as error:
        return Sanitized(why_not=f"the simulator cannot run this: {error}")
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


def _in_a_thread(run: Callable[[], Any]) -> queue.SimpleQueue:
    """The queue that gets what it returned and what it raised."""
    done: queue.SimpleQueue = queue.SimpleQueue()

    def begin() -> None:
        try:
            done.put((run(), None))
        except BaseException as error:
            done.put((None, error))

    threading.Thread(target=begin, daemon=True).start()
    return done


class _Found(Exception):
    def __init__(self, finding: Finding) -> None:
        self.finding = finding


End = tuple[int, int]  # a device, and its semaphore


@dataclasses.dataclass(eq=False)
class _Copy:
    """A copy that is kept back: what makes it, and where it is to arrive."""

    make: Callable[[], Any]
    target: End
    made: bool = False


class _Together:
    """A watch for each device, and what they are at: computing, waiting, or done."""

    def __init__(self, equation: JaxprEqn, launch: Launch, count: int, how: How) -> None:
        self.launch, self.count = launch, count
        steps = [tuple(ids) for ids in launch.program_ids.tolist()]
        self.watches = [Watch(equation, how, steps, self.runs(n)) for n in range(count)]
        self.at = ["computing"] * count
        self.moves = 0  # of all devices
        self.lock, self.copying = threading.Lock(), threading.Lock()
        self.barriers: set[int] = set()  # semaphores, by their number
        self.ends: set[int] = set()  # those that tell of copies
        self.left: set[int] = set()
        self.gone: Finding | None = None
        self.failed: Watch | None = None  # the first one
        self.starved = False
        # Copies that are still to be told to the simulator, by device and semaphore. Of those that
        # tell one semaphore it makes the last first; here they are made in turn, as kernels of
        # JAX's own count on: the next one is told when the one before was waited for.
        self.late = not how.eager
        self.later: dict[End, list[_Copy]] = {}
        self.coming: Counter[End] = Counter()  # told, less those that were waited for
        self.semaphores = [(n, -1) for n in range(count)]  # that each device waits for, or did

    def run(self, execute: Callable, args: list[Any]) -> Run:
        """What all devices give; raises `_Found`, or NotImplementedError."""
        try:
            with listening(self):
                results = [np.asarray(out) for out in jax.block_until_ready(execute(*args))]
        except Exception as error:
            forget_callbacks()
            raise self.translated(error) from None
        finally:
            reset_tpu_interpret_mode_state()
        if self.left:
            rule = "semaphore left signalled"
            if self.barriers & self.left:
                rule = "barrier left signalled"
            elif self.ends & self.left:
                rule = "remote copy never waited for"
            raise _Found(self.stuck(rule, None))
        return Run(results, self.watches)

    def translated(self, error: Exception) -> Exception:
        if self.gone is not None:
            return _Found(self.gone)
        if self.starved:
            return NotImplementedError("a device did not get its turn: set NPROC=16 before JAX")
        cause = error if self.failed is None else self.failed.failure
        if self.failed is None or not isinstance(cause, Exception):
            return NotImplementedError(f"{type(cause).__name__}: {cause}")
        if isinstance(cause, Stuck):
            return _Found(self.stuck(cause.args[0], self.failed))
        found = words.translate(cause, self.failed)
        return NotImplementedError(found) if isinstance(found, str) else _Found(found)

    def stuck(self, rule: str, watch: Watch | None) -> Finding:
        what, remedy = stuck(rule)
        says, line = f"The kernel {what}", self.launch.line
        if watch is not None:
            where = f" at grid step {watch.step}" if watch.step else ""
            says += f"{where}, in `{watch.line()}`" if watch.line() else where
            line = line_of(watch.failed[1].get("source_info")) or line
        return Finding("hazard", ERROR, f"{says}.", remedy, self.launch.name, line=line)

    def here(self, *given: Any) -> Any:
        """The simulator's `grid_point_recorder`, which does not know which device calls."""
        *token, _, _ = given
        return token[0] if token else ()

    def call(self, *args: Any, callback: Any, **more: Any) -> Any:
        """In place of JAX's `io_callback_impl`, in the thread of a device."""
        name, given = given_to(callback, args)
        self.moves += 1
        device = int(given.get("device_id", 0))
        for key in ("dst_device_id", "target_device_id"):
            there = given.get(key)
            if there is not None and not 0 <= int(there) < self.count:
                self.gone = self.gone or self.beyond(int(there), name, given, device)
                raise RuntimeError("a device that is not there")
            if there is not None and name == "dma_start":
                self.until_there(self.watches[int(there)])
        watch = self.watches[device]
        make = partial(watch.call, *args, callback=callback, **more)
        if name == "dma_start":
            self.ends |= {int(given[end]) for end in _ENDS if given.get(end) is not None}
        try:
            if name == "dma_start" and self.late:
                self.postpone(make, device, given)
                return [np.asarray(given["token"])] if "token" in given else []
            if name in ("dma_wait", "semaphore_wait"):
                self.semaphores[device] = device, int(given["sem_id"])
            result = make()
        except BaseException:
            self.failed = self.failed or watch
            raise
        if name == "get_barrier_semaphore":
            self.barriers.add(int(result[-1]))
        return result

    def postpone(self, make: Callable[[], Any], device: int, given: Mapping[str, Any]) -> None:
        """Keep a copy until somebody waits for either end of it."""
        there = given.get("dst_device_id")
        copy = _Copy(make, (device if there is None else int(there), int(given["dst_sem_id"])))
        ends = {copy.target}
        if given.get("src_sem_id") is not None:
            ends.add((device, int(given["src_sem_id"])))
        for end in ends:
            self.later.setdefault(end, []).append(copy)

    def made(self, end: End, looks: int) -> bool:
        """Whether the first copy that is kept for this end was, or is now, told to the simulator.

        looks: for how long nobody has done anything.
        """
        with self.copying:
            kept, early = self.later.get(end), looks < TURN or "computing" in self.at
            if not kept or (not kept[0].made and self.coming[kept[0].target] and early):
                return False
            copy = kept.pop(0)
            if not copy.made:
                copy.made = True
                self.coming[copy.target] += 1
                copy.make()
            return True

    def until_there(self, target: Watch) -> None:
        """Wait until a device has the buffers of its launch; that is no check for a barrier."""
        looks = 0
        while not (target.launched or self.failed or self.gone or self.starved):
            looks += 1
            self.starved |= looks > 4 * QUIET
            time.sleep(0.01)

    def beyond(self, there: int, name: str, given: Mapping[str, Any], device: int) -> Finding:
        what = "copies to" if name == "dma_start" else "signals"
        step = self.watches[device].step
        says = (
            f"Device {device} {what} device {there}{f' at grid step {step}' if step else ''}, and "
            f"there are {self.count}, numbered from 0."
        )
        remedy = "Take the number of a neighbour modulo the length of the axis."
        line = line_of(given.get("source_info")) or self.launch.line
        return Finding("out-of-bounds", ERROR, says, remedy, self.launch.name, None, step, line)

    def runs(self, device: int) -> dict[str, Callable[[Callable[[], Any]], Any]]:
        """How what may wait for another device is run."""
        rules = {"dma_wait": "wait never ends", "semaphore_wait": "semaphore never signalled"}
        rules |= dict.fromkeys(("_barrier", "_clean_up_shared_memory"), "")
        waits = {name: partial(self.wait, device, rule) for name, rule in rules.items()}
        return waits | {"_validate": partial(self.validate, device)}

    def wait(self, device: int, rule: str, wait: Callable[[], Any]) -> Any:
        """What a wait returns; in vain if all wait, or are done. The thread is then given up."""
        done = _in_a_thread(wait)
        before, self.at[device] = self.at[device], "waiting" if rule else "done"
        looks, moves = 0, self.moves
        while True:
            try:
                result, error = done.get(timeout=0.01)
                break
            except queue.Empty:
                if rule and self.made(self.semaphores[device], looks):
                    looks = 0
                    continue
                looks, moves = (looks + 1, moves) if moves == self.moves else (0, self.moves)
                if looks > QUIET and "computing" not in self.at and not self.failed:
                    raise Stuck(rule or "wait never ends") from None
                self.starved |= looks > 4 * QUIET
                if self.failed or self.gone or self.starved:
                    raise RuntimeError("another device is the cause") from None
        self.at[device], self.moves = before, self.moves + 1
        if rule and self.coming[self.semaphores[device]]:
            self.coming[self.semaphores[device]] -= 1
        if error is not None:
            raise error
        return result

    def validate(self, device: int, validate: Callable[[], Any]) -> Any:
        """What the end of a launch returns; the simulator prints which semaphores are not at zero.

        Nobody stops here: the other devices wait.
        """
        with self.lock, contextlib.redirect_stdout(io.StringIO()) as printed:
            result = validate()
        self.left |= set(map(int, _LEFT.findall(printed.getvalue())))
        self.at[device] = "done"
        return result
