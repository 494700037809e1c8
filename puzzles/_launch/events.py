"""The events of a kernel, in its own order: copies, waits, loads, stores and arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._equations import copy_parts
from puzzles._jax import JaxprEqn, made_by_a_pipeline
from puzzles._launch.abstract_refs import at_step, called
from puzzles._launch.log import LEAST, MOST
from puzzles._launch.slices import Ranges, ranges_of
from puzzles._program import FUEL

COPIES = ("dma_start", "dma_wait")
EVENTS = 4096  # kept at most: one for each execution of an equation, for all steps at once

# A ref, and the transforms that name a part of it, with numbers if they are known.
Part = tuple[Any, tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Event:
    """One execution of an equation: `name` is dma_start, dma_wait, get, swap, or work.

    weight: executions by each step, at most and at least, over the grid. size: bytes of a copy, or
    of a wait; 0 if unknown.
    """

    name: str
    equation: JaxprEqn
    values: tuple[Any, ...]
    weight: np.ndarray
    size: int = 0

    def times(self, ids: Sequence[int]) -> tuple[int, int]:
        """Executions by the step of these program ids, at most and at least."""
        return int(at_step(self.weight[MOST], ids)), int(at_step(self.weight[LEAST], ids))

    @property
    def by_pipeline(self) -> bool:
        """Whether `emit_pipeline` itself starts this copy."""
        return self.name == "dma_start" and made_by_a_pipeline(self.equation.source_info)

    def counts(self, program_ids: np.ndarray) -> np.ndarray:
        """(steps,) int: executions by each step, at most."""
        weight = self.weight[MOST]
        axes = zip(program_ids.T, weight.shape, strict=False)
        counts = weight[tuple(np.minimum(ids, n - 1) for ids, n in axes)]
        return np.broadcast_to(counts, len(program_ids))

    def parts(self, ids: Sequence[int] | None = None) -> tuple[Part, ...]:
        """Its refs at a step: source, target and semaphore of a copy, or the ref that it accesses.

        Empty for arithmetic. Without a step, numbers are over the grid.
        """
        if self.name == "work":
            return ()
        values = self.values if ids is None else [at_step(v, ids) for v in self.values]
        if self.name in COPIES:
            return copy_parts(self.equation.params["tree"], values)
        ref, transforms, *_ = accessed(self.equation, values)
        return ((ref, transforms),)


def place_in_hbm(part: Part) -> tuple[Any, Ranges] | None:
    """The array and the ranges of a part in HBM; None if it is elsewhere, unknown or empty."""
    ref, transforms = part
    ranges = ranges_of(transforms)
    if getattr(ref, "space", "") != "hbm" or ranges is None or any(a >= b for a, b, _ in ranges):
        return None
    return ref, ranges


def accessed(equation: JaxprEqn, values: Sequence[Any]) -> tuple[Any, tuple[Any, ...], Any, Any]:
    """The ref of a load or a store, its transforms, the stored value, and the mask."""
    name, params = equation.primitive.name, equation.params
    if "args_tree" in params:
        ref, transforms, third, fourth = params["args_tree"].unflatten(values)
        stored, mask = (None, third) if name == "masked_load" else (third, fourth)
        return ref, tuple(transforms), stored, mask
    first = 1 if name == "get" else 2  # a store has its value second
    return values[0], tuple(params["tree"].unflatten(values[first:])), values[first - 1], None


@dataclass
class Waits:
    """A kernel's waits for copies from one ref.

    exposed: waits for copies that no work hides: the kernel computed nothing since their start.
    most: copies from this ref in flight at once, at one of these waits. pauses: exposed waits,
    counting waits for copies in flight together, such as two halves of a slot, as one pause.
    hidden: the share of the kernel's work between a copy's start and its wait, summed up.
    """

    count: int = 0
    exposed: int = 0
    most: int = 0
    pauses: int = 0
    hidden: float = 0


def replay(
    events: Sequence[Event], program_ids: np.ndarray
) -> tuple[Mapping[str, Waits], list[int]] | None:
    """The waits by the name of the source ref, and the number of copies in flight at each wait.

    None if data decide, if a wait has no copy to wait for, or if there are too many events.
    """
    if not events:
        return {}, []
    if len(events) * len(program_ids) > FUEL:
        return None
    if any((event.weight[MOST] != event.weight[LEAST]).any() for event in events):
        return None
    started: list[_Started] = []
    flying: list[int] = []
    waits: dict[str, Waits] = {}
    computed = 0
    paused: dict[str, tuple[int, int]] = {}  # at the last exposed wait: computed, and waits before
    followed = [
        (event, event.counts(program_ids).tolist(), event.parts())
        for event in events
        if event.name in ("work", *COPIES)
    ]
    for step, ids in enumerate(program_ids.tolist()):
        for event, times, parts in followed:
            for _ in range(times[step]):
                if event.name == "work":
                    computed += 1
                else:
                    (source, _), _, (semaphore, index) = parts
                    name, slot = called(source), _numbers(index, ids)
                    if event.name == "dma_start":
                        before = waits.get(name, Waits()).count
                        started.append(
                            _Started(name, semaphore, slot, computed, before, event.size)
                        )
                        continue
                    ending = [copy for copy in started if copy.signals(semaphore, slot)]
                    if not ending:
                        return None
                    flying.append(len(started))
                    # copies of several arrays may share a semaphore: prefer the wait's own array
                    over = next((copy for copy in ending if copy.source == name), ending[0])
                    most = sum(copy.source == over.source for copy in started)
                    started.remove(over)
                    summary = waits.setdefault(over.source, Waits())
                    exposed, left = over.computed == computed, event.size - over.size
                    for copy in ending:  # this wait may also take the bytes of further copies
                        if left > 0 and copy is not over:
                            started.remove(copy)
                            exposed, left = exposed or copy.computed == computed, left - copy.size
                    last, waited = paused.get(over.source, (-1, 0))
                    same_pause = last == computed and over.waited <= waited
                    if exposed:
                        paused[over.source] = computed, summary.count
                    summary.count += 1
                    summary.exposed += exposed
                    summary.most = max(summary.most, most)
                    summary.pauses += exposed and not same_pause
                    summary.hidden += computed - over.computed
    for summary in waits.values():
        summary.hidden /= max(1, computed)
    return waits, flying


@dataclass(frozen=True, eq=False)
class _Started:
    """A copy in flight. index: if known. computed, waited: events and waits before its start."""

    source: str
    semaphore: Any
    index: tuple[int, ...] | None
    computed: int
    waited: int  # for copies from the same ref
    size: int

    def signals(self, semaphore: Any, index: tuple[int, ...] | None) -> bool:
        """Whether it signals this semaphore of an array, as far as the index is known."""
        return self.semaphore is semaphore and (None in (index, self.index) or index == self.index)


def _numbers(transforms: Sequence[Any], ids: Sequence[int]) -> tuple[int, ...] | None:
    """The index that transforms name at a step; None if it is unknown."""
    indices = (np.asarray(i) for t in transforms for i in getattr(t, "indices", ()))
    try:
        return tuple(int(at_step(i, ids)) for i in indices)
    except TypeError:
        return None
