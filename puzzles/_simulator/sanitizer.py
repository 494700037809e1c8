"""What is found without knowing the right numbers: a launch runs in several ways.

A TPU leaves open what memory holds at first, when a copy lands, and in which order the steps of a
parallel axis run. A kernel that is right gives the same numbers however these turn out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import jax
import numpy as np

from puzzles._jax import is_remote
from puzzles._launch import WARNING, Finding, Launch, Traced, told
from puzzles._program import equations, kernel_calls
from puzzles._rules import sentence
from puzzles._simulator.devices import DevicesRun, on_mesh, run_devices, schedules
from puzzles._simulator.programs import ProgramRun, run_as
from puzzles._simulator.semantics import (
    EDGE,
    HazardError,
    Observation,
    RunLog,
    Semantics,
    comparable,
    drawn,
)
from puzzles._simulator.simulator import cannot, foreseen

WHOLE_STEPS = 500  # a program with more runs in part: the first steps of each launch
FIRST_STEPS = 250  # of all launches together
BYTES = 2**28  # of arrays: they are copied
FUEL = 1_000_000  # equations of one launch: some seconds
_FLOPS = 2e10  # in all
_OF_DEVICES = ("axis_index", "get_barrier_semaphore")
AFTER_THE_FIRST = "what comes after the first error"

# What a TPU leaves open, and the other way in which it may turn out.
_OTHER: dict[str, Any] = {"backwards": True, "late": False, "unwritten": "zero"}
_DEPENDS = {
    "unwritten": "depends_unwritten",
    "late": "depends_late",
    "backwards": "depends_backwards",
}
_DEPENDS_IN_A_BLOCK = {
    "unwritten": "depends_in_a_block_unwritten",
    "late": "depends_in_a_block_late",
    "backwards": "depends_in_a_block_backwards",
}

_Run = TypeVar("_Run", ProgramRun, DevicesRun)


@dataclass(frozen=True)
class Sanitized:
    """What was found, which steps ran ("" for none), and why not all of them."""

    findings: tuple[Finding, ...] = ()
    steps: str = ""
    why_not: str = ""


def sanitize(traced: Traced, launches: Sequence[Launch], seed: int = 0) -> Sanitized:
    """What is foreseen of a program whose launches are known, or else what running it finds.

    Arguments that are only shapes get data: floats from `seed`, zeros for the rest.
    """
    if on_mesh(traced):
        return _on_devices(traced, seed)
    if known := foreseen(traced, rewritten=True):
        return Sanitized((known,), why_not=AFTER_THE_FIRST)
    if (why := refused(traced, launches)) is not None:
        return Sanitized(why_not=why)
    program, most = replace(traced, leaves=given(traced.leaves, seed)), _most(launches)
    total = sum(one.steps * (one.times or 1) for one in launches)
    said = "all steps" if most is None else f"the first {most} of {total:,} steps"
    run = partial(run_as, program, fuel=FUEL)
    asked = [what for what in _OTHER if what != "backwards" or any(map(_meet, launches))]
    try:
        first, found = differing(run, Semantics(backwards=False, most=most), asked)
        if found is None and most is not None and _hangs_over(launches):
            found = _edges(run)
            said += ", and the first two and the last of each axis for what hangs over an edge"
    except HazardError as error:
        found, at = error.finding, error.finding.step
        said = "up to the first error" if at is None else f"up to grid step {at}, where it stopped"
        return Sanitized((found,), said, AFTER_THE_FIRST)
    except Exception as error:  # whatever NumPy does not do
        return Sanitized(why_not=cannot(error))
    why = "" if most is None else f"{total:,} steps were too many: the first {most} stand for all"
    if long := [one for one in first.trails if one.spent]:
        name, step = long[0].launch.name, long[0].cut
        why = sentence("too_many_calls", launch=name, calls=FUEL, step=step)
        said = f"the first {FUEL:,} operations of `{name}`"
        if not any(one.carried for one in first.trails):  # nothing that could be compared
            said = ""
    return Sanitized((found,) if found else (), said, why)


def _on_devices(traced: Traced, seed: int) -> Sanitized:
    """What running a program on the devices of its mesh finds.

    What is wrong only if copies on one semaphore end in another order than they start in is a
    warning: no document of a TPU promises that order.
    """
    if (why := refused(traced, ())) is not None:
        return Sanitized(why_not=why)
    program = replace(traced, leaves=given(traced.leaves, seed))
    count = math.prod(on_mesh(traced).values())
    said, run = f"all steps on {count} devices", partial(run_devices, program)
    try:
        in_order = partial(run, in_order=True)
        first, found = differing(in_order, Semantics(), ("late", "unwritten"))
        most = count if first.operations * count < FUEL else 1
        for how, slowest in islice(schedules(count), 1, most + 1):
            in_order(how, slowest)
    except HazardError as error:
        return Sanitized((error.finding,), said, AFTER_THE_FIRST)
    except Exception as error:  # whatever NumPy does not do
        return Sanitized(why_not=cannot(error))
    if found is not None:
        name = first.trails[0].launch
        found = replace(found, launch=name.name, line=found.line or name.line)
        return Sanitized((found,), said)
    try:
        for how, slowest in islice(schedules(count), 2):
            run(how, slowest)
    except HazardError as error:
        return Sanitized((replace(error.finding, severity=WARNING),), said)
    return Sanitized((), said)


def given(leaves: Sequence[Any], seed: int) -> tuple[Any, ...]:
    """Arguments with data, those that are only shapes, too."""
    return tuple(
        drawn(x, seed + n) if isinstance(x, jax.ShapeDtypeStruct) else x
        for n, x in enumerate(leaves)
    )


def _hangs_over(launches: Sequence[Launch]) -> bool:
    """Whether an input's last block does, and the steps at the edges are not too many."""
    edges = [math.prod(min(n, EDGE) for n in one.grid) for one in launches]
    pairs = list(zip(edges, launches, strict=True))
    flops = sum(n * one.flops / max(1, one.steps) * (one.times or 1) for n, one in pairs)
    if flops > _FLOPS or sum(n * (one.times or 1) for n, one in pairs) > WHOLE_STEPS:
        return False
    inputs = (operand for one in launches for operand in one.inputs if operand.piped)
    return any(n % size for one in inputs for n, size in zip(one.shape, one.sizes, strict=True))


def _edges(run: Callable[[Semantics], ProgramRun]) -> Finding | None:
    """What depends on the padding of inputs in steps at the edges of each axis."""
    try:
        with_nan, with_zeros = (
            run(Semantics(unwritten=what, edges=True)) for what in ("padding", "zero")
        )
    except Exception:  # others lack the steps in between
        return None
    if agree(with_nan, with_zeros):
        return None
    return depends("unwritten", difference(with_nan, with_zeros))


def refused(traced: Traced, launches: Sequence[Launch]) -> str | None:
    """Why a program is not run at all."""
    for launch in launches:
        if any(value is None for value in launch.scalar_values):
            return f"{launch.name} is steered by data: pass arrays for its integer arguments"
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
    """Steps of each launch that run in a second or two; None: all of them."""
    steps = sum(one.steps * (one.times or 1) for one in launches)
    flops = sum(one.flops * (one.times or 1) for one in launches)
    if steps <= WHOLE_STEPS and flops <= _FLOPS:
        return None
    share = _FLOPS / max(1.0, flops / max(1, steps)) / max(1, len(launches))
    return max(2, min(FIRST_STEPS // max(1, len(launches)), int(share)))


_Run = TypeVar("_Run", ProgramRun, DevicesRun)


def differing(
    run: Callable[[Semantics], _Run], how: Semantics, asked: Sequence[str]
) -> tuple[_Run, Finding | None]:
    """The first of several runs, and which of the questions asked makes others differ from it."""
    first, other = run(how), run(replace(how, **{what: _OTHER[what] for what in asked}))
    if agree(first, other):
        return first, None
    for what in asked:
        other = run(replace(how, **{what: _OTHER[what]}))
        if not agree(first, other):
            return first, depends(what, difference(first, other))
    return first, None


def _meet(launch: Launch) -> bool:
    """Whether the steps of a parallel axis might meet in scratch; blocks are known without."""
    words = zip(launch.dimension_semantics or (), launch.grid, strict=False)
    return bool(launch.scratch) and any(word == "parallel" and n > 1 for word, n in words)


def agree(one: _Run, other: _Run) -> bool:
    """Whether the results are; of a launch that was cut off, the blocks carried back so far."""
    if one.cut or other.cut:
        return difference(one, other) is None
    pairs = zip(one.results, other.results, strict=True)
    return all(comparable(a) == comparable(b) for a, b in pairs)


def difference(one: _Run, other: _Run) -> tuple[RunLog, Observation] | None:
    """The first block carried back to HBM that differs."""
    for mine, theirs in zip(one.trails, other.trails, strict=False):
        blocks = {(b.operand, b.step): b.what for b in theirs.carried}
        for block in mine.carried:
            if blocks.get((block.operand, block.step), block.what) != block.what:
                return mine, block
    return None


def depends(what: str, where: tuple[RunLog, Observation] | None) -> Finding:
    """What of that a TPU leaves open, and right numbers do not depend on, these do; and where."""
    kind = {"backwards": "parallel", "late": "hazard", "unwritten": "uninitialised"}[what]
    if where is None:
        return told(kind, _DEPENDS[what])
    trail, carried = where
    facts: dict[str, Any] = dict(launch=trail.launch.name)
    facts |= dict(operand=carried.operand, step=carried.step)
    inputs = {one.name for one in trail.launch.inputs}
    reads = [seen for seen in trail.nans if seen.operand not in inputs] or trail.nans
    if what != "unwritten" or not reads:
        return told(kind, _DEPENDS_IN_A_BLOCK[what], **facts)
    read, after = reads[0], dict(carried=carried.operand, after=carried.step)
    name = f"`{read.operand}`" if read.operand else "a scoped buffer"
    if read.operand in inputs:
        name = f"padding beyond the edge of {name}"
    also = [f"`{seen.operand}`" for seen in reads[1:] if seen.operand and not seen.begun]
    others = sentence("so_it_is_with_others", names=" and ".join(also)) if also else ""
    facts |= dict(operand=read.operand, step=read.step, line=read.what, name=name, others=others)
    return told(kind, "depends_on_what_is_read", **facts, **after)
