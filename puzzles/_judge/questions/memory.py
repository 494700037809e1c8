"""Questions of stage `memory`: is memory used as a TPU wants it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from puzzles._judge.answer import Answer, Run
from puzzles._judge.costs import Scale
from puzzles._judge.numbers import number_words
from puzzles._launch import Finding as Known
from puzzles._launch import faults, faults_of_copies
from puzzles._program import UnsupportedError
from puzzles._rules import RULES, Finding, sentence
from puzzles._simulator import HazardError, SimulationError, foreseen, simulate

MANY_STEPS = 2000  # more of them run for minutes
_COPIES = 2000  # a kernel that goes outside with so many is not worth the wait
NOT_RUN = RULES["large-grid"].title


def smallest_first(answer: Answer) -> Sequence[Run]:
    """The runs by how many steps they take."""
    return sorted(answer.runs, key=lambda run: sum(one.steps for one in run.launches))


def simulated(answer: Answer) -> Iterator[Run]:
    """The runs that are not right as they may run on a TPU, the smallest first."""
    runs = smallest_first(answer)
    yield from (run for run in runs if not as_on_tpu(run))
    unable = [run for run in runs if run.as_on_tpu is None]
    but = f"; {unable[0].not_in_numpy}" if unable else ""
    answer.ran["simulator"] = f"{len(runs) - len(unable)} of {len(runs)} cases{but}"


def as_on_tpu(run: Run) -> bool:
    """Whether it is right where a launch runs, in NumPy, as it may run on a TPU."""
    return run.as_on_tpu is not None and run.case.mismatch(run.as_on_tpu) is None


def blocks(run: Run) -> Finding | None:
    """The blocks of every step are there, written once and aligned with those they alias."""
    for fault in (f for one in run.launches for f in faults(one)):
        if fault.kind != "misaligned":
            return run.wrong(rule_of(fault), says=fault.words)
    return None


def blocks_of_many(run: Run) -> Finding | None:
    """No block is outside if there are many steps: these would run for minutes."""
    count = sum(one.steps * one.times for one in run.launches if one.times)
    found = blocks(run) if count > MANY_STEPS else None
    return replace(found, title=NOT_RUN) if found and found.rule == "out-of-bounds" else None


def blocks_at_scale(scale: Scale) -> Finding | None:
    """There, too, all blocks are there, and those of results are written."""
    for fault in (f for one in scale.mine.launches for f in faults(one)):
        return scale.wrong(rule_of(fault), says=fault.words)
    return None


def many_copies(run: Run) -> Finding | None:
    """Of a kernel with many copies none goes outside: it is not worth the wait."""
    for launch in run.launches:
        many = launch.log.cut or sum(copy.times for copy in launch.copies) > _COPIES
        for fault in faults_of_copies(launch) if many else ():
            if fault.kind == "outside":
                return run.wrong("out-of-bounds", title=NOT_RUN, says=fault.says)
    return None


def copies(run: Run) -> Finding | None:
    """Copies by hand, and refs that stay in HBM, without running them."""
    found = foreseen(run.traced)
    return None if found is None else run.wrong(rule_of(found), says=found.words)


def same_in_simulator(run: Run) -> Finding | None:
    """As it may run on a TPU it gives the same numbers, and uses nothing before it is there.

    Nothing is found where NumPy cannot run it so.
    """
    try:
        flat = simulate(run.traced)
    except SimulationError as error:
        if error.finding is not None:
            return run.wrong(rule_of(error.finding), says=error.says)
        run.not_in_numpy = error.says
        return None
    found = run.case.mismatch(flat)
    if found is None:
        return None
    position, _, wrong = found
    aliased = any(one.outputs[out].piped for one in run.launches for _, out in one.aliases)
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


def drawn_on_tpu(run: Run) -> Finding | None:
    """On the drawn case, too, it is right as it may run on a TPU."""
    return None if as_on_tpu(run) else same_in_simulator(run)


def races(run: Run) -> Finding | None:
    """Several devices run without a race, a deadlock, or a semaphore left above zero."""
    if not run.puzzle.axes:
        return None
    with suppress(UnsupportedError):  # the next question asks why
        try:
            _ = run.flat
        except HazardError as error:
            title = sentence("unsafe_on_devices")
            return run.wrong(rule_of(error.finding), title=title, says=error.finding.words)
    return None


def rule_of(finding: Known) -> str:
    """The rule that what is known of a launch breaks."""
    if finding.kind == "parallel" and finding.operand is not None:
        return "parallel-state"
    return "not-a-slice" if finding.kind == "lowering" else finding.kind
