"""Questions of stage `memory`: is memory used safely on a TPU?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from puzzles._judge.answer import Answer, Run
from puzzles._judge.costs import Scale
from puzzles._judge.numbers import number_words
from puzzles._launch import Finding, faults, faults_of_copies
from puzzles._rules import RULES, Breach, sentence
from puzzles._simulator import HazardError, SimulationError, foreseen, simulate

MANY_STEPS = 2000  # more steps would run for minutes
_COPIES = 2000  # with so many, a copy outside is reported before running
NOT_RUN = RULES["large-grid"].title


def smallest_first(answer: Answer) -> Sequence[Run]:
    """The runs, sorted by their number of steps."""
    return sorted(answer.runs, key=lambda run: sum(launch.steps for launch in run.launches))


def simulated(answer: Answer) -> Iterator[Run]:
    """Yield the runs whose numbers are wrong or unknown on a simulated TPU, the smallest first."""
    runs = smallest_first(answer)
    yield from (run for run in runs if not as_on_tpu(run))
    unable = [run for run in runs if run.as_on_tpu is None]
    but = f"; {unable[0].not_in_numpy}" if unable else ""
    answer.ran["simulator"] = f"{len(runs) - len(unable)} of {len(runs)} cases{but}"


def as_on_tpu(run: Run) -> bool:
    """True if a run gives the right numbers on a TPU simulated in NumPy."""
    return run.as_on_tpu is not None and run.case.mismatch(run.as_on_tpu) is None


def blocks(run: Run) -> Breach | None:
    """Require blocks that are inside, written once, and aligned with aliased blocks."""
    for fault in (f for launch in run.launches for f in faults(launch)):
        if fault.kind != "misaligned":
            return run.wrong(rule_of(fault), says=fault.words)
    return None


def blocks_of_many(run: Run) -> Breach | None:
    """Require, before many steps run for minutes, that no block is outside."""
    count = sum(launch.steps * launch.times for launch in run.launches if launch.times)
    bad = blocks(run) if count > MANY_STEPS else None
    return replace(bad, title=NOT_RUN) if bad and bad.rule == "out-of-bounds" else None


def blocks_at_scale(scale: Scale) -> Breach | None:
    """Require, at the production shape, blocks in bounds and every output block written."""
    for fault in (f for launch in scale.answer.launches for f in faults(launch)):
        return scale.wrong(rule_of(fault), says=fault.words)
    return None


def many_copies(run: Run) -> Breach | None:
    """Require, before a kernel with many copies runs, that no copy is outside an array."""
    for launch in run.launches:
        many = launch.log.cut or sum(copy.times for copy in launch.copies) > _COPIES
        for fault in faults_of_copies(launch) if many else ():
            if fault.kind == "outside":
                return run.wrong("out-of-bounds", title=NOT_RUN, says=fault.says)
    return None


def copies(run: Run) -> Breach | None:
    """Check copies by hand and Refs in HBM without running them."""
    error = foreseen(run.traced)
    return None if error is None else run.wrong(rule_of(error), says=error.words)


def same_in_simulator(run: Run) -> Breach | None:
    """Require the right numbers and safe memory accesses on a simulated TPU.

    None if NumPy cannot simulate the answer.
    """
    try:
        flat = simulate(run.traced)
    except SimulationError as error:
        if error.finding is not None:
            return run.wrong(rule_of(error.finding), says=error.says)
        run.not_in_numpy = error.says
        return None
    mismatch = run.case.mismatch(flat)
    if mismatch is None:
        return None
    position, _, wrong = mismatch
    aliased = any(launch.outputs[n].piped for launch in run.launches for _, n in launch.aliases)
    nan = np.isnan(float(wrong.got))
    cause = "nan_in_the_simulator" if nan else "other_in_the_simulator"
    return run.wrong(
        "other-in-simulator",
        index=list(wrong.first),
        which=run.case.which(position),
        got=number_words(wrong.got),
        expected=number_words(wrong.expected),
        cause=sentence("aliased_in_the_simulator" if aliased else cause),
    )


def drawn_on_tpu(run: Run) -> Breach | None:
    """Require right numbers on a simulated TPU on the random case."""
    return None if as_on_tpu(run) else same_in_simulator(run)


def races(run: Run) -> Breach | None:
    """Require several devices to run without a race, a deadlock or a semaphore above zero."""
    if not run.puzzle.axes:
        return None
    with suppress(Exception):  # `runs` reports all others
        try:
            _ = run.flat
        except HazardError as error:
            title = sentence("unsafe_on_devices")
            return run.wrong(rule_of(error.finding), title=title, says=error.finding.words)
    return None


def rule_of(finding: Finding) -> str:
    """The rule that a finding about a launch breaks."""
    if finding.kind == "parallel" and finding.operand is not None:
        return "parallel-state"
    return "not-a-slice" if finding.kind == "lowering" else finding.kind
