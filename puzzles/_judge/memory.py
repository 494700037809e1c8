"""The `memory` stage: what the index maps and the TPU simulator say of each case."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import numpy as np

from puzzles._judge.case import Case, on_tpu
from puzzles._judge.numbers import index_words, number_words
from puzzles._judge.origin import elsewhere, own_launches
from puzzles._judge.rules import rule_of, simulated_rule
from puzzles._judge.values import mismatches, of_which, same_form
from puzzles._judge.verdict import Rejected
from puzzles._launch import Traced, faults
from puzzles._rules import sentence
from puzzles._tpu import SimulationError, beyond, simulate, simulated_steps

# Small cases first, the smallest always, until these are spent.
_SIMULATED_STEPS = 450
_THOROUGH_STEPS = 1000
_QUICK_STEPS = 300


def right(case: Case, traced: Traced) -> list[np.ndarray] | None:
    """The flat results in the simulator, if it quickly finds that all is well; else None.

    Then the interpreter need not run the case: it is less strict. Otherwise it has to, since its
    numbers say more of what is wrong. So does a TPU, where there is one.
    """
    if on_tpu() or not _quickly(case, traced):
        return None
    try:
        same_form(case, traced.out)
        _mapped(case, traced)
        flat = _flat(case, traced)
    except Rejected:
        return None
    return flat if mismatches(case, flat) is None else None


def _quickly(case: Case, traced: Traced) -> bool:
    """Whether the simulator takes the case at a small price, and not only in other rungs."""
    own = own_launches(case, traced)
    return bool(own) and simulated_steps(own) <= _QUICK_STEPS and not beyond(own)


def memory(traces: Mapping[Case, Traced], thorough: bool, known: Collection[Case] = ()) -> str:
    """Faults of the index maps on every case, then the simulator; says what was simulated.

    known: the cases on which the simulator was `right` already.
    """
    for case, traced in traces.items():
        _mapped(case, traced)
    launches = {case: own_launches(case, traced, thorough) for case, traced in traces.items()}
    if not any(launches.values()):
        return "its kernels are other rungs': there"
    known = {case for case in known if launches[case] == own_launches(case, traces[case])}
    left = _THOROUGH_STEPS if thorough else _SIMULATED_STEPS
    unable = {case: why for case, own in launches.items() if (why := beyond(own))}
    chosen: list[Case] = []
    steps = {case: simulated_steps(own) for case, own in launches.items() if case not in unable}
    for case in sorted(steps, key=lambda one: steps[one]):
        left -= steps[case] * (case not in known)
        if left >= 0 or not chosen or case in known:
            chosen.append(case)
    for case in chosen:
        if case not in known:
            _same(case, _flat(case, traces[case], thorough=thorough))
    but = f"; it cannot take {next(iter(unable.values()))}" if unable else ""
    return f"{len(chosen)} of {len(traces)} cases{but}"


def memory_if_small(case: Case, traced: Traced) -> None:
    """Faults of the index maps on one case; then the simulator, if that is quickly done."""
    _mapped(case, traced)
    if _quickly(case, traced):
        _same(case, _flat(case, traced))


def _mapped(case: Case, traced: Traced) -> None:
    for finding in (f for one in traced.launches for f in faults(one)):
        if finding.kind != "misaligned":
            step = finding.step if len(traced.launches) == 1 else None
            raise Rejected(rule_of(finding), finding.words, case=case.label, step=step)


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
