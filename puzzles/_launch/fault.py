"""What is wrong with a launch and can be seen from its blocks alone, in a learner's words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from puzzles._launch.launch import Launch
from puzzles._launch.operand import Operand, first_seen, row_keys

PARALLEL = ("parallel", "core_parallel", "subcore_parallel")


@dataclass(frozen=True)
class Fault:
    """`kind` is "out of bounds", "revisited", "unwritten", "parallel", "semantics", "input" or
    "misaligned".

    `step` counts grid steps from 0; `operand` is a ref's name, None if it is the grid's fault.
    """

    kind: str
    operand: str | None
    step: int | None
    block: tuple[int, ...] | None
    says: str


def faults(launch: Launch) -> tuple[Fault, ...]:
    """Every fault of a launch, one per kind and operand: by first step, then those without one."""
    found = [*_grid_faults(launch), *_stray_reads(launch), *_written_inputs(launch)]
    aliased = {o: launch.inputs[i].name for i, o in launch.aliases if i >= 0}
    for operand in launch.inputs + launch.outputs:
        if operand.space in ("vmem", "smem"):
            found += _out_of_bounds(launch, operand)
        if operand.space == "vmem":
            found += _misaligned(operand)
    for n, operand in enumerate(launch.outputs):
        if operand.space in ("vmem", "smem"):
            found += _revisited(launch, operand, aliased.get(n))
            found += _shared(launch, operand)
            if n not in aliased:
                found += _unwritten(operand)
    return tuple(sorted(found, key=lambda f: (f.step is None, f.step or 0)))


def _stray_reads(launch: Launch) -> Iterator[Fault]:
    for name, step, index in launch.stray_reads:
        says = (
            f"`{name}[{index}]` is read at grid step {_at(launch, step)}, and there is no such "
            "entry: a TPU reads whatever lies beside it in SMEM, even if the result is not used. "
            "Keep the index inside with `jnp.maximum` or `jnp.minimum`, or read under `pl.when`."
        )
        yield Fault("out of bounds", name, step, None, says)


def _written_inputs(launch: Launch) -> Iterator[Fault]:
    for name in launch.written_inputs:
        says = (
            f"`{name}` is an input, and the kernel writes into it: a later step that keeps the "
            "block finds it changed, one that fetches it again does not. Compute into the output "
            "or into scratch."
        )
        yield Fault("input", name, None, None, says)


def _out_of_bounds(launch: Launch, operand: Operand) -> Iterator[Fault]:
    low = np.array([p[0] for p in operand.padding], np.int64)
    high = np.array([s + p[1] for s, p in zip(operand.shape, operand.padding, strict=True)])
    starts = operand.starts
    wrong = ((starts < -low) | (starts >= high)).any(axis=1)
    if not wrong.any():
        return
    step = int(np.argmax(wrong))
    block = _ints(operand.blocks[step])
    axis = int(np.argmax((starts[step] < -low) | (starts[step] >= high)))
    says = f"`{operand.name}` at grid step {_at(launch, step)}: block {block} is out of bounds. "
    whole = operand.stride[axis] == operand.sizes[axis]
    count, unit = _counts(operand)[axis], "block"
    if not whole:
        count, unit = operand.shape[axis], "element"
    of = f" of {operand.sizes[axis]:,}" if whole and operand.sizes[axis] > 1 else ""
    which = f"numbered 0 to {count - 1}" if count > 1 else "number 0"
    says += f"Axis {axis} has {_many(count, unit)}{of}, {which}"
    if block[axis] < 0:
        says += ", and negative indices do not wrap on a TPU"
    elif 1 < operand.stride[axis] <= block[axis] > count and not block[axis] % operand.stride[axis]:
        says += "; an index map counts blocks, not elements"
    says += ". Look at what its index map returns for this step."
    yield Fault("out of bounds", operand.name, step, block, says)


def _revisited(launch: Launch, operand: Operand, alias: str | None) -> Iterator[Fault]:
    runs = np.flatnonzero(operand.fetched)
    keys = row_keys(operand.blocks[runs])
    again = first_seen(keys) != np.arange(len(keys))
    if not again.any():
        return
    step = int(runs[np.argmax(again)])
    block = _ints(operand.blocks[step])
    says = f"`{operand.name}`: block {block} is visited again at grid step {_at(launch, step)} "
    says += "after other blocks were. "
    if alias is None:
        says += (
            "On a TPU its first result was already written back to HBM when the pipeline moved on, "
            "and what the kernel reads there is stale. "
        )
    else:
        says += (
            f"It shares its memory with `{alias}`, and whether the kernel then reads the block "
            "before or after the first result reached HBM is a matter of timing. "
        )
    says += (
        "All visits to a block have to follow each other: in the grid, move the axis that comes "
        "back to it inwards, past the axes that lead away."
    )
    yield Fault("revisited", operand.name, step, block, says)


def _unwritten(operand: Operand) -> Iterator[Fault]:
    if operand.stride != operand.sizes:
        return  # overlapping windows: the blocks do not tile the array
    counts = _counts(operand)
    total = math.prod(counts)
    inside = ((operand.blocks >= 0) & (operand.blocks < np.array(counts, np.int64))).all(axis=1)
    index = operand.blocks[inside & operand.fetched].astype(np.int64)
    radix = np.array([math.prod(counts[a + 1 :]) for a in range(len(counts))], np.int64)
    key = index @ radix
    visited = np.sort(key[first_seen(key) == np.arange(len(key))])
    if len(visited) >= total:
        return
    gaps = np.flatnonzero(visited != np.arange(len(visited)))
    block = _ints(np.unravel_index(int(gaps[0]) if len(gaps) else len(visited), counts))
    says = (
        f"`{operand.name}`: {total - len(visited):,} of its {_many(total, 'block')} "
        f"{'is' if total - len(visited) == 1 else 'are'} visited by no grid step, for example "
        f"{block}. An output starts out uninitialised, so garbage stays there. Check the grid, or "
        "alias an input that already holds the values."
    )
    yield Fault("unwritten", operand.name, None, block, says)


def _grid_faults(launch: Launch) -> Iterator[Fault]:
    if launch.params is not None:
        says = (
            f"`compiler_params` of {launch.name} is a {launch.params}, which no compiler reads: "
            "pass `pltpu.CompilerParams(...)`, with its settings by name."
        )
        yield Fault("semantics", None, None, None, says)
        return
    words = launch.dimension_semantics
    for word in words or ():
        if word not in ("parallel", "arbitrary", "core_parallel", "subcore_parallel"):
            says = (
                f"`dimension_semantics` of {launch.name} has the unknown word {word!r}: an axis is "
                "'parallel' or 'arbitrary'."
            )
            yield Fault("semantics", None, None, None, says)
            return
    if words is None:
        return
    if len(words) != len(launch.grid):
        says = (
            f"`dimension_semantics` of {launch.name} has {_many(len(words), 'entry')} and the grid "
            f"{launch.grid} {_many(len(launch.grid), 'axis')}: give one word per grid axis."
        )
        yield Fault("semantics", None, None, None, says)
        return
    marks = [word in PARALLEL for word in words]
    first = marks.index(False) if False in marks else len(marks)
    if True in marks[first:]:
        axis = marks.index(True, first)
        says = (
            f"`dimension_semantics` of {launch.name} marks grid axis {axis} 'parallel' after axis "
            f"{first}, which is not: parallel axes come first. Reorder the grid, or "
            f"mark axis {axis} 'arbitrary'."
        )
        yield Fault("semantics", None, None, None, says)


def _shared(launch: Launch, operand: Operand) -> Iterator[Fault]:
    words = launch.dimension_semantics or ()
    axes = [
        a for a, word in enumerate(words) if word in PARALLEL and len(words) == len(launch.grid)
    ]
    axes = [a for a in axes if launch.grid[a] > 1]
    if not axes:
        return
    keys = row_keys(operand.blocks)
    origin = first_seen(keys)
    for axis in axes:
        ids = launch.program_ids[:, axis]
        clash = ids != ids[origin]
        if not clash.any():
            continue
        step = int(np.argmax(clash))
        block = _ints(operand.blocks[step])
        says = (
            f"`{operand.name}`: block {block} is written at grid steps "
            f"{_at(launch, int(origin[step]))} and {_at(launch, step)}, which differ along axis "
            f"{axis}, marked 'parallel': two cores may hold it at once, and one result is lost. "
            f"Mark axis {axis} 'arbitrary'."
        )
        yield Fault("parallel", operand.name, step, block, says)
        return


def _misaligned(operand: Operand) -> Iterator[Fault]:
    shape, sizes = operand.shape, operand.sizes
    where = f"`{operand.name}`: block {_form(operand.block)} of an array {shape} "
    if not shape:
        says = (
            f"`{operand.name}`: a scalar cannot be a block in VMEM: pass it in SMEM, or as (1, 1)."
        )
    elif len(shape) == 1:
        if sizes[0] == shape[0] or sizes[0] % 1024 == 0:
            return
        says = where + (
            "does not fit every TPU and JAX: a 1-D block is the whole array or a multiple of 1024."
        )
    else:
        # Mosaic looks at the last two axes of the array, where a squeezed axis counts as 1.
        lanes = sizes[-1] == shape[-1] or sizes[-1] % 128 == 0
        rows = sizes[-2] == shape[-2] or sizes[-2] % 8 == 0
        if lanes and rows:
            return
        says = where + (
            "does not fit a TPU: the last two dims are multiples of (8, 128) or the whole axis, "
        )
        axis, multiple, place = (-1, 128, "last") if not lanes else (-2, 8, "second-last")
        squeezed = operand.block[axis] is None
        why = "a squeezed one counts as 1" if squeezed else f"{sizes[axis]} is not"
        says += f"and here the {place} breaks that ({why}). "
        says += f"Try a multiple of {multiple} or all {shape[axis]}"
        says += ", or transpose the array so that squeezed axes come first." if squeezed else "."
    yield Fault("misaligned", operand.name, None, None, says)


def step_ids(launches: tuple[Launch, ...], fault: Fault) -> tuple[int, ...] | None:
    """The program ids of the step that a fault of one of `launches` names, where there is one."""
    if fault.step is None or len(launches) != 1:
        return None
    return _at(launches[0], fault.step)


def _counts(operand: Operand) -> tuple[int, ...]:
    return tuple(-(-s // max(1, b)) for s, b in zip(operand.shape, operand.sizes, strict=True))


def _at(launch: Launch, step: int) -> tuple[int, ...]:
    return _ints(launch.program_ids[step])


def _ints(index: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(n) for n in index)


def _form(block: tuple[int | None, ...]) -> str:
    return f"({', '.join(map(str, block))}{',' * (len(block) == 1)})"


def _many(count: int, noun: str) -> str:
    plural = {"entry": "entries", "axis": "axes"}.get(noun, noun + "s")
    return f"{count:,} {noun if count == 1 else plural}"
