"""What to say where an answer costs more than the reference: both numbers, and the place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from puzzles._judge.cost import ALIASES, Cost
from puzzles._launch import Launch, Operand
from puzzles._receipt import amount, amounts, scaled
from puzzles._tpu import CHIPS

_CHIP = CHIPS["v5e"]


def _count(mine: Cost, par: Cost) -> str:
    looped = next((one.name for one in mine.launches if one.times is None), None)
    if looped is not None:
        why = f"`{looped}` is launched in a loop whose length only running it tells"
        return f"{why}: this rung asks for {par.count} launch{'es' * (par.count != 1)} in all."
    return f"{mine.count} kernels are launched, where {par.count} {_are(par.count)} enough."


def _are(count: float) -> str:
    return "is" if count == 1 else "are"


def _made(mine: Cost, par: Cost) -> str:
    known = Counter((one.bytes, one.primitive) for one in par.made)
    seen = Counter((one.bytes, one.primitive) for one in mine.made)
    new = [one for one in mine.made if (one.bytes, one.primitive) in seen - known]
    lines = {one.line for one in par.made}
    most = max(new or mine.made, key=lambda one: (one.bytes, one.line not in lines))
    where = f" in `{most.line}`" if most.line else ""
    if most.primitive == ALIASES:
        return (
            f"XLA copies {amount(most.bytes)} before the launch: `{ALIASES}` lets an output share "
            "the memory of an input that the caller keeps. Let it have memory of its own."
        )
    return (
        f"arrays of {amount(mine.outside)} are made outside of the kernel, where "
        f"{amount(par.outside)} are enough. For example, `{most.primitive}`{where} writes "
        f"{amount(most.bytes)} to HBM: can a kernel's blocks come from the array as it lies?"
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
    ) + _first_dot(mine, par)


def _first_dot(mine: Cost, par: Cost) -> str:
    """The first step that multiplies in vain, where the steps are the reference's."""
    for launch, other in _alike(mine, par):
        runs, needed = (
            np.any([dot.executed > 0 for dot in one.dots], axis=0) for one in (launch, other)
        )
        step = _first_more(runs, needed) if launch.dots and other.dots else None
        if step is not None:
            return f" The first where the reference has none is grid step {launch.at(step)}."
    if mine.steps != par.steps:
        return f" The grid is {_grids(mine)}, the reference's {_grids(par)}."
    return ""


def _grids(cost: Cost) -> str:
    return " and ".join(str(one.grid) for one in cost.launches)


def _alike(mine: Cost, par: Cost) -> Iterator[tuple[Launch, Launch]]:
    """The launches whose grid is the reference's, in pairs: there one step is like the other."""
    if len(mine.launches) == len(par.launches):
        pairs = zip(mine.launches, par.launches, strict=True)
        yield from (pair for pair in pairs if pair[0].grid == pair[1].grid != ())


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
    enough = f"where {par.steps:,} are enough: {_grids(par)}"
    return f"the grid {_grids(mine)} has {mine.steps:,} steps, {enough}."


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
    first = _first_move(mine, par, operand, other)
    return f" Blocks of `{operand.name}` are {verb} {count}{moves}.{first}"


def _first_move(mine: Cost, par: Cost, operand: Operand, like: Operand) -> str:
    """The first step that moves a block of `operand` in vain, where steps are the reference's."""
    for launch, other in _alike(mine, par):
        both = operand in (*launch.inputs, *launch.outputs) and operand.piped and like.piped
        if both and like in (*other.inputs, *other.outputs) and operand.sizes == like.sizes:
            step = _first_more(operand.fetched, like.fetched)
            if step is not None:
                block = tuple(int(n) for n in operand.blocks[step])
                return (
                    f" Grid step {launch.at(step)} is the first to move one in vain: block "
                    f"{block}, where the reference keeps the one before."
                )
    return ""


def _first_more(mine: np.ndarray, par: np.ndarray) -> int | None:
    """The first step at which only the answer does something, if the reference's are all there."""
    more = mine & ~par
    return int(np.argmax(more)) if more.any() and not (par & ~mine).any() else None


def _same_array(one: Operand, other: Operand) -> bool:
    return (one.output, one.shape, one.dtype) == (other.output, other.shape, other.dtype)


def _smem(mine: Cost, par: Cost) -> str:
    return f"{amount(mine.smem)} of SMEM are used, where {amount(par.smem)} are enough."


# What to say of each cost, by its name in `Puzzle.slack`.
SAYS: dict[str, Callable[[Cost, Cost], str]] = {
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
