"""Blocks that a pipeline inside a kernel (`emit_pipeline`) revisits after other blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from puzzles._launch.events import Event, Part, place_in_hbm
from puzzles._launch.finding import ERROR, WARNING, Finding, line_of, told
from puzzles._launch.launch import Launch
from puzzles._launch.slices import ranges_of, ranges_shown
from puzzles._program import FUEL


def revisited_inside(launch: Launch) -> Iterator[Finding]:
    """Yield a finding for the first block of each array that a pipeline writes back twice.

    In the kernel's order, up to the first copy that depends on data.
    """
    pipes = {id(event) for event in launch.log.events if event.by_pipeline}
    if not pipes or len(launch.log.events) * launch.steps > FUEL:
        return
    named: set[str] = set()
    for ids in launch.program_ids.tolist():
        fetched: set[Any] = set()  # a buffer, and the part of an array that it was copied to
        first: dict[Any, str] = {}  # the first access to a buffer since it was copied
        for event in launch.log.events:
            most, least = event.times(ids)
            if most != least and id(event) in pipes:
                return
            if not least or event.name in ("work", "dma_wait"):
                continue
            if event.name != "dma_start":
                first.setdefault(event.parts(ids)[0][0], event.name)
                continue
            source, target, _ = event.parts(ids)
            fetched = {
                entry for entry in fetched if entry[1] != place_in_hbm(source)
            }  # it is fetched again
            if id(event) not in pipes or place_in_hbm(target) is None:
                continue
            block = source[0], place_in_hbm(target)
            if block in fetched and target[0].name not in named:
                named.add(target[0].name)
                yield _finding(launch, event, target, first.get(source[0]) == "get")
            fetched.add(block)
            first.pop(source[0], None)


def single_slots(launch: Launch) -> list[str]:
    """The arrays whose changing blocks have a single slot, so that no step hides their copies.

    Blocks move by the launch's pipeline, or to the kernel by `emit_pipeline`.
    """
    moved = (*launch.inputs, *launch.outputs)
    outer = [o.name for o in moved if o.piped and o.buffers == 1 < o.transfers]
    slots, written = {}, {o.name for o in launch.outputs}
    for event in launch.log.events:
        if event.by_pipeline:
            source, target, *_ = event.parts()
            array, slot = (target, source) if target[0].name in written else (source, target)
            slots[array[0].name] = slot[0].shape[0]
    often: Counter[str] = Counter()
    for copy in launch.copies:
        often.update(dict.fromkeys((copy.source, copy.target), copy.times * copy.by_pipeline))
    inner = (name for name, count in slots.items() if count == 1 and often[name] > launch.steps)
    return [*outer, *inner]


def _finding(launch: Launch, event: Event, target: Part, reads: bool) -> Finding:
    ref, transforms = target
    read, written = (ERROR, "inner_block_read_again"), (WARNING, "inner_block_written_again")
    severity, words = read if reads else written
    line = line_of(event.equation.source_info) or launch.line
    where = dict(launch=launch.name, operand=ref.name, line=line)
    where["part"] = ranges_shown(ranges_of(transforms), ref.shape)
    return told("revisited", words, severity, **where)
