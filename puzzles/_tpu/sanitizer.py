"""What is found without knowing the right numbers: a launch runs in several ways.

A TPU leaves open what memory holds at first, when a copy lands, and in which order the steps of a
parallel axis run. A kernel that is right gives the same numbers however these turn out: where NumPy
sees that it does, nothing is compiled; of all others the simulator says what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from puzzles._jax import is_key, is_remote
from puzzles._launch import Finding, Launch, Traced, equations, kernel_calls, longest_body, told
from puzzles._rules import sentence
from puzzles._tpu.simulator import EDGE, Run, SimulationError, drawn, foreseen, run, same_in_numpy
from puzzles._tpu.watch import How, Seen, Watch, comparable

# The simulator takes about a millisecond a step, and to compile a launch as long as some of them.
LAUNCH_STEPS = 50
WHOLE_STEPS = 500  # a program with more is simulated in part: the first steps of each launch
FIRST_STEPS = 250  # of all launches together
BYTES = 2**28  # of arrays: it copies them
_FLOPS = 2e10  # in all
CALLS = 20_000  # of Python by one launch, for reads, writes and copies: a second or two
_OF_DEVICES = ("axis_index", "get_barrier_semaphore")
AFTER_THE_FIRST = "what comes after the first error"
OPERATIONS = 2000  # XLA's CPU compiler recurses along a chain; of one twice as long Python died

# What a TPU leaves open, and the other way in which it may turn out.
_OTHER: dict[str, Any] = {"seed": 1, "eager": True, "unwritten": "zero"}


@dataclass(frozen=True)
class Sanitized:
    """What was found, which steps ran ("" for none), why not all of them, and what ran them."""

    findings: tuple[Finding, ...] = ()
    steps: str = ""
    why_not: str = ""
    machine: str = "the simulator"


def simulated_steps(launches: Sequence[Launch]) -> int:
    """How long the simulator takes, in steps: to compile a launch counts as some."""
    return sum((one.steps + LAUNCH_STEPS) * (one.times or 1) for one in launches)


def beyond(launches: Sequence[Launch]) -> str | None:
    """What JAX's simulator crashes on, or gets wrong, though a TPU does not."""
    for launch in launches:
        for _, position in launch.aliases:
            out = launch.outputs[position]
            if any(n % size for n, size in zip(out.shape, out.sizes, strict=True)):
                return "an aliased output whose last block is cut off"
        if any(any(pair) for operand in launch.operands for pair in operand.padding):
            return "the padding of a `pl.Element`"
    return None


def sanitize(traced: Traced, launches: Sequence[Launch], seed: int = 0) -> Sanitized:
    """What is foreseen of a program whose launches are known, or else what the simulator finds.

    Arguments that are only shapes get data: floats from `seed`, zeros for the rest.
    """
    if known := foreseen(traced, rewritten=True):
        return Sanitized((known,), why_not=AFTER_THE_FIRST)
    if (why := refused(traced, launches)) is not None:
        return Sanitized(why_not=why)
    leaves = tuple(
        drawn(x, seed + n) if isinstance(x, jax.ShapeDtypeStruct) else x
        for n, x in enumerate(traced.leaves)
    )
    program, most = replace(traced, leaves=leaves), _most(launches)
    if most is None and same_in_numpy(program):
        return Sanitized(steps="all steps", machine="NumPy")
    total = sum(one.steps * (one.times or 1) for one in launches)
    said = "all steps" if most is None else f"the first {most} of {total:,} steps"
    try:
        asked = [what for what in _OTHER if what != "seed" or any(map(_ordered_by_seed, launches))]
        first, found = differing(partial(run, program), How(most=most, calls=CALLS), asked)
        if found is None and most is not None and _hangs_over(launches):
            found = _edges(program)
            said += ", and the first two and the last of each axis for what hangs over an edge"
    except SimulationError as error:
        if error.finding is None:
            return Sanitized(why_not=error.says)
        found, at = error.finding, error.finding.step
        said = "up to the first error" if at is None else f"up to grid step {at}, where it stopped"
        return Sanitized((found,), said, AFTER_THE_FIRST)
    except NotImplementedError as error:
        return Sanitized(why_not=f"the simulator cannot run this: {error}")
    why = "" if most is None else f"{total:,} steps were too many: the first {most} stand for all"
    if long := [one for one in first.watches if one.calls > CALLS]:
        why = sentence("too many calls", launch=long[0].launch, calls=CALLS, step=long[0].step)
        said = f"the first {CALLS:,} reads, writes and copies of `{long[0].launch}`"
        if not any(one.carried for one in first.watches):  # nothing that could be compared
            said = ""
    return Sanitized((found,) if found else (), said, why)


def _hangs_over(launches: Sequence[Launch]) -> bool:
    """Whether an input's last block does, and the steps at the edges are not too many."""
    edges = [math.prod(min(n, EDGE) for n in one.grid) for one in launches]
    pairs = list(zip(edges, launches, strict=True))
    flops = sum(n * one.flops / max(1, one.steps) * (one.times or 1) for n, one in pairs)
    if flops > _FLOPS or sum(n * (one.times or 1) for n, one in pairs) > WHOLE_STEPS:
        return False
    inputs = (operand for one in launches for operand in one.inputs if operand.piped)
    return any(n % size for one in inputs for n, size in zip(one.shape, one.sizes, strict=True))


def _edges(program: Traced) -> Finding | None:
    """What depends on the padding of inputs in steps at the edges of each axis."""
    try:
        with_nan, with_zeros = (
            run(program, How(unwritten=what, edges=True, calls=CALLS))
            for what in ("padding", "zero")
        )
    except (SimulationError, NotImplementedError):  # others lack the steps in between
        return None
    if agree(with_nan, with_zeros):
        return None
    return depends("unwritten", difference(with_nan, with_zeros))


def refused(traced: Traced, launches: Sequence[Launch]) -> str | None:
    """What the simulator cannot take of a program, or in a reasonable time."""
    if (why := beyond(launches)) is not None:
        return f"the simulator cannot take {why}"
    for launch in launches:
        if any(value is None for value in launch.scalar_values):
            return f"{launch.name} is steered by data: pass arrays for its integer arguments"
    kernels = [call.params["jaxpr"] for call in kernel_calls(traced.jaxpr.jaxpr)]
    if any(is_key(ref.aval) for kernel in kernels for ref in kernel.invars):
        return "a kernel takes random keys, which the simulator does not know"
    if (count := len(longest_body(traced.jaxpr))) > OPERATIONS:
        return sentence("too many operations", count=count, most=OPERATIONS)
    forms = [*traced.leaves, *jax.tree.leaves(traced.out)]
    size = sum(int(np.prod(x.shape, dtype=np.int64)) * x.dtype.itemsize for x in forms)
    if size > BYTES:
        return f"the arrays take {size / 2**20:,.0f} MiB: pass smaller ones to have it simulated"
    return None


def speaks(traced: Traced) -> bool:
    """Whether a kernel copies to other devices, or waits for them."""
    for call in kernel_calls(traced.jaxpr.jaxpr):
        for one in equations(call.params["jaxpr"]):
            name = one.primitive.name
            if is_remote(one) if name == "dma_start" else name in _OF_DEVICES:
                return True
    return False


def _most(launches: Sequence[Launch]) -> int | None:
    """Steps of each launch that can be simulated in a second or two; None: all of them."""
    steps = sum(one.steps * (one.times or 1) for one in launches)
    flops = sum(one.flops * (one.times or 1) for one in launches)
    if steps <= WHOLE_STEPS and flops <= _FLOPS:
        return None
    share = _FLOPS / max(1.0, flops / max(1, steps)) / max(1, len(launches))
    return max(2, min(FIRST_STEPS // max(1, len(launches)), int(share)))


def differing(
    run: Callable[[How], Run], how: How, asked: Sequence[str]
) -> tuple[Run, Finding | None]:
    """The first of several runs, and which of the questions asked makes others differ from it."""
    first, other = run(how), run(replace(how, **{what: _OTHER[what] for what in asked}))
    if agree(first, other):
        return first, None
    for what in asked:
        other = run(replace(how, **{what: _OTHER[what]}))
        if not agree(first, other):
            return first, depends(what, difference(first, other))
    return first, None


def _ordered_by_seed(launch: Launch) -> bool:
    """Whether the steps of a parallel axis might meet in scratch; blocks need no simulator."""
    words = zip(launch.dimension_semantics or (), launch.grid, strict=False)
    return bool(launch.scratch) and any(word == "parallel" and n > 1 for word, n in words)


def agree(one: Run, other: Run) -> bool:
    """Whether the results are; of a launch that was cut off, the blocks carried back so far."""
    if one.cut or other.cut:
        return difference(one, other) is None
    pairs = zip(one.results, other.results, strict=True)
    return all(comparable(a) == comparable(b) for a, b in pairs)


def difference(one: Run, other: Run) -> tuple[Watch, Seen] | None:
    """The first block carried back to HBM that differs."""
    for mine, theirs in zip(one.watches, other.watches, strict=False):
        blocks = {(b.operand, b.step): b.what for b in theirs.carried}
        for block in mine.carried:
            if blocks.get((block.operand, block.step), block.what) != block.what:
                return mine, block
    return None


def depends(what: str, where: tuple[Watch, Seen] | None) -> Finding:
    """What of that a TPU leaves open, and right numbers do not depend on, these do; and where."""
    kind = {"seed": "parallel", "eager": "hazard", "unwritten": "uninitialised"}[what]
    if where is None:
        return told(kind, f"depends: {what}")
    watch, carried = where
    facts = dict(launch=watch.launch, operand=carried.operand, step=carried.step)
    reads = [seen for seen in watch.nans if seen.operand not in watch.inputs] or watch.nans
    if what != "unwritten" or not reads:
        return told(kind, f"depends in a block: {what}", **facts)
    read, after = reads[0], dict(carried=carried.operand, after=carried.step)
    name = f"`{read.operand}`" if read.operand else "a scoped buffer"
    if read.operand in watch.inputs:
        name = f"padding beyond the edge of {name}"
    facts |= dict(operand=read.operand, step=read.step, line=read.what, name=name)
    return told(kind, "depends on what is read", **facts, **after)
