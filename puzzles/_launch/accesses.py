"""The grid steps that read and write each ref, found before any numbers are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from puzzles._launch.log import LEAST, MOST, Access
from puzzles._launch.operand import Operand, row_keys, spread


@dataclass(frozen=True)
class Accesses:
    """Facts that are rare in right kernels, and may explain wrong numbers.

    early: (ref, first grid step) of outputs and scratch that are read before anything is written.
    unread: inputs that no step reads. unwritten: outputs that no step writes. unstored: (output,
    number of its blocks that leave VMEM unwritten, number of all that leave, an unwritten block,
    the first grid step that holds it).
    """

    early: tuple[tuple[str, int], ...] = ()
    unread: tuple[str, ...] = ()
    unwritten: tuple[str, ...] = ()
    unstored: tuple[tuple[str, int, int, tuple[int, ...], int], ...] = ()


def touched(
    touches: Sequence[Access],
    blocks: Sequence[Operand],
    scratch: Sequence[Operand],
    grid: tuple[int, ...],
) -> Accesses:
    """The facts about inputs and outputs in blocks, and scratch.

    blocks: without operands in HBM, and without outputs that are aliased to an input.
    """
    early, unread, unwritten, unstored = [], [], [], []
    for number, operand in enumerate((*blocks, *scratch)):
        accesses = [touch for touch in touches if touch.ref == operand.name]
        reads, writes = (
            any(t.writes is way and t.weight[MOST].any() for t in accesses) for way in (False, True)
        )
        if number >= len(blocks):
            begins = np.arange(len(operand.fetched)) == 0
        elif operand.output:
            begins = operand.fetched
            unwritten += [operand.name] * (not writes)
            unstored += list(_unstored(operand, accesses, grid))
        else:
            unread += [operand.name] * (not reads)
            continue
        if (step := _early(accesses, begins, grid)) is not None:
            early.append((operand.name, step))
    return Accesses(tuple(early), tuple(unread), tuple(unwritten), tuple(unstored))


def begun_elsewhere(
    touches: Sequence[Access],
    scratch: Sequence[Operand],
    grid: tuple[int, ...],
    program_ids: np.ndarray,
    parallel: Sequence[int],
) -> tuple[str, int, int] | None:
    """Scratch that a second core would read before it writes, the step, and the axis; or None.

    A TPU with two cores gives each of them half of a `parallel` axis, and its own scratch.
    program_ids: (steps, axes). scratch: without refs that the first core also reads too early.
    """
    for axis in parallel:
        second_half = program_ids[:, axis] >= -(-grid[axis] // 2)
        begins = np.arange(second_half.size) == np.argmax(second_half)
        for operand in scratch if second_half.any() else ():
            own = [touch for touch in touches if touch.ref == operand.name]
            if (step := _early(own, begins, grid, second_half)) is not None:
                return operand.name, step, axis
    return None


def alone(
    touches: Sequence[Access], outputs: Sequence[Operand], grid: tuple[int, ...]
) -> np.ndarray:
    """(steps,) bool: the step stores into a block of an output, and no other step does."""
    once = np.zeros(int(np.prod(grid)), bool)
    for operand in (output for output in outputs if output.piped):
        stores = _steps([t for t in touches if t.ref == operand.name], MOST, grid)
        steps = np.flatnonzero(stores)
        _, which, count = np.unique(
            row_keys(operand.blocks[steps]), return_inverse=True, return_counts=True
        )
        once[steps[count[which.reshape(-1)] == 1]] = True
    return once


def rewritten(touches: Sequence[Access], operand: Operand, grid: tuple[int, ...]) -> bool:
    """Whether no step reads an output, and each visit to a block stores the whole block."""
    accesses = [touch for touch in touches if touch.ref == operand.name]
    if not operand.piped or any(not t.writes and t.weight[MOST].any() for t in accesses):
        return False
    stored = _steps([touch for touch in accesses if touch.whole], LEAST, grid)
    visits = np.flatnonzero(operand.fetched)
    return bool(np.logical_or.reduceat(stored, visits).all())


def added(touches: Sequence[Access], operand: Operand, grid: tuple[int, ...]) -> np.ndarray | None:
    """(steps,) the share of its sum that a ref holds after each step; None if no step adds to it.

    A sum begins at a step that writes before it reads; an output's sum also begins with its block.
    """
    accesses = [touch for touch in touches if touch.ref == operand.name]
    writes, first = _steps(accesses, MOST, grid), np.zeros(len(operand.fetched), np.int64)
    for touch in accesses:
        first[(first == 0) & spread(touch.weight[MOST] > 0, grid)] = 1 + touch.writes
    begins = (first == 2) | (operand.fetched & operand.output)
    begins[:1] = True
    if not (writes & (first == 1) & ~begins).any():
        return None
    starts, count = np.flatnonzero(begins), np.cumsum(writes)
    run = np.cumsum(begins) - 1
    before = (count - writes)[starts]
    totals = np.add.reduceat(writes.astype(np.int64), starts)
    return (count - before[run]) / np.maximum(totals, 1)[run]


def _steps(touches: Sequence[Access], which: int, grid: tuple[int, ...]) -> np.ndarray:
    """(steps,) bool: the step writes, at most or at least, by `which`."""
    steps = np.zeros(int(np.prod(grid)), bool)
    for touch in touches:
        if touch.writes:
            steps |= spread(touch.weight[which] > 0, grid)
    return steps


def _early(
    touches: Sequence[Access],
    begins: np.ndarray,
    grid: tuple[int, ...],
    steps_asked: np.ndarray | None = None,
) -> int | None:
    """The first step that certainly reads memory unwritten since the last of `begins`.

    steps_asked: the steps to look at, if not all.
    """
    written = np.zeros(len(begins), bool)
    early = np.zeros(len(begins), bool)
    for touch in touches:
        if touch.writes:
            written |= spread(touch.weight[MOST] > 0, grid)
        else:
            early |= spread(touch.weight[LEAST] > 0, grid) & ~written
    if steps_asked is not None:
        written, early = written & steps_asked, early & steps_asked
    before = np.cumsum(written) - written  # earlier steps that write
    visit = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
    early &= before == before[visit]
    return int(np.argmax(early)) if early.any() else None


def _unstored(
    operand: Operand, touches: Sequence[Access], grid: tuple[int, ...]
) -> Iterator[tuple[str, int, int, tuple[int, ...], int]]:
    visits = np.flatnonzero(operand.fetched)
    if not operand.piped or not len(visits) or visits[0] != 0:
        return
    stored = np.logical_or.reduceat(_steps(touches, MOST, grid), visits)
    keys = row_keys(operand.blocks[visits])
    left = np.flatnonzero(~np.isin(keys, keys[stored]))
    if stored.any() and len(left):
        step = int(visits[left[0]])
        block = tuple(int(n) for n in operand.blocks[step])
        yield operand.name, len(np.unique(keys[left])), len(np.unique(keys)), block, step
