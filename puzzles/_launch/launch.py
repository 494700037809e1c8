"""What a `pallas_call` does, read from its trace: blocks, bytes, buffers, executed work."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from puzzles._launch.events import Event, Waits, waits
from puzzles._launch.moves import Copy, Flight, Piece, in_flight, pieces
from puzzles._launch.operand import Operand, spread
from puzzles._launch.touched import Touched, added, alone, rewritten, storing, touched
from puzzles._launch.work import Dot, Touch


@dataclass(frozen=True)
class Made:
    """An output that shares an input's memory, and what XLA does to that before the launch.

    how: "fills" it with a constant, "computes" it, or "copies" an argument that is not donated.
    """

    output: str
    bytes: int
    how: str


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
    scalar_values: tuple[np.ndarray | None, ...]  # contents, None where unknown
    dots: tuple[Dot, ...]
    flops: int
    transcendentals: int  # counted among the flops, too
    lanes: int  # of the vectors that hold those: a column takes 128 lanes for each of its rows
    copies: tuple[Copy, ...]  # that the kernel starts by hand
    unknown_branches: int
    unknown_loops: int
    busy: np.ndarray  # (steps,) bool: the step executes floating arithmetic
    scoped_vmem_bytes: int  # what `pl.run_scoped` allocates in the kernel
    dimension_semantics: tuple[str, ...] | None  # of the whole grid, as Mosaic sees it
    aliases: tuple[tuple[int, int], ...]  # (position in inputs, position in outputs)
    vmem_limit_bytes: int | None
    interpret: Any
    written_inputs: tuple[str, ...] = ()  # inputs that the kernel writes into, aliased ones aside
    stray_reads: tuple[tuple[str, int, int], ...] = ()  # (ref, first step, index that is not there)
    # Each `pl.multiple_of` that does not hold: the line, the first step, the multiple, the value.
    lies: tuple[tuple[str | None, int, int, int], ...] = ()
    params: str | None = None  # the type of `compiler_params`, where it is none that JAX knows
    touches: tuple[Touch, ...] = ()  # reads and writes of its refs, in the order of the text
    times: int | None = 1  # how often a loop around the launch runs it; None: only running it tells
    certain: Launch | None = None  # what `least` is where it differs
    line: str | None = None  # where it is launched
    moved: tuple[tuple[str, str], ...] = ()  # operands whose map reads a scalar that is written
    unused: frozenset[int] = frozenset()  # outputs that the program drops: scratch, in effect
    made: tuple[Made, ...] = ()  # what XLA does for an aliased output before the launch
    flights: tuple[Flight, ...] = ()
    # Reads of scalars: the ref, the element in a flat array, how often; both over the grid.
    looks: tuple[tuple[str, np.ndarray, np.ndarray], ...] = ()
    # What a kernel that copies by hand does, in its order; `cut` says that this is its beginning.
    events: tuple[Event, ...] = ()
    cut: bool = False

    @property
    def least(self) -> Launch:
        """The launch with lower bounds for counts: compare these with a budget."""
        return self if self.certain is None else self.certain

    @property
    def exact(self) -> bool:
        """Whether all counts are exact."""
        copied = all(copy.exact for copy in self.copies)
        return copied and not self.moved and not self.unknown_branches and not self.unknown_loops

    @property
    def bound(self) -> str:
        """How a count is meant: "" if exact, "at most", "about", or "at least" of `least`."""
        if self.moved:
            return "about"
        return "at least" if self.unknown_loops else "" if self.exact else "at most"

    @cached_property
    def touched(self) -> Touched:
        """What is read before it is written, never read or written, or never fetched."""
        started = [self.outputs[position].name for _, position in self.aliases]
        blocks = [o for o in self.inputs + self.outputs if o.piped and o.name not in started]
        return touched(self.touches, blocks, self.scratch, self.grid)

    @cached_property
    def idle(self) -> np.ndarray:
        """(steps,) bool: without arithmetic, and without the only store into a block.

        A kernel without any arithmetic copies: its steps do what they are for.
        """
        if not self.busy.any():
            return np.zeros_like(self.busy)
        return ~(self.busy | alone(self.touches, self.outputs, self.grid))

    def at(self, step: int) -> tuple[int, ...]:
        """The program ids of a step that is counted from 0."""
        return tuple(int(n) for n in self.program_ids[step])

    def rewritten(self, name: str | None) -> bool:
        """Whether an output's blocks are never read, and written whole whenever they are visited.

        Then a visit that comes back finds nothing that it needs, and the last one counts.
        """
        aliased = {position for _, position in self.aliases}
        outputs = (one for n, one in enumerate(self.outputs) if n not in aliased)
        return any(o.name == name and rewritten(self.touches, o, self.grid) for o in outputs)

    def when(self, step: int) -> str:
        """ " at grid step (1, 0)"; nothing without a grid, where there is one step."""
        return f" at grid step {self.at(step)}" if self.grid else ""

    def added(self, operand: Operand) -> np.ndarray | None:
        """(steps,) what share of its sum a ref holds after each step; None if it sums nothing."""
        return added(self.touches, operand, self.grid)

    @property
    def stores(self) -> tuple[tuple[str, int], ...]:
        """Each output, and how many steps store into it for certain."""
        return tuple((o.name, storing(self.touches, o.name, self.grid)) for o in self.outputs)

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
        return piped + sum(copy.bytes_read for copy in self.copies)

    @property
    def hbm_bytes_written(self) -> int:
        """Bytes that the pipeline writes back, and the kernel's own copies write."""
        piped = sum(o.hbm_bytes for o in self.outputs if o.piped)
        return piped + sum(copy.bytes_written for copy in self.copies)

    @property
    def hbm_bytes(self) -> int:
        """Bytes read and written."""
        return self.hbm_bytes_read + self.hbm_bytes_written

    @property
    def vmem_bytes(self) -> int:
        """Bytes of all buffers and scratch in VMEM, padded to tiles; without values of the body."""
        return sum(o.vmem_bytes for o in self.operands) + self.scoped_vmem_bytes

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
        """Copies in flight at each wait, in order: what it waits for counts; None if unknown."""
        return in_flight(self.flights, self.grid)

    @cached_property
    def waits(self) -> Mapping[str, Waits] | None:
        """The kernel's waits for its own copies, by the ref that is copied from.

        None where data decide about them, or only the beginning is known.
        """
        return None if self.cut else waits(self.events, self.program_ids)

    @cached_property
    def pieces(self) -> Mapping[Piece, np.ndarray]:
        """Where what the kernel's own copies take of HBM begins: (copies, axes); {} if unknown."""
        return {} if self.cut else pieces(self.events, self.grid) or {}

    def elements_read(self, name: str) -> tuple[np.ndarray, ...]:
        """Which elements of a scalar ref each step reads: (steps,) each, -1 where it does not."""
        found: dict[bytes, np.ndarray] = {}
        for ref, element, weight in self.looks:
            if ref == name:
                steps = spread(np.where(weight > 0, element, -1), self.grid)
                found.setdefault(steps.tobytes(), steps)
        return tuple(found.values())

    @cached_property
    def program_ids(self) -> np.ndarray:
        """The program ids of every step, shape (steps, len(grid))."""
        axes = np.indices(self.grid, dtype=np.int32)
        return np.ascontiguousarray(axes.reshape(len(self.grid), self.steps).T)
