"""The `memory` stage: what the index maps and the TPU simulator say of each case."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from puzzles._judge.case import Case
from puzzles._judge.numbers import index_words, number_words
from puzzles._judge.origin import elsewhere, own_launches
from puzzles._judge.rules import rule_of, simulated_rule
from puzzles._judge.values import mismatches, of_which
from puzzles._judge.verdict import Rejected
from puzzles._launch import Traced, faults
from puzzles._rules import sentence
from puzzles._tpu import SimulationError, beyond, foreseen, simulate, simulated_steps

_THOROUGH_STEPS = 1000  # small cases first, the smallest always, until these are spent
_QUICK_STEPS = 300


def memory(traces: Mapping[Case, Traced], thorough: bool) -> str:
    """What is known of every case without running it, then the simulator; says what it took.

    It takes the smallest case alone, unless `thorough`: blocks and copies are known of all, and the
    interpreter, too, has NaN where nobody wrote.
    """
    for case, traced in traces.items():
        known(case, traced)
    launches = {case: own_launches(case, traced, thorough) for case, traced in traces.items()}
    if not any(launches.values()):
        return "its kernels are other rungs': there"
    unable = {case: why for case, own in launches.items() if (why := beyond(own))}
    chosen: list[Case] = []
    steps = {case: simulated_steps(own) for case, own in launches.items() if case not in unable}
    left = _THOROUGH_STEPS if thorough else 0
    for case in sorted(steps, key=lambda one: steps[one]):
        left -= steps[case]
        if left >= 0 or not chosen:
            chosen.append(case)
    for case in chosen:
        _same(case, _flat(case, traces[case], thorough=thorough))
    but = f"; it cannot take {next(iter(unable.values()))}" if unable else ""
    return f"{len(chosen)} of {len(traces)} cases{but}"


def memory_if_small(case: Case, traced: Traced) -> None:
    """What is known of one case without running it; then the simulator, if it is quickly done."""
    known(case, traced)
    own = own_launches(case, traced)
    if own and simulated_steps(own) <= _QUICK_STEPS and not beyond(own):
        _same(case, _flat(case, traced))


def known(case: Case, traced: Traced) -> None:
    """Blocks and copies, from the launches alone."""
    for launch in traced.launches:
        for finding in faults(launch):
            if finding.kind != "misaligned":
                step = finding.step if len(traced.launches) == 1 else None
                raise Rejected(rule_of(finding), finding.words, case=case.label, step=step)
    found = foreseen(traced, partial(elsewhere, case))
    if found is not None:
        raise Rejected(simulated_rule(found), found.words, case=case.label)


def _flat(case: Case, traced: Traced, thorough: bool = False) -> list[np.ndarray]:
    left_out = None if thorough else partial(elsewhere, case)
    try:
        return simulate(traced, left_out=left_out)
    except SimulationError as error:
        raise Rejected(simulated_rule(error.finding), error.says, case=case.label) from None


def _same(case: Case, flat: list[np.ndarray]) -> None:
    found = mismatches(case, flat)
    if found is None:
        return
    position, _, wrong = found
    unwritten = np.isnan(float(wrong.got))
    cause = sentence("nan in the simulator" if unwritten else "other in the simulator")
    where = f"element {index_words(wrong.first)}{of_which(case, position)}"
    what = f"{number_words(wrong.got)} instead of {number_words(wrong.expected)}"
    says = f"In the TPU simulator, {where} is {what}: {cause}."
    raise Rejected("other-in-simulator", says, case=case.label)
