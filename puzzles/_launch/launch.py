"""Launches, read from the trace of a `pallas_call`: blocks, bytes, buffers, executed work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from puzzles._launch.accesses import Accesses, added, alone, rewritten, touched
from puzzles._launch.copies import Copy, copied
from puzzles._launch.events import COPIES, Waits, replay
from puzzles._launch.log import LEAST, MOST, Dot, Log
from puzzles._launch.operand import Operand, spread


@dataclass(frozen=True)
class AliasCost:
    """An output that shares an input's memory, and XLA's work on that memory before the launch.

    how: "fills" it with a constant, "computes" it, or "copies" an argument that is not donated.
    """

    output: str
    bytes: int
    how: str


@dataclass(frozen=True)
class Settings:
    """The arguments of a `pallas_call` besides its blocks."""

    dimension_semantics: tuple[str, ...] | None  # of the whole grid, as Mosaic sees it
    aliases: tuple[tuple[int, int], ...]  # (position in inputs, position in outputs)
    interpret: Any
    unknown: str | None  # the type of `compiler_params` if JAX has no such type
    cores: int = 1  # of `pl.kernel`; if there are several, they are the steps of the grid
    asked: int | None = None  # FLOPs, by its `cost_estimate`


class Core(tuple):
    """The numbers of a core: messages name it in place of a grid step."""

    def __str__(self) -> str:
        return f"core {', '.join(map(str, self))}"


@dataclass(frozen=True)
class Surroundings:
    """The program around a launch.

    unused: outputs that it drops, as if they were scratch. made: its work for aliased outputs.
    empty: inputs that `jax.lax.empty` makes, unless the kernel only writes into their memory.
    """

    unused: frozenset[int]
    made: tuple[AliasCost, ...]
    empty: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Launch:
    """One `pallas_call`. Its counts are exact if nothing in the kernel depends on data.

    Each of `unknown_branches` counts as taken at every step ("at most"), and each of
    `unknown_loops` as run once ("at least"); `least` counts only what is certain.
    """

    name: str
    grid: tuple[int, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    scratch: tuple[Operand, ...]
    scalars: tuple[Operand, ...]  # scalar prefetch
    scalar_values: tuple[np.ndarray | None, ...]  # contents, None if unknown
    log: Log
    settings: Settings
    vmem_limit_bytes: int | None
    around: Surroundings
    line: str | None  # the line that launches it
    times: int | None  # runs by the loop around it; None if data decide
    which: int = MOST  # of the counts in `log`

    @cached_property
    def least(self) -> Launch:
        """The launch with lower bounds for counts: compare these with a budget."""
        if self.exact or self.which == LEAST:
            return self
        return replace(self, which=LEAST).with_copies()

    def with_copies(self) -> Launch:
        """The launch with the transfers of the kernel's own copies, for operands in HBM."""
        groups = (self.inputs, self.outputs, self.scratch)
        inputs, outputs, scratch = (tuple(copied(o, self.copies) for o in g) for g in groups)
        return replace(self, inputs=inputs, outputs=outputs, scratch=scratch)

    @cached_property
    def dots(self) -> tuple[Dot, ...]:
        """Each dot of the kernel, with the steps that execute it."""
        dots = self.log.dots.values()
        return tuple(Dot.of(e, spread(weight[self.which], self.grid)) for e, weight in dots)

    @property
    def flops(self) -> int:
        """Floating-point operations."""
        return self.log.flops[self.which]

    @property
    def transcendentals(self) -> int:
        """Of those the exps and their like."""
        return self.log.transcendentals[self.which]

    @property
    def lanes(self) -> int:
        """Of the vectors that hold exps."""
        return self.log.lanes[self.which]

    @property
    def vector_slots(self) -> int:
        """Quarters of a cycle in which the vector unit computes."""
        return self.log.slots[self.which]

    @cached_property
    def moving_steps(self) -> int:
        """Steps that move a block: of the grid, and of `emit_pipeline` inside the kernel."""
        piped = [o.fetched for o in (*self.inputs, *self.outputs) if o.piped]
        return int(np.any(piped, axis=0).sum() if piped else 0) + self.pipeline_steps

    @cached_property
    def pipeline_steps(self) -> int:
        """Steps of `emit_pipeline` in the kernel that move a block."""
        inner: dict[str, list[int]] = {}
        for copy in self.copies:
            if copy.by_pipeline:
                array = copy.source if copy.spaces[0] == "hbm" else copy.target
                inner.setdefault(array, []).append(copy.times)
        # A long loop counts a copy in every step, though the first block is copied before it.
        return max(map(sum if self.exact else max, inner.values()), default=0)

    @property
    def all_steps(self) -> int:
        """Grid steps; without a grid, the steps of `emit_pipeline` in the kernel."""
        return self.pipeline_steps or 1 if self.steps == self.settings.cores else self.steps

    @cached_property
    def bytes_by_core(self) -> np.ndarray:
        """(cores, 2) bytes that each core of a mesh reads from HBM, and writes there."""
        far = np.array([[space == "hbm" for space in copy.spaces] for copy in self.copies], int)
        each = np.array([copy.bytes_each * copy.executed for copy in self.copies], np.int64)
        return each.reshape(-1, self.steps).T @ far.reshape(-1, 2)

    @property
    def largest_share(self) -> float:
        """The largest part of the bytes that one core moves."""
        totals = self.bytes_by_core.sum(axis=1)
        return totals.max() / totals.sum() if totals.any() else 1 / self.steps

    @cached_property
    def copies(self) -> tuple[Copy, ...]:
        """Those that the kernel starts by hand."""
        return tuple(
            Copy.of(move, within, spread(weight[self.which], self.grid))
            for (_, move), (within, weight) in self.log.copies.items()
        )

    @property
    def unknown_branches(self) -> int:
        """Branches that depend on data."""
        return len(self.log.branches)

    @property
    def unknown_loops(self) -> int:
        """Loops whose length depends on data."""
        return len(self.log.loops)

    @cached_property
    def busy(self) -> np.ndarray:
        """(steps,) bool: the step executes floating arithmetic, at most."""
        busy = self.log.busy
        return spread(busy[MOST] if busy.ndim else busy, self.grid)

    @property
    def dimension_semantics(self) -> tuple[str, ...] | None:
        """Of the whole grid, as Mosaic sees it."""
        return self.settings.dimension_semantics

    @property
    def aliases(self) -> tuple[tuple[int, int], ...]:
        """Pairs of an input and an output, by position."""
        return self.settings.aliases

    @property
    def exact(self) -> bool:
        """Whether all counts are exact."""
        in_doubt = self.log.moved or self.unknown_branches or self.unknown_loops
        return not in_doubt and all(copy.exact for copy in self.copies)

    @property
    def bound(self) -> str:
        """The words before a count: "" if it is exact, "at most", "about" or "at least"."""
        if self.log.moved:
            return "about"
        return "at least" if self.unknown_loops else "" if self.exact else "at most"

    @cached_property
    def touched(self) -> Accesses:
        """Refs that are read before they are written, never read, never written or never stored."""
        started = [self.outputs[position].name for _, position in self.aliases]
        blocks = [o for o in self.inputs + self.outputs if o.piped and o.name not in started]
        return touched(self.log.touches, blocks, self.scratch, self.grid)

    @cached_property
    def idle(self) -> np.ndarray:
        """(steps,) bool: without arithmetic, and without the only store into a block.

        A kernel without any arithmetic only copies: none of its steps is idle.
        """
        if not self.busy.any():
            return np.zeros_like(self.busy)
        return ~(self.busy | alone(self.log.touches, self.outputs, self.grid))

    def at(self, step: int) -> tuple[int, ...]:
        """The program ids of a step that is counted from 0."""
        ids = (int(n) for n in self.program_ids[step])
        return Core(ids) if self.settings.cores > 1 else tuple(ids)

    def rewritten(self, name: str | None) -> bool:
        """Whether an output's blocks are never read, and each visit writes the whole block.

        Then a revisit needs nothing from the first visit, and the last visit counts.
        """
        aliased = {position for _, position in self.aliases}
        outputs = (output for n, output in enumerate(self.outputs) if n not in aliased)
        return any(o.name == name and rewritten(self.log.touches, o, self.grid) for o in outputs)

    def when(self, step: int) -> str:
        """ " at grid step (1, 0)"; empty without a grid."""
        return f" at grid step {self.at(step)}" if self.grid else ""

    def added(self, operand: Operand) -> np.ndarray | None:
        """(steps,) the share of its sum that a ref holds after each step; None without a sum."""
        return added(self.log.touches, operand, self.grid)

    @property
    def steps(self) -> int:
        """Grid steps."""
        return math.prod(self.grid)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """All refs in the order of the kernel's parameters."""
        return self.scalars + self.inputs + self.outputs + self.scratch

    @property
    def hbm_bytes_read(self) -> int:
        """Bytes that scalar prefetch, the pipeline and the kernel's own copies read."""
        piped = sum(o.hbm_bytes for o in self.scalars + self.inputs if o.piped)
        return piped + sum(copy.bytes for copy in self.copies if copy.spaces[0] == "hbm")

    @property
    def hbm_bytes_written(self) -> int:
        """Bytes that the pipeline writes back, and the kernel's own copies write."""
        piped = sum(o.hbm_bytes for o in self.outputs if o.piped)
        return piped + sum(copy.bytes for copy in self.copies if copy.spaces[1] == "hbm")

    @property
    def hbm_bytes(self) -> int:
        """Bytes read and written."""
        return self.hbm_bytes_read + self.hbm_bytes_written

    @property
    def vmem_bytes(self) -> int:
        """Bytes of all buffers and scratch in VMEM, padded to tiles; without values of the body."""
        return sum(o.vmem_bytes for o in self.operands) + self.log.scoped_vmem_bytes

    @property
    def smem_bytes(self) -> int:
        """Bytes of all scalars, buffers and scratch in SMEM."""
        return sum(o.smem_bytes for o in self.operands)

    @property
    def dot_flops(self) -> int:
        """Operations of the dots alone."""
        return sum(dot.flops for dot in self.dots)

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte of HBM traffic."""
        if not self.hbm_bytes:
            return math.inf if self.flops else 0.0
        return self.flops / self.hbm_bytes

    @cached_property
    def in_flight(self) -> np.ndarray | None:
        """Copies in flight at each wait, in order, with the awaited copy; None if unknown."""
        copying = [event for event in self.log.events if event.name in COPIES]
        replayed = None if self.log.cut else replay(copying, self.program_ids)
        return None if replayed is None else np.array(replayed[1], np.int64)

    @cached_property
    def waits(self) -> Mapping[str, Waits] | None:
        """The kernel's waits for its own copies, by the name of the source ref.

        None if data decide about them, or if only the first events are known.
        """
        replayed = None if self.log.cut else replay(self.log.events, self.program_ids)
        return None if replayed is None else replayed[0]

    def elements_read(self, name: str) -> tuple[np.ndarray, ...]:
        """The elements of a scalar ref that each read takes: (steps,) each, -1 without a read."""
        found: dict[bytes, np.ndarray] = {}
        for look in self.log.looks:
            if look.ref.name == name:
                steps = spread(np.where(look.weight > 0, look.element, -1), self.grid)
                found.setdefault(steps.tobytes(), steps)
        return tuple(found.values())

    @cached_property
    def program_ids(self) -> np.ndarray:
        """The program ids of every step, shape (steps, len(grid))."""
        axes = np.indices(self.grid, dtype=np.int32)
        return np.ascontiguousarray(axes.reshape(len(self.grid), self.steps).T)
