"""The questions of a verdict, a module for each stage. A question gives a `Breach`, or None."""

from __future__ import annotations

from puzzles._judge.questions import error, memory, work

# Asked before anything runs.
MAY_RUN = (
    work.loops,
    error.grids,
    work.grids,
    work.counted,
    error.steps,
    work.body,
    memory.blocks_of_many,
    work.steps,
    error.copies_fit,
    memory.many_copies,
)
