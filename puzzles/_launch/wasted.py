"""What a launch does that may not be needed: steps without work, blocks fetched again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from puzzles._launch.finding import NOTE, Finding
from puzzles._launch.launch import Launch
from puzzles._launch.operand import first_seen, row_keys

_IDLE = 0.05  # of the steps, from which on it is worth a word
_AGAIN = 0.25  # of all bytes that the launch moves


def waste(launch: Launch) -> tuple[Finding, ...]:
    """Notes on time that the launch may lose; none of them is about its numbers."""
    return (*_idle(launch), *_again(launch))


def _idle(launch: Launch) -> Iterator[Finding]:
    idle = int(launch.idle.sum())
    if idle <= _IDLE * launch.steps:
        return
    step = launch.at(int(np.argmax(launch.idle)))
    says = (
        f"{idle:,} of {launch.steps:,} grid steps of {launch.name} do no arithmetic, the first is "
        f"{step}: each still costs the time of a step, and its blocks may be fetched."
    )
    remedy = (
        "Let the grid list only the blocks with work, by scalar prefetch, or let the index maps "
        "of these steps return the block that is already there."
    )
    yield Finding("idle", NOTE, says, remedy, launch.name, step=step, line=launch.line)


def _again(launch: Launch) -> Iterator[Finding]:
    for operand in launch.inputs:
        if not operand.piped or not operand.hbm_bytes:
            continue
        runs = np.flatnonzero(operand.fetched)
        keys = row_keys(operand.blocks[runs])
        fresh = first_seen(keys) == np.arange(len(keys))
        different = int(fresh.sum())
        more = operand.hbm_bytes * (1 - different / operand.transfers)
        if more <= _AGAIN * launch.hbm_bytes:
            continue
        number = int(runs[np.argmin(fresh)])
        block = tuple(int(n) for n in operand.blocks[number])
        says = (
            f"`{operand.name}` is fetched {operand.transfers:,} times and has {different:,} "
            f"blocks: {more / launch.hbm_bytes:.0%} of all bytes that {launch.name} moves are "
            f"blocks fetched again, the first is {block}."
        )
        remedy = (
            "A block stays for free as long as its index does not change: larger blocks of the "
            "other operands, or another order of the grid's axes, fetch it less often."
        )
        yield Finding(
            "refetch", NOTE, says, remedy, launch.name, operand.name,
            launch.at(number), operand.line, block=block,
        )  # fmt: skip
