"""Hazards found without the right numbers: run a launch in several ways and compare.

A TPU does not specify the first contents of memory, the time at which a copy lands, and the order
of the steps of a parallel axis. A right kernel gives equal numbers in all cases.
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

from puzzles._equations import is_remote
from puzzles._jax import made_by_a_pipeline
from puzzles._launch import WARNING, Finding, Launch, Operand, Traced, told, when
from puzzles._program import equations, kernel_calls
from puzzles._rules import sentence
from puzzles._simulator.devices import on_mesh, run_devices, schedules
from puzzles._simulator.programs import run_as
from puzzles._simulator.semantics import (
    EDGE,
    HazardError,
    Observation,
    ProgramRun,
    RunLog,
    Semantics,
    comparable,
    drawn_leaves,
)
from puzzles._simulator.simulator import cannot, foreseen

WHOLE_STEPS = 500  # a program with more runs in part: the first steps of each launch
FIRST_STEPS = 250  # summed over all launches
BYTES = 2**28  # of all arrays; the runs copy them
FUEL = 1_000_000  # equations of one launch: a few seconds
_FLOPS = 2e10  # summed over all launches
_OF_DEVICES = ("axis_index", "get_barrier_semaphore")
AFTER_THE_FIRST = "what comes after the first error"

# The fields of `Semantics` that a second run changes, and their other values.
_OTHER: dict[str, Any] = {"backwards": True, "late": False, "unwritten": "zero"}
_Run = TypeVar("_Run", bound=ProgramRun)


@dataclass(frozen=True)
class Sanitized:
    """The findings, the steps that ran ("" for none), and the reason why not all steps ran."""

    findings: tuple[Finding, ...] = ()
    steps: str = ""
    why_not: str = ""


def sanitize(traced: Traced, launches: Sequence[Launch], seed: int = 0) -> Sanitized:
    """Return the errors that a program shows without a run, or else the findings of several runs.

    Arguments that are only shapes get data: floats from `seed`, zeros for other dtypes.
    """
    if on_mesh(traced):
        return _on_devices(traced, seed)
    if fault := foreseen(traced, rewritten=True):
        return Sanitized((fault,), why_not=AFTER_THE_FIRST)
    if (why := refused(traced, launches)) is not None:
        return Sanitized(why_not=why)
    program, most = replace(traced, leaves=drawn_leaves(traced.leaves, seed)), _most(launches)
    total = sum(launch.steps * (launch.times or 1) for launch in launches)
    most = None if most is None or most >= total else most
    steps = "all steps" if most is None else f"the first {most} of {total:,} steps"
    run = partial(run_as, program, fuel=FUEL)
    choices = [name for name in _OTHER if name != "backwards" or any(map(_meet, launches))]
    try:
        first, finding = differing(
            run, Semantics(backwards=False, most=most, unwritten="garbage"), choices
        )
        if finding is None and most is not None and _hangs_over(launches):
            finding = _edges(run)
            steps += ", and the first two and the last of each axis for what hangs over an edge"
    except HazardError as hazard:
        finding, at = hazard.finding, hazard.finding.step
        steps = "up to the first error" if at is None else f"up to grid step {at}, where it stopped"
        return Sanitized((finding,), steps, AFTER_THE_FIRST)
    except Exception as error:  # NumPy cannot run the program
        return Sanitized(why_not=cannot(error))
    why = "" if most is None else f"{total:,} steps were too many: the first {most} stand for all"
    if long := [trail for trail in first.trails if trail.spent]:
        name, step = long[0].launch.name, long[0].cut
        why = sentence("too_many_calls", launch=name, calls=FUEL, step=step)
        steps = f"the first {FUEL:,} operations of `{name}`"
        if not any(trail.carried for trail in first.trails):  # the runs have no block to compare
            steps = ""
    return Sanitized((finding,) if finding else (), steps, why)


def _on_devices(traced: Traced, seed: int) -> Sanitized:
    """Return the findings of a program that runs on the devices of its mesh.

    A fault is a warning if it needs copies on one semaphore that end in another order than they
    start: no document of a TPU promises that order.
    """
    if (why := refused(traced, ())) is not None:
        return Sanitized(why_not=why)
    program = replace(traced, leaves=drawn_leaves(traced.leaves, seed))
    count = math.prod(on_mesh(traced).values())
    steps, run = f"all steps on {count} devices", partial(run_devices, program)
    try:
        in_order = partial(run, in_order=True)
        first, finding = differing(in_order, Semantics(unwritten="garbage"), ("late", "unwritten"))
        most = count if first.operations * count < FUEL else 1
        for how, slowest in islice(schedules(count), 1, most + 1):
            in_order(how, slowest)
    except HazardError as error:
        return Sanitized((error.finding,), steps, AFTER_THE_FIRST)
    except Exception as error:  # NumPy cannot run the program
        return Sanitized(why_not=cannot(error))
    if finding is not None:
        return Sanitized((finding,), steps)
    try:
        for how, slowest in islice(schedules(count), 2):
            run(how, slowest)
    except HazardError as error:
        return Sanitized((replace(error.finding, severity=WARNING),), steps)
    return Sanitized((), steps)


def _hangs_over(launches: Sequence[Launch]) -> bool:
    """True if an input's last block hangs over its edge and the steps at the edges are few."""
    edges = [math.prod(min(n, EDGE) for n in launch.grid) for launch in launches]
    pairs = zip(edges, launches, strict=True)
    runs = [(steps * (launch.times or 1), launch) for steps, launch in pairs]
    flops = sum(steps * launch.flops / max(1, launch.steps) for steps, launch in runs)
    if flops > _FLOPS or sum(steps for steps, _ in runs) > WHOLE_STEPS:
        return False
    return any(_over(operand) for launch in launches for operand in launch.inputs)


def _over(operand: Operand) -> bool:
    """True if the last block along an axis hangs over the edge."""
    pairs = zip(operand.shape, operand.sizes, strict=True)
    return operand.piped and any(n % size or not n for n, size in pairs if size)


def _edges(run: Callable[[Semantics], ProgramRun]) -> Finding | None:
    """The finding if steps at the edges of each axis depend on the padding of inputs."""
    try:
        with_nan, with_zeros = (
            run(Semantics(unwritten=content, edges=True)) for content in ("padding", "zero")
        )
    except Exception:  # a kernel may need the steps in between
        return None
    if agree(with_nan, with_zeros):
        return None
    return depends("padding", with_nan, with_zeros)


def refused(traced: Traced, launches: Sequence[Launch]) -> str | None:
    """The reason why a program does not run at all; None if it runs."""
    for launch in launches:
        if any(value is None for value in launch.scalar_values):
            return f"{launch.name} is steered by data: pass arrays for its integer arguments"
    forms = [*traced.leaves, *jax.tree.leaves(traced.out)]
    size = sum(int(np.prod(x.shape, dtype=np.int64)) * x.dtype.itemsize for x in forms)
    if size > BYTES:
        return f"the arrays take {size / 2**20:,.0f} MiB: pass smaller ones to have it simulated"
    return None


def speaks(traced: Traced) -> bool:
    """Return True if a kernel copies to other devices or waits for them."""
    for call in kernel_calls(traced.jaxpr.jaxpr):
        for equation in equations(call.params["jaxpr"]):
            name = equation.primitive.name
            if is_remote(equation) if name == "dma_start" else name in _OF_DEVICES:
                return True
    return False


def _most(launches: Sequence[Launch]) -> int | None:
    """The steps of each launch that run in a second or two; None for all steps."""
    steps = sum(launch.steps * (launch.times or 1) for launch in launches)
    flops = sum(launch.flops * (launch.times or 1) for launch in launches)
    if steps <= WHOLE_STEPS and flops <= _FLOPS:
        return None
    share = _FLOPS / max(1.0, flops / max(1, steps)) / max(1, len(launches))
    return max(2, min(FIRST_STEPS // max(1, len(launches)), int(share)))


def differing(
    run: Callable[[Semantics], _Run], how: Semantics, choices: Sequence[str]
) -> tuple[_Run, Finding | None]:
    """Return the run with `how`, and the finding for the first choice that changes its results."""
    first, changed = run(how), run(replace(how, **{name: _OTHER[name] for name in choices}))
    if agree(first, changed):
        return first, None
    for name in choices:
        changed = run(replace(how, **{name: _OTHER[name]}))
        if agree(first, changed):
            continue
        if name != "unwritten":
            return first, depends(name, first, changed)
        padded = run(replace(how, unwritten="padding"))
        if not agree(padded, changed):
            return first, depends("padding", padded, changed)
        one_each = (run(replace(how, only=n)) for n in range(len(first.trails)))
        culprit = next((alone for alone in one_each if not agree(alone, changed)), first)
        return first, depends(name, culprit, changed)
    return first, None


def _meet(launch: Launch) -> bool:
    """True if steps of a parallel axis may share scratch; blocks need no run."""
    words = zip(launch.dimension_semantics or (), launch.grid, strict=False)
    return bool(launch.scratch) and any(word == "parallel" and n > 1 for word, n in words)


def agree(first: ProgramRun, second: ProgramRun) -> bool:
    """Compare the results, or the blocks written back so far if a launch was cut off."""
    if first.cut or second.cut:
        return difference(first, second) is None
    pairs = zip(first.results, second.results, strict=True)
    return all(comparable(a) == comparable(b) for a, b in pairs)


def difference(
    first: ProgramRun, other: ProgramRun
) -> tuple[RunLog, Observation, Observation] | None:
    """The first block or output that differs in HBM: its launch, and its contents in both runs."""
    for trail, second in zip(first.trails, other.trails, strict=False):
        blocks = {(b.operand, b.step): b for b in second.carried}
        for block in trail.carried:
            if block != blocks.get((block.operand, block.step), block):
                return trail, block, blocks[block.operand, block.step]
    return None


def depends(choice: str, first: ProgramRun, other: ProgramRun) -> Finding:
    """The finding that results depend on `choice`: "padding", or a field of `Semantics`."""
    kind = {"backwards": "parallel", "late": "hazard"}.get(choice, "uninitialised")
    trail, block, second = difference(first, other) or _any_result(first)
    launch, after = trail.launch, f" after grid step {block.step}" if block.step else ""
    place = sentence("block_copied_out", name=block.operand, after=after)
    facts: dict[str, Any] = dict(launch=launch.name, line=launch.line, operand=block.operand)
    facts |= dict(step=block.step, what=place if block.array is None else f"`{block.operand}`")
    reads, over = trail.nans, {x.name: x.shape for x in launch.inputs if _over(x)}
    if choice == "padding" and over:
        read = next((read for read in reads if read.operand in over), None)
        facts |= dict(operand=next(iter(over))) if read is None else _place(read, launch)
        shape, at = over[facts["operand"]], when(facts["step"])
        return told(kind, "depends_on_padding", when=at, shape=shape, **facts)
    inputs = {x.name for x in launch.inputs} - {*launch.around.empty}
    reads = sorted((r for r in reads if r.operand not in inputs), key=lambda read: read.begun)
    if choice == "unwritten" and reads:
        also = " and ".join(f"`{read.operand}`" for read in reads[1:] if not read.begun)
        facts["others"] = sentence("so_it_is_with_others", names=also) if also else ""
        facts["how"] = sentence("read_before_all" if reads[0].begun else "read_before_any")
        facts |= _place(reads[0], launch) | dict(when=when(reads[0].step))
        is_empty = reads[0].operand in launch.around.empty
        cause = "depends_on_an_empty_array" if is_empty else "depends_on_what_is_read"
        return told(kind, cause, **facts)
    if choice == "unwritten" and block.array is not None and block.array.ndim:
        entries, axis = _garbage(block.array, second.array)
        shown = ", ".join(map(str, entries[:8])) + ", …" * (len(entries) > 8)
        facts |= dict(rows=shown, count=len(entries), total=block.array.shape[axis], axis=axis)
        copies = (event for event in launch.log.events if event.name == "dma_start")
        to = (e for e in copies if getattr(e.parts()[1][0], "name", "") == block.operand)
        piped = any(made_by_a_pipeline(event.equation.source_info) for event in to)
        part = "part_of_an_output_of_a_pipeline" if piped else "part_of_an_output"
        return told(kind, part, **facts | dict(step=None))
    words = {"backwards": "depends_backwards", "late": "depends_late"}
    return told(kind, words.get(choice, "depends_unwritten"), **facts)


def _garbage(*arrays: Any) -> tuple[list[int], int]:
    """The entries that differ between two arrays, and their axis: that with the fewest of them."""
    axes = range(arrays[0].ndim)
    columns = ([map(comparable, np.moveaxis(x, axis, 0)) for x in arrays] for axis in axes)
    entries = [
        [n for n, (a, b) in enumerate(zip(*pair, strict=True)) if a != b] for pair in columns
    ]
    axis = min(axes, key=lambda axis: len(entries[axis]) / arrays[0].shape[axis])
    return entries[axis], axis


def _place(read: Observation, launch: Launch) -> dict[str, Any]:
    return dict(operand=read.operand, step=read.step, line=read.what or launch.line)


def _any_result(run: ProgramRun) -> tuple[RunLog, Observation, Observation]:
    """The last block or output of a run whose results differ outside its launches."""
    trail = run.trails[-1]
    # a grid without steps has written no block
    last = (trail.carried or [Observation(trail.launch.outputs[-1].name, (), 0)])[-1]
    return trail, last, last
