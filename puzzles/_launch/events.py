"""What a kernel does with its buffers, in its own order: copies, loads and stores, arithmetic."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._jax import JaxprEqn, copy_parts
from puzzles._launch.work import LEAST, MOST

EVENTS = 4096  # that are kept: one for each execution of an equation, for all steps at once

# A ref, and the transforms that name a part of it: numbers where they are known.
Part = tuple[Any, tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Event:
    """One execution of an equation: `name` is dma_start, dma_wait, get, swap, or work.

    `weight` says over the grid how often, at most and at least, as a walk counts.
    """

    name: str
    equation: JaxprEqn
    values: tuple[Any, ...]
    weight: np.ndarray

    def times(self, ids: Sequence[int]) -> tuple[int, int]:
        """How often the step of these program ids executes it, at most and at least."""
        return int(_at(self.weight[MOST], ids)), int(_at(self.weight[LEAST], ids))

    def parts(self, ids: Sequence[int]) -> tuple[Part, ...]:
        """What it names at that step: of a copy source, target and semaphore, else what it touches.

        Nothing for arithmetic.
        """
        if self.name == "work":
            return ()
        values = [_at(v, ids) if isinstance(v, np.ndarray) else v for v in self.values]
        params = self.equation.params
        if self.name in ("dma_start", "dma_wait"):
            return copy_parts(params["tree"], values)
        if "args_tree" in params:
            ref, transforms, *_ = params["args_tree"].unflatten(values)
            return ((ref, tuple(transforms)),)
        first = 1 if self.name == "get" else 2  # a store has its value second
        return ((values[0], tuple(params["tree"].unflatten(values[first:]))),)


@dataclass(frozen=True)
class Waits:
    """A kernel's waits for copies from one ref.

    exposed: those at which nothing was computed since the copy was started: no work hides it.
    most: copies from this ref that are in flight at one of these waits.
    """

    count: int = 0
    exposed: int = 0
    most: int = 0


_STEPS = 200_000  # events over all steps that are followed


def waits(events: Sequence[Event], program_ids: np.ndarray) -> Mapping[str, Waits] | None:
    """By the name of the ref that is copied from; None where data decide, or there is too much."""
    if len(events) * len(program_ids) > _STEPS:
        return None
    if any((event.weight[MOST] != event.weight[LEAST]).any() for event in events):
        return None
    started: dict[str, deque[int]] = defaultdict(deque)  # how much was computed before each copy
    found: dict[str, Waits] = {}
    computed = 0
    for ids in program_ids:
        for event in events:
            for _ in range(event.times(ids)[0]):
                if event.name == "work":
                    computed += 1
                elif event.name in ("dma_start", "dma_wait"):
                    name = getattr(event.parts(ids)[0][0], "name", "") or "a ref"
                    mine = started[name]
                    if event.name == "dma_start":
                        mine.append(computed)
                        continue
                    if not mine:  # the wait describes another source, of as many bytes
                        return None
                    old, most = found.get(name, Waits()), len(mine)
                    bare = mine.popleft() == computed
                    found[name] = Waits(old.count + 1, old.exposed + bare, max(old.most, most))
    return found


def _at(value: np.ndarray, ids: Sequence[int]) -> Any:
    """A value at one step: a number, or an array of its own axes."""
    return value[tuple(min(i, n - 1) for i, n in zip(ids, value.shape, strict=False))]
