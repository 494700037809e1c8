"""Notes on work that a launch may not need: idle steps, blocks fetched again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from puzzles._launch.finding import NOTE, Finding, ints, told
from puzzles._launch.launch import Launch
from puzzles._launch.operand import first_seen, row_keys

_IDLE = 0.05  # the share of idle steps from which a note is due
_AGAIN = 0.25  # of the bytes that the launch moves


def waste(launch: Launch) -> tuple[Finding, ...]:
    """Return notes on time that the launch may lose; none is about its numbers."""
    return (*_idle(launch), *_again(launch))


def _idle(launch: Launch) -> Iterator[Finding]:
    idle = int(launch.idle.sum())
    if idle <= _IDLE * launch.steps:
        return
    step = launch.at(int(np.argmax(launch.idle)))
    where = dict(launch=launch.name, step=step, line=launch.line)
    yield told("idle", "idle", NOTE, **where, idle=idle, steps=launch.steps)


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
        where = dict(operand=operand.name, block=ints(operand.blocks[number]), line=operand.line)
        where |= dict(launch=launch.name, step=launch.at(number))
        facts = dict(often=operand.transfers, different=different, share=more / launch.hbm_bytes)
        yield told("refetch", "fetched_again", NOTE, **where, **facts)
