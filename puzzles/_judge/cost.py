"""The cost of an answer at one shape: all its launches, and the arrays made outside of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from puzzles._compile import CHIPS, price
from puzzles._jax import Jaxpr, JaxprEqn
from puzzles._judge.accuracy import narrowings
from puzzles._judge.origin import observed, source_text
from puzzles._launch import Dot, Launch, Operand, Traced, itemsize
from puzzles._program import PALLAS_CALL, turns, visited
from puzzles._rules import Breach

# The same bytes under another shape: nothing moves.
_VIEWS = {"reshape", "squeeze", "bitcast_convert_type", "optimization_barrier", "stop_gradient"}
# An output that shares the memory of an input which the caller keeps: XLA copies that first.
ALIASES = "input_output_aliases"


@dataclass(frozen=True)
class Written:
    """An array that XLA writes to HBM before, between or after launches: bytes, and by whom."""

    bytes: int
    primitive: str
    line: str


def _sum(count: Callable[[Launch], int]) -> cached_property[int]:
    """A count of all launches together."""
    return cached_property(
        lambda cost: sum(count(launch) * (launch.times or 1) for launch in cost.launches)
    )


def _most(count: Callable[[Launch], int]) -> cached_property[int]:
    """A count of the launch that has most of it."""
    return cached_property(lambda cost: max(map(count, cost.launches), default=0))


@dataclass(frozen=True)
class Cost:
    """The launches of an answer and the arrays made outside of them; sums run over all launches.

    narrowings: the places where it rounds intermediate values.
    """

    launches: tuple[Launch, ...]
    made: tuple[Written, ...]
    narrowings: tuple[Breach, ...] = ()

    @classmethod
    def of(cls, traced: Traced) -> Cost:
        """Read from a trace; `AbstractValueError` if blocks depend on absent data."""
        constants = [Written(np.asarray(x).nbytes, "a constant", "") for x in traced.jaxpr.consts]
        copied = (
            Written(array.bytes * (launch.times or 1), ALIASES, "")
            for launch in traced.launches
            for array in launch.around.made
            if array.how == "copies"
        )
        made = (*constants, *_made(traced.jaxpr.jaxpr), *copied)
        return cls(traced.launches, made, tuple(narrowings(traced)))

    @cached_property
    def count(self) -> float:
        """Launches; one in a loop of unknown length counts as infinitely many."""
        return sum(math.inf if launch.times is None else launch.times for launch in self.launches)

    steps = _sum(lambda launch: launch.all_steps)
    # Those without floating-point arithmetic that no block of a result needs.
    idle = _sum(lambda launch: int(launch.idle.sum()))
    with_dots = _sum(lambda launch: int(multiplies(launch).sum()))
    # Blocks of arrays read and written back, by the pipeline or the kernel's own copies.
    transfers = _sum(lambda launch: _moves(launch))
    bytes = _sum(lambda launch: launch.hbm_bytes)
    flops = _sum(lambda launch: launch.flops)
    dot_flops = _sum(lambda launch: launch.dot_flops)
    # Exps, tanhs and their like.
    transcendentals = _sum(lambda launch: launch.transcendentals)
    # Elements of the vectors that hold those: a column is no cheaper than 128 of them.
    lanes = _sum(lambda launch: launch.lanes)
    smem = _most(lambda launch: launch.smem_bytes)
    vmem = _most(lambda launch: launch.vmem_bytes)

    @cached_property
    def seconds(self) -> float:
        """The price of all launches on a v5e."""
        return price(self.launches, CHIPS["v5e"]).seconds

    @property
    def grids(self) -> str:
        """The grids of the launches, or their number if they are many."""
        if len(self.launches) > 3:
            return f"{len(self.launches)} launches"
        return " and ".join(
            f"{launch.steps} cores" if launch.settings.cores > 1 else str(launch.grid)
            for launch in self.launches
        )

    @cached_property
    def arrays(self) -> int:
        """Bytes of the arrays that the launches read and write, each counted once a launch."""
        moved = (o for launch in self.launches for o in (*launch.inputs, *launch.outputs))
        return sum(math.prod(o.shape) * itemsize(o.dtype) for o in moved)

    @cached_property
    def outside(self) -> int:
        """Bytes of the arrays made outside."""
        return sum(array.bytes for array in self.made)

    @property
    def dots(self) -> list[Dot]:
        """The dots of all kernels."""
        return [dot for launch in self.launches for dot in launch.dots]

    @cached_property
    def least(self) -> Cost:
        """The certain work, without branches and loops that depend on data."""
        return replace(self, launches=tuple(launch.least for launch in self.launches))

    @cached_property
    def blocks(self) -> list[set[tuple]]:
        """For each launch the blocks that it cuts its arrays into, without order or repetition."""
        return [set(map(_cut, (*launch.inputs, *launch.outputs))) for launch in self.launches]


def multiplies(launch: Launch) -> np.ndarray:
    """(steps,) bool: in which at least one dot runs."""
    return np.any([np.zeros(launch.steps, bool), *(d.executed > 0 for d in launch.dots)], axis=0)


def _moves(launch: Launch) -> int:
    piped = sum(o.transfers for o in (*launch.inputs, *launch.outputs) if o.space == "vmem")
    return piped + sum(int(copy.executed.sum()) for copy in launch.copies)


def _cut(operand: Operand) -> tuple:
    form = operand.output, operand.shape, str(operand.dtype), operand.space
    return *form, operand.portion  # for an operand in HBM, the largest piece copied at once


def _made(jaxpr: Jaxpr) -> Iterator[Written]:
    """Yield the arrays that equations outside kernels make, including nested equations.

    An equation without a line in the learner's code has the line of the call that leads to it.
    """
    steps = list(visited(jaxpr))
    reads: dict[int, set[str]] = {}
    for name, v in ((eqn.primitive.name, v) for eqn, _ in steps for v in eqn.invars):
        reads.setdefault(id(v), set()).add(name)
    results = {id(v) for v in jaxpr.outvars}
    for equation, path in steps:
        name, outvars = equation.primitive.name, equation.outvars
        readers = [reads.get(id(v), set()) for v in outvars]
        if name == PALLAS_CALL or _is_view(equation) or observed(equation):
            continue
        if not (path or equation.effects or any(readers) or results & {*map(id, outvars)}):
            continue  # nothing uses it: XLA drops it
        # Gradients of slices, padded and summed: XLA fuses all of it into the last sum.
        if name in ("pad", "add_any") and all(reader == {"add_any"} for reader in readers):
            continue
        avals = [v.aval for v in equation.outvars if hasattr(v.aval, "shape")]
        size = sum(math.prod(aval.shape) * itemsize(aval.dtype) for aval in avals)
        lines = map(source_text, (equation, *reversed(path)))
        line = next(filter(None, lines), "")
        yield Written(size * turns(path), name, line)


def _is_view(equation: JaxprEqn) -> bool:
    """Whether the result is its operand's bytes in their order, under another shape."""
    name = equation.primitive.name
    if name in _VIEWS:
        return True
    if not equation.invars:
        return False
    before, after = equation.invars[0].aval, equation.outvars[0].aval
    same = math.prod(before.shape) == math.prod(after.shape)
    if name == "transpose":
        moved = [axis for axis in equation.params["permutation"] if before.shape[axis] != 1]
        return moved == sorted(moved)
    if name == "convert_element_type":
        return before.dtype == after.dtype
    return name in ("broadcast_in_dim", "slice") and same
