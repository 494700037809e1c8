"""The `memory` stage: what the index maps and the TPU simulator say of each case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from puzzles._judge.case import Case
from puzzles._judge.numbers import index_words, number_words
from puzzles._judge.origin import elsewhere, own_launches
from puzzles._judge.rules import rule_of, simulated_rule
from puzzles._judge.values import mismatches, of_which
from puzzles._judge.verdict import Rejected
from puzzles._launch import Launch, Traced, faults
from puzzles._rules import sentence
from puzzles._tpu import SimulationError, beyond, foreseen, simulate, simulated_steps

# Small cases first, the smallest always, until these are spent.
_SIMULATED_STEPS = 450
_THOROUGH_STEPS = 1000
_QUICK_STEPS = 300


def memory(traces: Mapping[Case, Traced], thorough: bool) -> str:
    """What is known of every case without running it, then the simulator; says what it took.

    It takes one case, the smallest, where the interpreter shows the rest: there, too, memory that
    nobody wrote is NaN.
    """
    own = {case: own_launches(case, traced, thorough) for case, traced in traces.items()}
    steps = {case: simulated_steps(launches) for case, launches in own.items()}
    for case, traced in traces.items():
        _mapped(case, traced)
    for case in sorted(traces, key=lambda one: steps[one]):
        _copied(case, traces[case])
    if not any(own.values()):
        return "its kernels are other rungs': there"
    unable = {case: why for case, launches in own.items() if (why := beyond(launches))}
    chosen: list[Case] = []
    left = _THOROUGH_STEPS if thorough else _SIMULATED_STEPS
    for case in sorted((one for one in traces if one not in unable), key=lambda one: steps[one]):
        left -= steps[case]
        if not chosen or (left >= 0 and (thorough or _fetched(own[case]))):
            chosen.append(case)
    for case in chosen:
        _same(case, _flat(case, traces[case], thorough=thorough), own[case])
    but = f"; it cannot take {next(iter(unable.values()))}" if unable else ""
    return f"{len(chosen)} of {len(traces)} cases{but}"


def memory_of_fresh(case: Case, traced: Traced) -> None:
    """What is known of one case; the simulator, where the interpreter does not show the rest."""
    _mapped(case, traced)
    _copied(case, traced)
    if _fetched(own_launches(case, traced)):
        memory_if_small(case, traced)


def memory_if_small(case: Case, traced: Traced) -> None:
    """Faults of the index maps on one case; then the simulator, if that is quickly done."""
    _mapped(case, traced)
    own = own_launches(case, traced)
    if own and simulated_steps(own) <= _QUICK_STEPS and not beyond(own):
        _same(case, _flat(case, traced), own)


def _fetched(launches: Sequence[Launch]) -> bool:
    """Whether the interpreter puts into an output what a TPU does not: the array it aliases."""
    return any(launch.aliases for launch in launches)


def _mapped(case: Case, traced: Traced) -> None:
    for finding in (f for one in traced.launches for f in faults(one)):
        if finding.kind != "misaligned":
            step = finding.step if len(traced.launches) == 1 else None
            raise Rejected(rule_of(finding), finding.words, case=case.label, step=step)


def _copied(case: Case, traced: Traced) -> None:
    """Copies by hand, and refs that stay in HBM, without running them."""
    if (found := foreseen(traced, partial(elsewhere, case))) is not None:
        raise Rejected(simulated_rule(found), found.words, case=case.label)


def _flat(case: Case, traced: Traced, thorough: bool = False) -> list[np.ndarray]:
    left_out = None if thorough else partial(elsewhere, case)
    try:
        return simulate(traced, left_out=left_out)
    except SimulationError as error:
        raise Rejected(simulated_rule(error.finding), error.says, case=case.label) from None


def _same(case: Case, flat: list[np.ndarray], launches: Sequence[Launch]) -> None:
    found = mismatches(case, flat)
    if found is None:
        return
    position, _, wrong = found
    aliased = any(one.outputs[out].piped for one in launches for _, out in one.aliases)
    cause = "aliased" if aliased else "nan" if np.isnan(float(wrong.got)) else "other"
    where = f"element {index_words(wrong.first)}{of_which(case, position)}"
    what = f"{number_words(wrong.got)} instead of {number_words(wrong.expected)}"
    says = f"In the TPU simulator, {where} is {what}: {sentence(f'{cause} in the simulator')}."
    raise Rejected("other-in-simulator", says, case=case.label)
