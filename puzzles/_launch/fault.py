"""What is wrong with a launch and can be seen from its blocks alone, in a learner's words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from puzzles._jax import copy_parts
from puzzles._launch.alignment import misaligned
from puzzles._launch.finding import ERROR, WARNING, Finding, ints, line_of
from puzzles._launch.launch import Launch
from puzzles._launch.operand import Operand, first_seen, row_keys, spread
from puzzles._launch.touched import begun_elsewhere
from puzzles._launch.work import LEAST, MOST

PARALLEL = ("parallel", "core_parallel", "subcore_parallel")


def faults(launch: Launch) -> tuple[Finding, ...]:
    """Every fault of a launch, one per kind and operand: by first step, then those without one."""
    found = [*_grid_faults(launch), *_stray_reads(launch), *_written_inputs(launch)]
    found += (*_stray_semaphores(launch), *_lies(launch), *_second_core(launch))
    aliased = {o: launch.inputs[i].name for i, o in launch.aliases if i >= 0}
    aliased_to = {name: launch.outputs[o].name for o, name in aliased.items()}
    for operand in launch.inputs + launch.outputs:
        if operand.space in ("vmem", "smem"):
            found += _out_of_bounds(launch, operand)
        if operand.space == "vmem":
            found += misaligned(operand)
    for n, operand in enumerate(launch.outputs):
        if operand.space in ("vmem", "smem"):
            found += _revisited(launch, operand, aliased.get(n))
        if operand.space in ("vmem", "smem") and n not in launch.around.unused:
            found += _shared(launch, operand)
            if n not in aliased:
                found += _unwritten(operand)
    revisited = {f.operand for f in found if f.kind == "revisited"}
    found += (f for f in _read_too_late(launch) if aliased_to[f.operand or ""] not in revisited)
    lines = {o.name: o.line for o in launch.operands}
    placed = (
        replace(f, launch=launch.name, line=f.line or lines.get(f.operand or "") or launch.line)
        for f in found
    )
    return tuple(sorted(placed, key=lambda f: (f.step is None, f.step or ())))


def step_number(launch: Launch, finding: Finding) -> int | None:
    """The step that a finding names, counted from 0."""
    if finding.step is None:
        return None
    return int(np.ravel_multi_index(finding.step, launch.grid)) if launch.grid else 0


def _stray_reads(launch: Launch) -> Iterator[Finding]:
    for stray in launch.log.strays:
        asked = spread(stray.asked, launch.grid)
        if not asked.any():
            continue
        name, step = stray.ref.name, int(np.argmax(asked))
        index = int(spread(stray.index, launch.grid)[step])
        says = (
            f"`{name}[{index}]` is read{launch.when(step)}, and there is no such "
            "entry: a TPU reads whatever lies beside it in SMEM, even if the result is not used."
        )
        remedy = (
            "If it is meant to lie there, keep it inside with `jnp.maximum` or `jnp.minimum`, or "
            "read under `pl.when`. If not, is the index right, and the order of the arrays?"
        )
        place = launch.at(step)
        yield Finding("out-of-bounds", ERROR, says, remedy, operand=name, step=place)


def _lies(launch: Launch) -> Iterator[Finding]:
    for lie in launch.log.lies:
        step, multiple = int(np.argmax(spread(lie.steps, launch.grid))), lie.multiple
        value = int(spread(lie.value, launch.grid)[step])
        place, line = launch.at(step), line_of(lie.equation.source_info)
        says = (
            f"`pl.multiple_of(..., {multiple})` gets {value}{launch.when(step)}, which is no "
            f"multiple of {multiple}: the compiler relies on the promise, and addresses other rows "
            "than the interpreter does."
        )
        remedy = "Promise what holds in every step."
        yield Finding("promise", ERROR, says, remedy, step=place, line=line)


def _second_core(launch: Launch) -> Iterator[Finding]:
    axes = _shared_axes(launch)
    if not axes or not launch.scratch:
        return
    early = {name for name, _ in launch.touched.early}  # who begins reads it, and may not use it
    scratch = [one for one in launch.scratch if one.name not in early]
    found = begun_elsewhere(launch.log.touches, scratch, launch.grid, launch.program_ids, axes)
    if found is None:
        return
    name, step, axis = found
    place = launch.at(step)
    says = (
        f"`{name}` at grid step {place}: axis {axis} is marked 'parallel', so that a second core "
        "may begin there, with scratch of its own, and reads what only the first one has written."
    )
    remedy = (
        "Write it in each part of the axis; or, where it is to go on from one part to the next, "
        f"mark axis {axis} 'arbitrary'."
    )
    stores = (one for one in launch.log.touches if one.writes and one.ref == name)
    begins = (store.weight[MOST] for store in stores)
    if axis == len(launch.grid) - 1 and any(np.ptp(one, axis=axis).any() for one in begins):
        remedy = (
            f"The kernel begins it by `pl.program_id({axis})`: so the steps of its sum go along "
            f"axis {axis} of the grid, for the index maps, too, and that axis is 'arbitrary'."
        )
    yield Finding("parallel", ERROR, says, remedy, operand=name, step=place)


def _stray_semaphores(launch: Launch) -> Iterator[Finding]:
    """The first copy that names a semaphore beyond the last, for each array of semaphores."""
    told = set()
    for event in launch.log.events:
        if event.name not in ("dma_start", "dma_wait"):
            continue
        ref, transforms = copy_parts(event.equation.params["tree"], event.values)[2]
        indices = [i for one in transforms for i in getattr(one, "indices", ())]
        shape = getattr(ref, "shape", ())
        if ref in told or len(indices) != len(shape):
            continue
        known = [
            ((index := np.asarray(one)) < 0) | (index >= size)
            for one, size in zip(indices, shape, strict=True)
            if isinstance(one, int | np.integer | np.ndarray)
        ]
        if not any(outside.any() for outside in known):
            continue
        steps = np.logical_or.reduce([spread(outside, launch.grid) for outside in known])
        steps &= spread(event.weight[LEAST] > 0, launch.grid)
        if steps.any():
            told.add(ref)
            step = int(np.argmax(steps))
            place = launch.at(step)
            ((_, named),) = event.parts(place)[2:]
            which = ", ".join(str(int(i)) for one in named for i in one.indices)
            says = (
                f"`{ref.name}[{which}]` is used{launch.when(step)}, and there is no such "
                f"semaphore: `{ref.name}` has shape {tuple(shape)}, and each axis counts from 0."
            )
            remedy = "One for each copy that may be in flight is enough: take them in turn."
            yield Finding("out-of-bounds", ERROR, says, remedy, operand=ref.name, step=place)


def _written_inputs(launch: Launch) -> Iterator[Finding]:
    for name in launch.log.written_inputs:
        says = (
            f"`{name}` is an input, and the kernel writes into it: a later step that keeps the "
            "block finds it changed, one that fetches it again does not."
        )
        remedy = "Compute into the output or into scratch."
        yield Finding("alias", ERROR, says, remedy, operand=name)


def _out_of_bounds(launch: Launch, operand: Operand) -> Iterator[Finding]:
    low = np.array([p[0] for p in operand.padding], np.int64)
    high = np.array([s + p[1] for s, p in zip(operand.shape, operand.padding, strict=True)])
    if operand.elements:  # only numbered blocks may hang over the end
        high -= np.where(operand.elements, np.array(operand.sizes) - 1, 0)
    starts = operand.starts
    wrong = ((starts < -low) | (starts >= high)).any(axis=1)
    if not wrong.any():
        return
    step = int(np.argmax(wrong))
    block = ints(operand.blocks[step])
    axis = int(np.argmax((starts[step] < -low) | (starts[step] >= high)))
    if operand.elements and operand.elements[axis] and operand.sizes[axis] > 1:
        first = int(starts[step][axis])
        says = (
            f"`{operand.name}`{launch.when(step)}: its block takes the elements "
            f"{first} to {first + operand.sizes[axis] - 1} of axis {axis}, which has "
            f"{operand.shape[axis]:,} elements, numbered from 0. What is indexed by `pl.Element` "
            "lies inside, or in the padding that it asks for."
        )
        remedy = "Look at what its index map returns for this step, or give it `padding=`."
        place = launch.at(step)
        yield Finding("out-of-bounds", ERROR, says, remedy, None, operand.name, place, block=block)
        return
    says = f"`{operand.name}`{launch.when(step)}: block {block} is out of bounds. "
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
    yield Finding(
        "out-of-bounds",
        ERROR,
        f"{says}.",
        "Look at what its index map returns for this step, and at how long the grid is.",
        operand=operand.name,
        step=launch.at(step),
        block=block,
    )


def _revisited(launch: Launch, operand: Operand, alias: str | None) -> Iterator[Finding]:
    runs = np.flatnonzero(operand.fetched)
    keys = row_keys(operand.blocks[runs])
    again = first_seen(keys) != np.arange(len(keys))
    if not again.any():
        return
    step = int(runs[np.argmax(again)])
    block = ints(operand.blocks[step])
    says = f"`{operand.name}`: block {block} is visited again at grid step {launch.at(step)} "
    says += "after other blocks were. "
    if alias is None:
        says += (
            "On a TPU its first result was already written back to HBM when the pipeline moved on: "
            "a kernel that reads it now finds what another block left in its buffer, and one that "
            "only writes it does the work again."
        )
    else:
        says += (
            f"It shares its memory with `{alias}`: through that the kernel gets the block as it "
            "was before the first result reached HBM, or after, as timing has it; an output's own "
            "block is never fetched."
        )
    remedy = (
        "All visits to a block have to follow each other: in the grid, move the axis that comes "
        "back to it inwards, past the axes that lead away. Where no order suits every output, it "
        "takes two launches; where the block was not to come back, another grid."
    )
    for other in _unwritten(operand):  # then it is not the order of the grid
        remedy = f"{other.words.split('. An output')[0]}. Does its index map use every program id?"
    place = launch.at(step)
    yield Finding("revisited", ERROR, says, remedy, operand=operand.name, step=place, block=block)


def _unwritten(operand: Operand) -> Iterator[Finding]:
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
    block = ints(np.unravel_index(int(gaps[0]) if len(gaps) else len(visited), counts))
    says = (
        f"`{operand.name}`: {total - len(visited):,} of its {_many(total, 'block')} "
        f"{'is' if total - len(visited) == 1 else 'are'} visited by no grid step, for example "
        f"{block}. An output starts out uninitialised, so garbage stays there."
    )
    remedy = "Check the grid, or alias an input that already holds the values."
    yield Finding("never-written", ERROR, says, remedy, operand=operand.name, block=block)


def _grid_faults(launch: Launch) -> Iterator[Finding]:
    if (unknown := launch.settings.unknown) is not None:
        says = f"`compiler_params` of {launch.name} is a {unknown}, which no compiler reads."
        remedy = "Pass `pltpu.CompilerParams(...)`, with its settings by name."
        yield Finding("parallel", ERROR, says, remedy)
        return
    words = launch.dimension_semantics
    for word in words or ():
        if word not in ("parallel", "arbitrary", "core_parallel", "subcore_parallel"):
            says = f"`dimension_semantics` of {launch.name} has the unknown word {word!r}."
            yield Finding("parallel", ERROR, says, "An axis is 'parallel' or 'arbitrary'.")
            return
    if words is None:
        return
    if len(words) != len(launch.grid):
        says = (
            f"`dimension_semantics` of {launch.name} has {_many(len(words), 'entry')} and the grid "
            f"{launch.grid} {_many(len(launch.grid), 'axis')}."
        )
        yield Finding("parallel", ERROR, says, "Give one word per grid axis.")
        return
    marks = [word in PARALLEL for word in words]
    first = marks.index(False) if False in marks else len(marks)
    if True in marks[first:]:
        axis = marks.index(True, first)
        says = (
            f"`dimension_semantics` of {launch.name} marks grid axis {axis} 'parallel' after axis "
            f"{first}, which is not: parallel axes come first."
        )
        remedy = f"Reorder the grid, or mark axis {axis} 'arbitrary'."
        yield Finding("parallel", WARNING, says, remedy)


def _shared_axes(launch: Launch) -> list[int]:
    """The grid axes that two cores may share out."""
    words = launch.dimension_semantics or ()
    if len(words) != len(launch.grid):
        return []
    return [a for a, word in enumerate(words) if word in PARALLEL and launch.grid[a] > 1]


def _shared(launch: Launch, operand: Operand) -> Iterator[Finding]:
    axes = _shared_axes(launch)
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
        block = ints(operand.blocks[step])
        says = (
            f"`{operand.name}`: block {block} is held at grid steps "
            f"{launch.at(int(origin[step]))} and {launch.at(step)}, which differ along axis "
            f"{axis}, marked 'parallel': two cores may hold it at once, and one result is lost."
        )
        remedy = f"Mark axis {axis} 'arbitrary', if the index map is meant to leave it out."
        place = launch.at(step)
        yield Finding(
            "parallel", ERROR, says, remedy, operand=operand.name, step=place, block=block
        )
        return


def _read_too_late(launch: Launch) -> Iterator[Finding]:
    """An aliased input's block that is fetched after an earlier step has overwritten it."""
    for i, o in launch.aliases:
        if i < 0:
            continue
        source, target = launch.inputs[i], launch.outputs[o]
        if not (source.piped and target.piped) or source.stride != target.stride:
            continue
        keys = row_keys(np.concatenate([source.blocks, target.blocks]))
        reads, writes = keys[: launch.steps], keys[launch.steps :]
        first = first_seen(np.concatenate([writes, reads]))[launch.steps :]
        late = source.fetched & (first < np.arange(launch.steps))
        if not late.any():
            continue
        step = int(np.argmax(late))
        block, place = ints(source.blocks[step]), launch.at(step)
        says = (
            f"`{source.name}`: block {block} is fetched at grid step {place}, and `{target.name}`, "
            f"which shares its memory, has had the same block since grid step "
            f"{launch.at(int(first[step]))}: whether the old numbers or the new ones arrive is a "
            "matter of timing."
        )
        remedy = (
            "Fetch a block no later than the step that writes it, or leave `input_output_aliases` "
            "out."
        )
        yield Finding("alias", ERROR, says, remedy, operand=source.name, step=place, block=block)


def _counts(operand: Operand) -> tuple[int, ...]:
    return tuple(-(-s // max(1, b)) for s, b in zip(operand.shape, operand.sizes, strict=True))


def _many(count: int, noun: str) -> str:
    plural = {"entry": "entries", "axis": "axes"}.get(noun, noun + "s")
    return f"{count:,} {noun if count == 1 else plural}"
