"""Is memory used as a TPU wants it? What index maps, copies, a run as on a TPU and Mosaic say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from puzzles._compile import compiled, lowered, supported_chips
from puzzles._jax import Jaxpr
from puzzles._judge.answer import Answer, Run
from puzzles._judge.numbers import number_words
from puzzles._launch import Finding as Known
from puzzles._launch import Launch, faults, program_of, timeline
from puzzles._program import kernel_calls, visited
from puzzles._rules import Finding, sentence
from puzzles._simulator import SimulationError, foreseen, simulate


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
    cause = "aliased" if aliased else "nan" if np.isnan(float(wrong.got)) else "other"
    return run.wrong(
        "other-in-simulator",
        index=list(wrong.first),
        which=run.case.which(position),
        got=number_words(wrong.got),
        expected=number_words(wrong.expected),
        cause=sentence(f"{cause} in the simulator"),
    )


def drawn_on_tpu(run: Run) -> Finding | None:
    """On the drawn case, too, it is right as it may run on a TPU."""
    return None if as_on_tpu(run) else same_in_simulator(run)


def lowers(run: Run) -> Finding | None:
    """Block rules and Mosaic's lowering, which a kernel in other sizes is not asked again."""
    seen = [f for one in run.launches for f in faults(one) if f.kind == "misaligned"]
    for call in () if seen else kernel_calls(run.traced.jaxpr.jaxpr):
        if (does := _operations(call.params["jaxpr"])) not in run.answer.lowered:
            run.answer.lowered.append(does)
            seen.extend(lowered(program_of(call)))
    return run.wrong(seen[0].kind, says=seen[0].words) if seen else None


def _operations(kernel: Jaxpr) -> list[tuple]:
    """What it does with numbers of which types, whatever its sizes."""
    return [
        (one.primitive.name, *(getattr(v.aval, "dtype", None) for v in one.outvars))
        for one, _ in visited(kernel)
    ]


def compiles(answer: Answer) -> Finding | None:
    """Libtpu takes every case, where it is asked."""
    if answer.compiler is None:
        return None
    for number, finding in compiled([run.traced for run in answer.runs], answer.compiler):
        return answer.runs[number].wrong("compile", says=finding.words)
    answer.ran["libtpu"] = f"libtpu for {', '.join(supported_chips())}"
    return None


def rule_of(finding: Known) -> str:
    """The rule that what is known of a launch breaks."""
    if finding.kind == "parallel" and finding.operand is not None:
        return "parallel-state"
    return "not-a-slice" if finding.kind == "lowering" else finding.kind


def explains(launches: Sequence[Launch]) -> tuple[str, str] | None:
    """(kind, words) of what makes numbers wrong, however the kernel computes: None if nothing.

    A copy from where nothing is, one that is waited for and was not started, an output in HBM that
    nobody copies to. The kind tells one such fault from another.
    """
    for launch in launches:
        told = [one for one in faults_of_copies(launch) if one.line or one.kind == "outside"]
        if any(one.kind in ("outside", "stuck") for one in told):  # and what came before it
            return f"{told[0].kind} {told[0].line}", told[0].says
        filled = {copy.target for copy in launch.copies if copy.times}
        for out in launch.outputs:
            if launch.copies and not out.piped and out.name not in filled:
                return f"unwritten {out.name}", sentence("no copy goes there", name=out.name)
    return None


def faults_of_copies(launch: Launch) -> Sequence[Any]:
    """What is wrong with the copies that a kernel makes by hand."""
    found = timeline(launch)
    return found.faults if found else ()
