"""The `work` stage at production scale: does an answer cost more than the reference solution?"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from puzzles._judge.cost import Cost
from puzzles._judge.limits import learners_code
from puzzles._judge.memory import stage_of
from puzzles._judge.verdict import Rejected
from puzzles._launch import Abstract, Operand, faults, itemsize, row_keys, trace_call
from puzzles._puzzle import Puzzle
from puzzles._receipt import amount, amounts, scaled
from puzzles._tpu import CHIPS

# Where blocks differ, costs that follow from them do, too: how full the tiles along the edge of a
# mask or a group are, how often a block is fetched again.
_EXACT = 1.0
_BY_BLOCKS = 1.34
_BY_TRAFFIC = 2.0
# Of the reference's dots at least: a better kernel skips some, and never most of them.
_LEAST = 0.5
# What is always allowed beside the reference's share: of its bytes made outside of kernels, of
# steps without work, and of dots that only sum.
_SOME = 0.02
# And of bytes and SMEM: one more list of numbers may help to find blocks.
_LIST = 0.004
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
    args = puzzle.scale()  # an author's own fault is not the learner's
    with learners_code(puzzle, f"at production scale, {label(puzzle)}"):
        try:
            mine = _cost(puzzle, fn, args)
        except Abstract:
            return None
    return Scale(label(puzzle), mine, reference(puzzle))


def _cost(puzzle: Puzzle, fn: Callable, args: tuple) -> Cost:
    judged = fn if puzzle.observe is None else puzzle.observe(fn)
    return Cost.of(trace_call(judged, *args))


@lru_cache(maxsize=128)
def reference(puzzle: Puzzle) -> Cost:
    """What the solution costs at the production shape, computed once."""
    assert puzzle.scale is not None
    return _cost(puzzle, puzzle.solution, puzzle.scale())


def compare(puzzle: Puzzle, scale: Scale) -> None:
    """Raises `Rejected` for blocks that are not there or not written, or a cost that is too high.

    Too high is what is above the reference's by more than its slack; the first is told.
    """
    at = "At production scale, "
    for fault in (f for one in scale.mine.launches for f in faults(one)):
        raise Rejected(stage_of(fault), at + fault.words, case=scale.label)
    for says, title in _slips(scale.mine, scale.par):
        raise Rejected("work", at + says, case=scale.label, title=title)
    for excess in excesses(scale, puzzle.slack):
        raise Rejected("work", at + excess.says, case=scale.label)


def _slips(mine: Cost, par: Cost) -> Iterator[tuple[str, str]]:
    """What no limit would tell: (words, title) of what is lost, left out or fetched in vain."""
    usual = {(one.kernel, one.how) for one in par.narrowings}
    for one in mine.narrowings:
        if (one.kernel, one.how) not in usual:
            title = "it rounds on the way"
            yield one.words, title if one.how != "counted" else "numbers outgrow their dtype"
    counted = not any(one.unknown_loops for one in mine.launches)
    if counted and 0 < mine.dot_flops < _LEAST * par.dot_flops:
        part = f"{mine.dot_flops / par.dot_flops:.0%} of the reference's"
        yield (
            f"the dots do {scaled(mine.dot_flops)} FLOPs, {part}: something is left out at this "
            "size. Does a count outgrow its dtype, or a grid round down?",
            "something is left out",
        )
    for says in _unread(mine, par):
        yield f"{says}: something is left out at this size.", "something is left out"
    for says in _not_visited(mine, par) if mine.blocks == par.blocks else ():
        yield says, "something is left out"
    for launch in mine.launches:
        limit = launch.vmem_limit_bytes
        if limit is not None and launch.vmem_bytes > limit:
            needed = f"its blocks and scratch take {launch.vmem_bytes:,} B"
            yield f"`vmem_limit_bytes={limit:,}` is too little: {needed}.", "it asks for less VMEM"
    title = "something is fetched for nothing"
    unread = [name for one in par.launches for name in one.touched.unread]
    share = max((a / b for one in par.launches for _, a, b in one.touched.vain), default=0.0)
    for launch in mine.launches:
        for name in launch.touched.unread:
            if name not in unread:
                yield f"no step reads `{name}`: take it out of the call, or read it.", title
        # Of the reference's own blocks it is told how many are too many.
        for name, count, often in launch.touched.vain if mine.blocks != par.blocks else ():
            if count > (share + _SOME) * often:
                yield (
                    f"of {often:,} blocks of `{name}` that are fetched, no step reads {count:,}: "
                    "where there is no work, let its index map name the block that is there.",
                    title,
                )


def _unread(mine: Cost, par: Cost) -> Iterator[str]:
    """Arrays that the reference reads, or copies to HBM, wholly, and the answer in part."""
    theirs, ours = (_by_array(one) for one in (par, mine))
    for form in theirs.keys() & ours.keys():
        wholly = [all(why is None for why in one[form]) for one in (theirs, ours)]
        if wholly == [True, False] and None not in ours[form]:
            yield next(filter(None, ours[form]))


def _not_visited(mine: Cost, par: Cost) -> Iterator[str]:
    """Blocks that the reference's pipeline moves and the answer's does not, cut alike."""
    theirs, ours = (_by_cut(one) for one in (par, mine))
    for cut in theirs.keys() & ours.keys():
        if len(theirs[cut]) > 1 or len(ours[cut]) > 1:
            continue
        (one,), (other,) = ours[cut], theirs[cut]
        keys = row_keys(np.concatenate([other.blocks, one.blocks]))
        wanted, first = np.unique(keys[: len(other.blocks)], return_index=True)
        left = first[~np.isin(wanted, keys[len(other.blocks) :])]
        if len(left) > _SOME * len(wanted):
            example = tuple(int(n) for n in other.blocks[left[0]])
            yield (
                f"{len(left):,} of the {len(wanted):,} blocks of `{one.name}` that the reference "
                f"needs are in no step, for example {example}. Is an index cut short?"
            )


def _by_cut(cost: Cost) -> dict[tuple, list[Operand]]:
    found: dict[tuple, list[Operand]] = {}
    for one in (o for launch in cost.launches for o in (*launch.inputs, *launch.outputs)):
        if one.piped:
            found.setdefault((one.output, one.shape, str(one.dtype), one.sizes), []).append(one)
    return found


def _by_array(cost: Cost) -> dict[tuple, list[str | None]]:
    """For each form of an array what of it is not moved, in words; None where all of it is."""
    found: dict[tuple, list[str | None]] = {}
    for launch in cost.launches:
        missed = {name: (absent, n, some) for name, absent, n, some in launch.touched.missed}
        for one in (*launch.inputs, *launch.outputs):
            why = None
            if one.piped and one.name in missed:
                absent, count, example = missed[one.name]
                if absent > _SOME * count:
                    why = (
                        f"no step gets {absent:,} of the {count:,} blocks of `{one.name}`, for "
                        f"example {example}"
                    )
            elif not one.piped and not launch.unknown_loops:
                whole = math.prod(one.shape) * itemsize(one.dtype)
                if one.hbm_bytes < (1 - _SOME) * whole:
                    verb = "copied to" if one.output else "read of"
                    moved = amount(one.hbm_bytes)
                    why = f"{moved} are {verb} `{one.name}`, which has {amount(whole)}"
            found.setdefault((one.output, one.shape, str(one.dtype)), []).append(why)
    return found


def excesses(scale: Scale, slack: Mapping[str, float]) -> Iterator[Excess]:
    """Every cost above its limit, those that explain others first."""
    mine, par = scale.mine.least, scale.par
    for what, allowed, extra in _limits(mine, par):
        a, b = getattr(mine, what), getattr(par, what)
        if a > b * slack.get(what, allowed) + extra:
            yield Excess(what, a, b, _SAYS[what](mine, par))


def _limits(mine: Cost, par: Cost) -> Iterator[tuple[str, float, float]]:
    """(cost, times the reference's, and this much more) in the order in which they are told."""
    same = mine.blocks == par.blocks
    yield "count", _EXACT, 0
    yield "outside", _EXACT, _SOME * par.bytes
    fits = max(_CHIP.scoped_vmem_bytes, *(one.vmem_limit_bytes or 0 for one in par.launches))
    yield "vmem", 0.0, max(fits, par.vmem)
    if par.dot_flops:  # elsewhere a dot may stand for a sum
        yield "dot_flops", _EXACT if same else _BY_BLOCKS, _SOME * par.dot_flops
    yield "transcendentals", _BY_BLOCKS, 0
    share = par.idle / max(1, par.steps) * (_EXACT if same else _BY_BLOCKS)
    yield "idle", 0.0, mine.steps * (share + _SOME)
    if not same:
        yield "bytes", _BY_TRAFFIC, 0
        return
    yield "transfers", _EXACT, 0
    yield "bytes", _EXACT, _LIST * par.bytes
    yield "steps", _EXACT, 0
    yield "smem", _EXACT, _LIST * _CHIP.smem_bytes
    if par.dot_flops:
        yield "with_dots", _EXACT, 0


def _count(mine: Cost, par: Cost) -> str:
    looped = next((one.name for one in mine.launches if one.times is None), None)
    if looped is not None:
        why = f"`{looped}` is launched in a loop whose length only running it tells"
        return f"{why}: this rung asks for {par.count} launch{'es' * (par.count != 1)} in all."
    return f"{mine.count} kernels are launched, where {par.count} {_are(par.count)} enough."


def _are(count: float) -> str:
    return "is" if count == 1 else "are"


def _made(mine: Cost, par: Cost) -> str:
    known = [(one.bytes, one.primitive) for one in par.made]
    new = [one for one in mine.made if (one.bytes, one.primitive) not in known]
    most = max(new or mine.made, key=lambda one: one.bytes)
    where = f" in `{most.line}`" if most.line else ""
    return (
        f"arrays of {amount(mine.outside)} are made outside of the kernel, where "
        f"{amount(par.outside)} are enough: `{most.primitive}`{where} writes "
        f"{amount(most.bytes)} to HBM, and the kernel reads them back. Let its blocks come from "
        "the array as it lies."
    )


def _vmem(mine: Cost, par: Cost) -> str:
    launch = max(mine.launches, key=lambda one: one.vmem_bytes)
    refs = (*launch.inputs, *launch.outputs, *launch.scratch)
    most = max(refs, key=lambda one: one.vmem_bytes)
    whole = f"for blocks of {most.sizes}: take smaller ones"
    if most.sizes == most.shape:
        whole = "all of it as one block: cut it into smaller ones"
    if most in launch.scratch:
        whole = f"scratch of {most.shape}: take less"
    needed, given = amounts(launch.vmem_bytes, launch.vmem_limit_bytes or _CHIP.scoped_vmem_bytes)
    return (
        f"the launch needs {needed} of VMEM, where a kernel gets {given} on {_CHIP.name} unless it "
        f"asks for more. `{most.name}` takes {amount(most.vmem_bytes)}, {whole}."
    )


def _dots(mine: Cost, par: Cost) -> str:
    return (
        f"dots run in {mine.with_dots:,} of {mine.steps:,} steps; in the reference in "
        f"{par.with_dots:,} of {par.steps:,}. They do {scaled(mine.dot_flops)} FLOPs, where "
        f"{scaled(par.dot_flops)} are enough."
    )


def _transcendentals(mine: Cost, par: Cost) -> str:
    return (
        f"{mine.transcendentals:,} exps, tanhs and their like are computed, where "
        f"{par.transcendentals:,} are enough: compute each of them once."
    )


def _idle(mine: Cost, par: Cost) -> str:
    return (
        f"{mine.idle:,} of {mine.steps:,} grid steps compute nothing; in the reference it is "
        f"{par.idle:,} of {par.steps:,}. A step without work takes its time all the same."
    )


def _steps(mine: Cost, par: Cost) -> str:
    return f"the grid has {mine.steps:,} steps, where {par.steps:,} are enough."


def _fetched(mine: Cost, par: Cost) -> str:
    return f"{mine.transfers:,} blocks are moved, where {par.transfers:,} are enough." + _whose(
        mine, par
    )


def _moved(mine: Cost, par: Cost) -> str:
    moved, enough = amounts(mine.bytes, par.bytes)
    return f"{moved} are moved between HBM and the kernel, where {enough} are enough." + _whose(
        mine, par
    )


def _whose(mine: Cost, par: Cost) -> str:
    """Whose blocks are moved more often than the same array's in the reference."""
    left = [o for one in par.launches for o in (*one.inputs, *one.outputs)]
    pairs = []
    for operand in (o for one in mine.launches for o in (*one.inputs, *one.outputs)):
        other = next((o for o in left if _same_array(o, operand)), None)
        if other is not None:
            left.remove(other)
            pairs.append((operand.hbm_bytes - other.hbm_bytes, operand, other))
    if not pairs:
        return ""
    more, operand, other = max(pairs, key=lambda one: one[0])
    if more <= 0:
        return ""
    if operand.transfers > other.transfers and operand.sizes == other.sizes:
        count = f"{operand.transfers:,} times, where {other.transfers:,} are enough"
    else:
        count = f"{amount(operand.hbm_bytes)} in all, where {amount(other.hbm_bytes)} are enough"
    verb = "written" if operand.output else "fetched"
    moves = ": a block moves whenever its index is not the previous step's" * operand.piped
    return f" Blocks of `{operand.name}` are {verb} {count}{moves}."


def _same_array(one: Operand, other: Operand) -> bool:
    return (one.output, one.shape, one.dtype) == (other.output, other.shape, other.dtype)


def _smem(mine: Cost, par: Cost) -> str:
    return f"{amount(mine.smem)} of SMEM are used, where {amount(par.smem)} are enough."


_SAYS: dict[str, Callable[[Cost, Cost], str]] = {
    "count": _count,
    "outside": _made,
    "vmem": _vmem,
    "dot_flops": _dots,
    "transcendentals": _transcendentals,
    "idle": _idle,
    "transfers": _fetched,
    "bytes": _moved,
    "steps": _steps,
    "smem": _smem,
    "with_dots": _dots,
}

# Times the reference's that each cost may be at most, unless `Puzzle.slack` says otherwise.
USUAL = dict.fromkeys(_SAYS, _EXACT) | {
    "dot_flops": _BY_BLOCKS,
    "transcendentals": _BY_BLOCKS,
    "bytes": _BY_TRAFFIC,
}
