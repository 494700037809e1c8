"""The things that the devices of a `shard_map` share: turns, clocks, semaphores and copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from puzzles._jax import JaxprEqn, jaxpr_as_fun
from puzzles._launch import View, text_of
from puzzles._program import UnsupportedError, Values, over_axes, single
from puzzles._rules import sentence
from puzzles._simulator.clocks import Clocks, End, Semaphore, VectorClock
from puzzles._simulator.machine import Machine
from puzzles._simulator.topology import Topology
from puzzles._simulator.turns import DeadlockError, Turns
from puzzles._simulator.wire import Clock, Wire


@dataclass(frozen=True)
class Access:
    """A load or a store ("reads", "writes") by a device at an epoch, and its line."""

    how: str
    view: View
    epoch: int
    line: str


@dataclass(frozen=True)
class _Wait:
    """A wait of a device, in words; `machine` is None between launches."""

    words: str
    machine: Machine | None = None
    equation: JaxprEqn | None = None
    semaphore: Semaphore | None = None
    count: int = 0

    def __str__(self) -> str:
        facts = dict(line=line_words(self.equation).removeprefix("in "), count=self.count)
        if self.semaphore is not None:
            facts |= dict(name=self.semaphore.name, came=self.semaphore.value)
        return sentence(self.words, **facts)


class Mesh:
    """The devices of one `shard_map`, and what happens between them.

    Args:
        slowest: the device that continues only when no other device can; None: they take turns.
        in_order: copies on one semaphore end in the order of their starts.
    """

    def __init__(
        self, axes: Mapping[str, int], wire: Wire, slowest: int | None, in_order: bool
    ) -> None:
        self.shape, self.in_order = Topology(axes), in_order
        self.count = count = self.shape.count
        self.clocks, self.time = Clocks(count), Clock(wire, self.shape)
        first = (slowest or 0) + 1
        self._turns = Turns([(first + n) % count for n in range(count)], slowest is None)
        # Of each launch: the machines of the devices that have entered it, and their epochs.
        self.launches: list[dict[int, tuple[Machine, int]]] = []
        self.semaphores: dict[tuple[int, int], Semaphore] = {}  # by device and address
        self.kept: list[np.ndarray] = []  # the memory of `semaphores`
        self._barriers: dict[tuple[int, Any], np.ndarray] = {}
        # Of each device: ends of copies in its memory, and its accesses by place, of which another
        # device may not know; and the devices that have signalled it, apart from the barrier.
        self.ends: list[list[End]] = [[] for _ in range(count)]
        self.accesses: list[dict[Any, Access]] = [{} for _ in range(count)]
        self.signalled: list[set[int]] = [set() for _ in range(count)]
        self._waits: dict[int, _Wait] = {}
        # Of each collective: operands and clocks by device, and the results of all devices.
        self._met: dict[int, dict[int, tuple[Values, VectorClock]]] = {}
        self._results: dict[int, Values] = {}

    def run(self, work: Callable[[int], Values]) -> list[Values]:
        """Run `work` on all devices, and return their results.

        Raises `HazardError` for a deadlock, or for a semaphore that is not back at zero.
        """
        try:
            parts = self._turns.run(work)
        except DeadlockError:
            self._deadlock()
        self._finish()
        return [parts[device] for device in range(self.count)]

    def enter(self, machine: Machine, device: int, launch: int, meets: bool) -> None:
        """Let a device enter a launch; it `meets` the others first if the kernel has no barrier."""
        while len(self.launches) <= launch:
            self.launches.append({})
        here = self.launches[launch]
        here[device] = machine, self.clocks.tick(device)
        if meets:
            ready = lambda: len(here) == self.count  # noqa: E731
            self.wait(device, ready, "device_waits_for_others", machine)
            self.clocks.join(device, [here[peer][1] for peer in range(self.count)])

    def entered(self, device: int, peer: int, launch: int) -> bool:
        """Whether a device knows that another device has entered a launch."""
        _, epoch = self.launches[launch].get(peer, (None, None))
        return self.clocks.knows(device, peer, epoch)

    def meet(self, device: int, number: int, equation: JaxprEqn, values: Values) -> Values:
        """A device's results of its nth collective, which all devices call before any goes on."""
        entries = self._met.setdefault(number, {})
        entries[device] = values, self.clocks.carried(device)
        ready = lambda: len(entries) == self.count  # noqa: E731
        self.wait(device, ready, "device_waits_in_collective", None, equation)
        if number not in self._results:
            rows = [single(equation, entries[n][0]) for n in range(self.count)]
            operands = (row for _, row in rows)
            columns = [jnp.asarray(np.stack(x)) for x in zip(*operands, strict=True)]
            collective = over_axes(jaxpr_as_fun(rows[0][0]), self.shape.axes)
            self._results[number] = collective(*columns)
        for _, clock in entries.values() if equation.primitive.name != "ppermute" else ():
            self.clocks.join(device, clock)
        return [np.asarray(x[device]) for x in self._results[number]]

    def barrier(self, device: int, collective: Any) -> np.ndarray:
        """The barrier semaphore of a device that launches of one `collective_id` share."""
        return self._barriers.setdefault((device, collective), np.zeros((), np.int64))

    def is_barrier(self, ref: np.ndarray) -> bool:
        """Whether a semaphore is the barrier semaphore of a device."""
        return any(ref is semaphore for semaphore in self._barriers.values())

    def wait(self, device: int, ready: Callable[[], bool], words: str, *where: Any) -> None:
        """Let a device wait; words, where: fields of `_Wait`, for a deadlock."""
        self._waits[device] = _Wait(words, *where)
        self._turns.wait(device, ready)
        del self._waits[device]

    def wait_for(
        self, machine: Machine, equation: JaxprEqn, semaphore: Semaphore, count: int, words: str
    ) -> None:
        """Let the device of a semaphore wait for it, and know what this wait proves."""
        device, ready = semaphore.device, lambda: semaphore.value >= count
        self.wait(device, ready, words, machine, equation, semaphore, count)
        semaphore.waited += count
        semaphore.taken += count
        self.clocks.join(device, semaphore.clock(self.count))
        now, latest = self.clocks.tick(device), 0.0
        for arrival, needed in semaphore.ended():
            latest = max(latest, arrival.time)
            for end in arrival.ends:
                end.happen()
                if needed and end.over is None:
                    end.over = now
        self.time.waits(device, latest, any(end.copy.remote for end in semaphore.ends))
        if not semaphore.value:
            semaphore.arrivals, semaphore.waited = [], 0
        self.ends[device] = [
            end for end in self.ends[device]
            if not all(self.clocks.knows(peer, device, end.over) for peer in range(self.count))
        ]  # fmt: skip

    def _deadlock(self) -> None:
        """Raise `HazardError` with the line in which each device waits."""
        places: dict[str, list[int]] = {}
        for device in self._waits:  # until the end of the picture
            self.time.waits(device, self.time.wire.seconds, False)
        for device in range(self.count):
            text = str(self._waits[device]) if device in self._waits else sentence("device_ended")
            places.setdefault(text, []).append(device)
        listed = "; ".join(f"{self.shape.names(who)} {text}" for text, who in places.items())
        waits = [wait for _, wait in sorted(self._waits.items()) if wait.machine is not None]
        # A part of the bytes shows the cause better than none.
        partial = (wait for wait in waits if wait.semaphore and wait.semaphore.value)
        wait = next(partial, next(iter(waits), None))
        if wait is None or wait.machine is None:
            raise UnsupportedError("a collective that some devices never call")
        words = "devices_deadlock" if wait.semaphore is None else "devices_wait_in_vain"
        words = "devices_wait_for_too_much" if wait.semaphore and wait.semaphore.came else words
        wait.machine.wrong(wait.equation, words, listed=listed, came=self._came(wait))

    def _came(self, wait: _Wait) -> str:
        """All that came to the semaphore of a wait, by sender; if nothing did, all copies."""
        if (semaphore := wait.semaphore) is None:
            return ""
        in_bytes = wait.words == "device_waits_for_bytes"
        unit = sentence("unit_of_bytes" if in_bytes else "unit_of_signals")
        device = self.shape.name(semaphore.device)
        facts: dict[str, Any] = dict(name=semaphore.name, device=device, unit=unit)
        if not semaphore.came:
            pairs = Counter((copy.source, copy.target) for copy in self.time.wire.transfers)
            copies = ", ".join(
                f"{self.shape.name(a)} to {self.shape.name(b)}" + f" ({n} times)" * (n > 1)
                for (a, b), n in sorted(pairs.items())
            )
            words = "nothing_came" if in_bytes and copies else "nothing_came_at_all"
            return sentence(words, **facts, copies=copies)
        came = sorted(semaphore.came.items())
        facts["parts"] = ", ".join(f"{size:,} from device {self.shape.name(n)}" for n, size in came)
        taken = sentence("earlier_waits_took", taken=semaphore.taken) if semaphore.taken else ""
        missing, others = wait.count - semaphore.value, self.semaphores.values()
        own = (s for s in others if s.device == semaphore.device and s is not semaphore)
        scratch = {x.name for x in wait.machine.launch.scratch} if wait.machine else set()
        alike = [s.name for s in own if s.came.total() == missing < wait.count]
        alike = [s for s in alike if s.strip("`").split("[")[0] in scratch]  # not in `sync_copy`
        if alike and not taken:
            taken = sentence("came_to_another", name=alike[0], missing=missing)
        return sentence("came_in_all", **facts, total=semaphore.came.total(), taken=taken)

    def _finish(self) -> None:
        """Raise `HazardError` if a semaphore is not back at zero; barriers come first."""
        left = [semaphore for semaphore in self.semaphores.values() if semaphore.value > 0]
        for semaphore in sorted(left, key=lambda s: (not s.barrier, not s.waited)):
            where: dict[str, Any] = dict(device=semaphore.device)
            words = "barrier_left_signalled" if semaphore.barrier else "semaphore_of_device_left"
            for end in semaphore.ends[:1]:
                landing = "landing_waited_in_part" if semaphore.waited else "landing_not_waited"
                words = landing if end.lands else "sending_not_waited"
                words = words if end.copy.remote else "copy_of_device_not_waited"
                where = dict(copy=end.copy.line, there=end.copy.receiver, device=end.copy.sender)
            machine, _ = self.launches[-1][semaphore.device]
            machine.ids = ()
            machine.wrong(None, words, name=semaphore.name, count=semaphore.value, **where)


def line_words(equation: JaxprEqn | None) -> str:
    """An equation's line, in backticks; JAX does not know those of `sync_copy` and the like."""
    text = "" if equation is None else text_of(equation.source_info)
    return f"`{text}`" if text else "in the kernel"
