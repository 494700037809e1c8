"""Faults of a launch that are visible from its blocks alone, in a learner's words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from puzzles._jax import CUTS_TILES_OF_BYTES
from puzzles._launch.accesses import begun_elsewhere
from puzzles._launch.events import EVENTS, place_in_hbm
from puzzles._launch.finding import WARNING, Finding, ints, line_of, told
from puzzles._launch.launch import Launch
from puzzles._launch.log import MOST
from puzzles._launch.operand import Operand, first_seen, itemsize, row_keys, spread
from puzzles._rules import plural, sentence

PARALLEL = ("parallel", "core_parallel", "subcore_parallel")


def faults(launch: Launch) -> tuple[Finding, ...]:
    """Every fault of a launch, one per kind and operand: by first step, then those without one."""
    findings = [*_grid_faults(launch), *_stray_reads(launch), *_written_inputs(launch)]
    findings += (*_lies(launch), *_second_core(launch), *_written_by_two_cores(launch))
    aliased = {o: launch.inputs[i].name for i, o in launch.aliases if i >= 0}
    aliased_to = {name: launch.outputs[o].name for o, name in aliased.items()}
    for operand in launch.inputs + launch.outputs:
        if 0 in operand.shape:
            continue
        if operand.piped:
            findings += _out_of_bounds(launch, operand)
        if operand.space == "vmem":
            findings += _misaligned(operand)
    for n, operand in enumerate(launch.outputs):
        if not operand.piped or 0 in operand.shape:
            continue
        findings += _revisited(launch, operand, aliased.get(n))
        if n not in launch.around.unused:
            findings += _shared(launch, operand)
            if n not in aliased and (gap := _gap(operand)) is not None:
                gap_words, block = gap
                where = dict(operand=operand.name, block=block)
                findings.append(told("never-written", "never_written", **where, gap=gap_words))
    revisited = {f.operand for f in findings if f.kind == "revisited"}
    findings += (f for f in _read_too_late(launch) if aliased_to[f.operand or ""] not in revisited)
    lines = {o.name: o.line for o in launch.operands}
    placed = (
        replace(f, launch=launch.name, line=f.line or lines.get(f.operand or "") or launch.line)
        for f in findings
    )
    return tuple(sorted(placed, key=lambda f: (f.step is None, f.step or ())))


def step_number(launch: Launch, finding: Finding) -> int | None:
    """The step that a finding names, counted from 0."""
    if finding.step is None:
        return None
    return int(np.ravel_multi_index(finding.step, launch.grid)) if launch.grid else 0


def _at(launch: Launch, step: int) -> dict[str, Any]:
    """Where: a step."""
    return dict(step=launch.at(step), when=launch.when(step))


def _holding(launch: Launch, operand: Operand, step: int) -> dict[str, Any]:
    """Where: an operand, a step, and the block that it holds then."""
    return dict(operand=operand.name, block=ints(operand.blocks[step]), **_at(launch, step))


def _stray_reads(launch: Launch) -> Iterator[Finding]:
    for look in launch.log.strays:
        strays = spread(look.stray, launch.grid)
        if strays.any():
            step, name = int(np.argmax(strays)), look.ref.name
            index = ", ".join(str(int(spread(i, launch.grid)[step])) for i in look.index)
            facts = dict(index=index, **_at(launch, step))
            yield told("out-of-bounds", "no_such_entry", operand=name, **facts)


def _lies(launch: Launch) -> Iterator[Finding]:
    for lie in launch.log.lies:
        step = int(np.argmax(spread(lie.steps, launch.grid)))
        value, line = int(spread(lie.value, launch.grid)[step]), line_of(lie.equation.source_info)
        facts = dict(multiple=lie.multiple, value=value, **_at(launch, step))
        yield told("promise", "no_multiple", line=line, **facts)


def _second_core(launch: Launch) -> Iterator[Finding]:
    axes = _shared_axes(launch)
    if not axes or not launch.scratch:
        return
    early = {name for name, _ in launch.touched.early}  # the first core reads garbage as well
    scratch = [buffer for buffer in launch.scratch if buffer.name not in early]
    late = begun_elsewhere(launch.log.touches, scratch, launch.grid, launch.program_ids, axes)
    if late is None:
        return
    name, step, axis = late
    stores = (touch for touch in launch.log.touches if touch.writes and touch.ref == name)
    begins = (store.weight[MOST] for store in stores)
    last = axis == len(launch.grid) - 1 and any(np.ptp(begin, axis=axis).any() for begin in begins)
    words = "begun_by_another_axis" if last else "begun_by_one_core"
    if launch.settings.cores > 1:
        words = "begun_by_one_of_the_cores"
    yield told("parallel", words, operand=name, step=launch.at(step), axis=axis)


def _written_by_two_cores(launch: Launch) -> Iterator[Finding]:
    """A part of an array in HBM that copies of two cores write, of a mesh or a parallel axis."""
    axes = _shared_axes(launch)
    for name, writes in _writes_to_hbm(launch).items() if axes else ():
        steps, parts = np.array([n for n, _ in writes]), np.stack([part for _, part in writes])
        cores = launch.program_ids[steps][:, axes]
        for n, (low, high) in enumerate(parts):
            shared = (parts[:n, 0] < high).all(axis=1) & (low < parts[:n, 1]).all(axis=1)
            clash = np.flatnonzero(shared & (cores[:n] != cores[n]).any(axis=1))
            if len(clash):
                begin, end = max(low[0], parts[clash[0], 0, 0]), min(high[0], parts[clash[0], 1, 0])
                before, step = map(launch.at, sorted(steps[[clash[0], n]]))
                facts = dict(rows=f"{begin} to {end - 1}", before=before, step=step)
                yield told("race", "written_by_two_cores", operand=name, **facts)
                break


def _writes_to_hbm(launch: Launch) -> dict[str, list[tuple[int, np.ndarray]]]:
    """By array, the step of each copy to it, and the least and the first greater index it writes.

    Only copies that certainly happen, to a part that is known.
    """
    starts = [event for event in launch.log.events if event.name == "dma_start"]
    writes: dict[str, list[tuple[int, np.ndarray]]] = {}
    for event in starts if len(starts) * launch.steps < EVENTS else ():
        for step, ids in enumerate(launch.program_ids):
            place = place_in_hbm(event.parts(ids)[1])
            if event.times(ids)[1] and place is not None:
                ref, ranges = place
                ends = [*(r[:2] for r in ranges), *((0, n) for n in ref.shape[len(ranges) :])]
                writes.setdefault(ref.name, []).append((step, np.array(ends).T))
    return writes


def _written_inputs(launch: Launch) -> Iterator[Finding]:
    piped = {operand.name for operand in launch.inputs if operand.piped}
    for name in launch.log.written_inputs:
        words = "written_input" if name in piped else "copied_over_an_input"
        yield told("alias", words, operand=name)


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
    axis = int(np.argmax((starts[step] < -low) | (starts[step] >= high)))
    size, stride, length = operand.sizes[axis], operand.stride[axis], operand.shape[axis]
    facts = dict(axis=axis, **_holding(launch, operand, step))
    if operand.elements and operand.elements[axis] and size > 1:
        first = int(starts[step][axis])
        facts |= dict(first=first, last=first + size - 1, length=length)
        yield told("out-of-bounds", "elements_outside", **facts)
        return
    count, unit, of, why = length, "element", "", ""
    if stride == size:
        count, unit, of = _counts(operand)[axis], "block", f" of {size:,}" if size > 1 else ""
    if (index := int(operand.blocks[step][axis])) < 0:
        why = ", and negative indices do not wrap on a TPU"
    elif 1 < stride <= index > count and not index % stride:
        why = "; an index map counts blocks, not elements"
    which = f"numbered 0 to {count - 1}" if count > 1 else "number 0"
    lists = zip(launch.scalars, launch.scalar_values, strict=False)
    holders = [x.name for x, values in lists if values is not None and index in np.asarray(values)]
    unique = len(holders) == 1 < len(launch.scalars) and index >= max(launch.grid, default=0)
    order = sentence("order_of_lists", index=index, name=holders[0]) if unique else ""
    facts |= dict(many=plural(count, unit), of=of, which=which, why=why, order=order)
    yield told("out-of-bounds", "block_outside", **facts)


def _revisited(launch: Launch, operand: Operand, alias: str | None) -> Iterator[Finding]:
    runs = np.flatnonzero(operand.fetched)
    keys = row_keys(operand.blocks[runs])
    again = first_seen(keys) != np.arange(len(keys))
    if not again.any():
        return
    step = int(runs[np.argmax(again)])
    words = "revisited" if alias is None else "revisited_and_aliased"
    finding = told("revisited", words, alias=alias, **_holding(launch, operand, step))
    if (gap := _gap(operand)) is not None:  # then it is not the order of the grid
        finding = replace(finding, remedy=f"{gap[0]} Does its index map use every program id?")
    yield finding


def _gap(operand: Operand) -> tuple[str, tuple[int, ...]] | None:
    """That some of an output's blocks are visited by no step, and the first of those."""
    if operand.stride != operand.sizes:
        return None  # overlapping windows: the blocks do not tile the array
    counts = _counts(operand)
    total = math.prod(counts)
    inside = ((operand.blocks >= 0) & (operand.blocks < np.array(counts, np.int64))).all(axis=1)
    index = operand.blocks[inside & operand.fetched].astype(np.int64)
    radix = np.array([math.prod(counts[a + 1 :]) for a in range(len(counts))], np.int64)
    visited = np.unique(index @ radix)
    missing = total - len(visited)
    if not missing:
        return None
    gaps = np.flatnonzero(visited != np.arange(len(visited)))
    block = ints(np.unravel_index(int(gaps[0]) if len(gaps) else len(visited), counts))
    facts = dict(blocks=plural(total, "block"), are="is" if missing == 1 else "are", block=block)
    return sentence("blocks_not_visited", name=operand.name, missing=missing, **facts), block


def _grid_faults(launch: Launch) -> Iterator[Finding]:
    name, words = launch.name, launch.dimension_semantics
    if (unknown := launch.settings.unknown) is not None:
        yield told("parallel", "unknown_params", launch=name, unknown=unknown)
        return
    allowed = (*PARALLEL, "arbitrary")
    if (strange := next((word for word in words or () if word not in allowed), None)) is not None:
        yield told("parallel", "unknown_word", launch=name, word=strange)
        return
    if words is None:
        return
    if len(words) != len(launch.grid):
        entries, rank = plural(len(words), "entry"), plural(len(launch.grid), "axis")
        facts = dict(grid=launch.grid, entries=entries, axes=rank)
        yield told("parallel", "words_for_axes", launch=name, **facts)
        return
    marks = [word in PARALLEL for word in words]
    first = marks.index(False) if False in marks else len(marks)
    if True in marks[first:]:
        axis = marks.index(True, first)
        yield told("parallel", "parallel_after", WARNING, launch=name, axis=axis, first=first)


def _shared_axes(launch: Launch) -> list[int]:
    """The grid axes that two cores may share out."""
    words = launch.dimension_semantics or ()
    if len(words) != len(launch.grid):
        return []
    return [a for a, word in enumerate(words) if word in PARALLEL and launch.grid[a] > 1]


def _shared(launch: Launch, operand: Operand) -> Iterator[Finding]:
    origin = first_seen(row_keys(operand.blocks))
    for axis in _shared_axes(launch):
        ids = launch.program_ids[:, axis]
        clash = ids != ids[origin]
        if clash.any():
            step = int(np.argmax(clash))
            facts = dict(axis=axis, before=launch.at(int(origin[step])))
            yield told("parallel", "held_by_two_cores", **facts, **_holding(launch, operand, step))
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
        if late.any():
            step = int(np.argmax(late))
            facts = dict(target=target.name, since=launch.at(int(first[step])))
            yield told("alias", "read_too_late", **facts, **_holding(launch, source, step))


def _counts(operand: Operand) -> tuple[int, ...]:
    return tuple(-(-s // max(1, b)) for s, b in zip(operand.shape, operand.sizes, strict=True))


def _misaligned(operand: Operand) -> Iterator[Finding]:
    """A finding if a block in VMEM breaks the rule of the last two axes, with its remedy."""
    name, shape, sizes = operand.name, operand.shape, operand.sizes
    form = f"({', '.join(map(str, operand.block))}{',' * (len(shape) == 1)})"
    if not shape:
        yield told("misaligned", "scalar_block", operand=name)
    elif len(shape) == 1:
        if sizes[0] != shape[0] and sizes[0] % 1024:
            yield told("misaligned", "one_d_block", operand=name, form=form, shape=shape)
    else:
        # Mosaic looks at the last two axes of the array; a squeezed axis counts as 1. Arrays of
        # 8 bits have tiles of 32 rows if their rows divide by 32.
        whole = not CUTS_TILES_OF_BYTES and itemsize(operand.dtype) == 1 and shape[-2] % 32 == 0
        tile = 32 if whole else 8
        for axis, multiple, place in ((-1, 128, "last"), (-2, tile, "second-last")):
            if sizes[axis] != shape[axis] and sizes[axis] % multiple:
                squeezed = operand.block[axis] is None
                words = "misaligned_and_squeezed" if squeezed else "misaligned"
                facts = dict(form=form, shape=shape, tile=tile, bits=" in 8 bits" * (tile > 8))
                facts |= dict(place=place, size=sizes[axis], multiple=multiple, whole=shape[axis])
                yield told("misaligned", words, operand=name, **facts)
                return
