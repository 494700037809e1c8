"""The `work` stage at production scale: does an answer cost more than the reference solution?"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from puzzles._judge.cost import Cost
from puzzles._judge.dearer import SAYS
from puzzles._judge.raised import learners_code
from puzzles._launch import (
    Abstract,
    Traced,
    fingerprint,
    kernel_calls,
    launch_name,
    parameter_names,
    trace_call,
)
from puzzles._puzzle import Puzzle
from puzzles._tpu import CHIPS

# Where blocks differ, costs that follow from them do, too: how full the tiles along the edge of a
# mask or a group are, how often a block is fetched again.
_EXACT = 1.0
_BY_BLOCKS = 1.34
_BY_TRAFFIC = 2.0
# Always allowed beside the reference's share of steps without work, and of dots that only sum.
_SOME = 0.02
# Of its arrays, or what of them is moved, made outside of kernels.
_MADE = 0.01
# And of bytes and SMEM: one more list of numbers may help to find blocks.
_LIST = 0.004
# Of SMEM, where the reference prefetches nothing: a table may stand for arithmetic.
_TABLE = 0.125
_CHIP = CHIPS["v5e"]


@dataclass(frozen=True)
class Excess:
    """One cost above its limit: its name in `Puzzle.slack`, both numbers, and the sentence."""

    what: str
    mine: float
    par: float
    says: str

    @property
    def ratio(self) -> float:
        """How many times the reference's cost this is."""
        return self.mine / self.par if self.par else float("inf")


@dataclass(frozen=True)
class Scale:
    """An answer and the reference solution at the puzzle's production shape, `label` in words."""

    label: str
    mine: Cost
    par: Cost


def label(puzzle: Puzzle) -> str:
    """The production shape as verdicts name it: the defaults of `Puzzle.scale`."""
    assert puzzle.scale is not None
    parameters = inspect.signature(puzzle.scale).parameters.values()
    return ", ".join(f"{one.name}={_spelt(one.default)}" for one in parameters)


def _spelt(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def at_scale(puzzle: Puzzle, fn: Callable) -> Scale | None:
    """`fn` beside the reference, both traced without data; None where the puzzle has no scale.

    Raises `Rejected` where `fn` raises; where its blocks depend on data, None.
    """
    if puzzle.scale is None:
        return None
    args, known = puzzle.scale(), _reference(puzzle)  # an author's own fault is no learner's
    if known is None:
        return None
    program, par = known
    with learners_code(f"at production scale, {label(puzzle)}"):
        try:
            traced = _traced(puzzle, fn, args)
            mine = par if _program(traced) == program else Cost.of(traced)
        except Abstract:
            return None
    return Scale(label(puzzle), mine, par)


def _traced(puzzle: Puzzle, fn: Callable, args: tuple) -> Traced:
    return trace_call(fn if puzzle.observe is None else puzzle.observe(fn), *args)


@lru_cache(maxsize=128)
def _reference(puzzle: Puzzle) -> tuple[Hashable, Cost] | None:
    """The solution's program at the production shape, and what that costs, read once.

    None where its blocks depend on data that `scale` does not give.
    """
    assert puzzle.scale is not None
    traced = _traced(puzzle, puzzle.solution, puzzle.scale())
    try:
        return _program(traced), Cost.of(traced)
    except Abstract:
        return None


def _program(traced: Traced) -> Hashable:
    """Equal where the same is launched on the same data, by lines and names of equal text."""
    calls = kernel_calls(traced.jaxpr.jaxpr)
    names = tuple((launch_name(call), *parameter_names(call)) for call in calls)
    return fingerprint(traced.jaxpr, lines=True), names, fingerprint(traced.leaves)


def excesses(scale: Scale, slack: Mapping[str, float]) -> Iterator[Excess]:
    """Every cost above its limit, those that explain others first."""
    mine, par = scale.mine.least, scale.par
    for what, allowed, extra in _limits(mine, par):
        a, b = getattr(mine, what), getattr(par, what)
        if a > b * slack.get(what, allowed) + extra:
            yield Excess(what, a, b, SAYS[what](mine, par))


def _limits(mine: Cost, par: Cost) -> Iterator[tuple[str, float, float]]:
    """(cost, times the reference's, and this much more) in the order in which they are told."""
    same = mine.blocks == par.blocks
    yield "count", _EXACT, 0
    yield "outside", _EXACT, _MADE * min(par.bytes, par.arrays)
    fits = max(_CHIP.scoped_vmem_bytes, *(one.vmem_limit_bytes or 0 for one in par.launches))
    yield "vmem", 0.0, max(fits, par.vmem)
    if par.dot_flops:  # elsewhere a dot may stand for a sum
        yield "dot_flops", _EXACT if same else _BY_BLOCKS, _SOME * par.dot_flops
    if mine.lanes > _BY_BLOCKS * par.lanes:  # a column's may stand in all lanes of its vectors
        yield "transcendentals", _BY_BLOCKS, 0
    share = par.idle / max(1, par.steps) * (_EXACT if same else _BY_BLOCKS)
    yield "idle", 0.0, mine.steps * (share + _SOME)
    if not same:
        yield "bytes", _BY_TRAFFIC, 0
        return
    yield "transfers", _EXACT, 0
    yield "bytes", _EXACT, _LIST * par.bytes
    yield "steps", _EXACT, 0
    yield "smem", _EXACT, (_LIST if par.smem else _TABLE) * _CHIP.smem_bytes
    if par.dot_flops:
        yield "with_dots", _EXACT, 0


# Times the reference's that each cost may be at most, unless `Puzzle.slack` says otherwise.
USUAL = dict.fromkeys(SAYS, _EXACT) | {
    "dot_flops": _BY_BLOCKS,
    "transcendentals": _BY_BLOCKS,
    "bytes": _BY_TRAFFIC,
}
