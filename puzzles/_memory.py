"""The `memory` stage: what the index maps and the TPU simulator say of each case."""

from __future__ import annotations

import jax
import numpy as np

from puzzles import _faults, _simulate, _values
from puzzles._numbers import index_words, named, number_words
from puzzles._puzzle import Puzzle
from puzzles._stages import Run, step_ids
from puzzles._verdict import Rejected

# The simulator takes about a millisecond a grid step, and to compile a launch as long as some of
# them: small cases first, the smallest always, until these are spent.
_LAUNCH_STEPS = 50
_SIMULATED_STEPS = 450
_THOROUGH_STEPS = 1000

_UNWRITTEN = (
    "NaN stands for memory that nothing wrote: an output or a scratch buffer is read before it is "
    "initialised, or padding beyond an edge is used"
)
_DIFFERENT = "the kernel relies on something that `interpret=True` does and a TPU does not"


def memory(puzzle: Puzzle, runs: list[Run], seed: int, thorough: bool) -> str:
    """Faults of the index maps on every case, then the simulator; says what was simulated."""
    for run in runs:
        for fault in (f for one in run.launches for f in _faults.faults(one)):
            if fault.kind != "misaligned":
                raise Rejected("memory", fault.says, case=run.label, step=step_ids(run, fault))
    left = _THOROUGH_STEPS if thorough else _SIMULATED_STEPS
    chosen: list[Run] = []
    beyond = {run.case: why for run in runs if (why := _beyond_the_simulator(run))}
    for run in sorted((one for one in runs if one.case not in beyond), key=_simulated_steps):
        left -= _simulated_steps(run)
        if left >= 0 or not chosen:
            chosen.append(run)
    for run in chosen:
        try:
            flat = _simulate.simulate(run.traced)
        except _simulate.SimulationError as error:
            raise Rejected("memory", error.says, case=run.label) from None
        wanted = jax.tree.leaves(_values.expected(puzzle, run.case, seed))
        for position, (want, got) in enumerate(zip(wanted, flat, strict=True)):
            wrong = _values.compare(want, got, puzzle.tolerance)
            if wrong is not None:
                cause = _UNWRITTEN if np.isnan(float(wrong.got)) else _DIFFERENT
                where = index_words(wrong.first)
                what = f"{number_words(wrong.got)} instead of {number_words(wrong.expected)}"
                which = f" of {named(puzzle, position)}" if len(wanted) > 1 else ""
                says = f"In the TPU simulator, element {where}{which} is {what}: {cause}."
                raise Rejected("memory", says, case=run.label)
    but = f"; it cannot take {next(iter(beyond.values()))}" if beyond else ""
    return f"{len(chosen)} of {len(runs)} cases{but}"


def _beyond_the_simulator(run: Run) -> str | None:
    """What JAX's simulator crashes on, or gets wrong, though a TPU does not."""
    for launch in run.launches:
        for _, position in launch.aliases:
            out = launch.outputs[position]
            if any(n % size for n, size in zip(out.shape, out.sizes, strict=True)):
                return "an aliased output whose last block is cut off"
        if any(any(pair) for operand in launch.operands for pair in operand.padding):
            return "the padding of a `pl.Element`"
    return None


def _simulated_steps(run: Run) -> int:
    return sum((one.steps + _LAUNCH_STEPS) * (one.times or 1) for one in run.launches)
