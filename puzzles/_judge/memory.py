"""The `memory` stage: what the index maps and the TPU simulator say of each case."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from functools import partial

import numpy as np

from puzzles._jax import JaxprEqn, kernel_file, uninitialised
from puzzles._judge.case import Case, on_tpu, to_execute
from puzzles._judge.limits import learners_code
from puzzles._judge.numbers import index_words, number_words
from puzzles._judge.rules import rule_of, simulated_rule
from puzzles._judge.values import mismatches, of_which, same_form
from puzzles._judge.verdict import Rejected
from puzzles._launch import (
    Keyed,
    Launch,
    Traced,
    faults,
    fingerprint,
    kernel_calls,
    on_cpu,
    with_interpret,
)
from puzzles._puzzle import Puzzle
from puzzles._tpu import SimulationError, beyond, simulate, simulated_steps, to_simulate

# Small cases first, the smallest always, until these are spent.
_SIMULATED_STEPS = 450
_THOROUGH_STEPS = 1000
_QUICK_STEPS = 300

_UNWRITTEN = (
    "NaN stands for memory that nothing wrote: an output or a scratch buffer is read before it is "
    "initialised, or padding beyond an edge is used"
)
_GARBAGE = 1000.0
_USE_NONE = "Write first, or leave out by its position what is not there: no test of numbers can."
_DIFFERENT = "the kernel relies on something that `interpret=True` does and a TPU does not"


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


def to_run(case: Case, traced: Traced) -> Iterator[Keyed]:
    """The programs that `right` runs, or the interpreter where it does not, to compile ahead."""
    if not _quickly(case, traced):
        return to_execute(traced)
    return to_simulate(traced, left_out=partial(_elsewhere, case))


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
    garbage = {case: where for case in chosen if (where := _garbage(traces[case].launches))}
    for number, case in enumerate(chosen):
        if case not in known:
            _same(case, _flat(case, traces[case], thorough=thorough))
        if thorough or not number:
            _copied_at_once(case, traces[case], launches[case])
    for number, (case, where) in enumerate(garbage.items()):
        if thorough or not number:
            _garbage_unread(case, traces[case], where)
    but = f"; it cannot take {next(iter(unable.values()))}" if unable else ""
    return f"{len(chosen)} of {len(traces)} cases{but}"


def memory_if_small(case: Case, traced: Traced) -> None:
    """The same on one case, which the simulator runs if that is quickly done."""
    _mapped(case, traced)
    if _quickly(case, traced):
        _same(case, _flat(case, traced))


def own_launches(case: Case, traced: Traced, thorough: bool = False) -> tuple[Launch, ...]:
    """The launches that are simulated here: all if `thorough`, else those of no other rung."""
    calls = kernel_calls(traced.jaxpr.jaxpr)
    return tuple(
        launch
        for call, launch in zip(calls, traced.launches, strict=True)
        if thorough or not _elsewhere(case, call)
    )


def _elsewhere(case: Case, call: JaxprEqn) -> bool:
    """Whether a kernel stands in another rung's module: there it is simulated."""
    file = kernel_file(call.params["jaxpr"])
    here = (one for one in list(sys.modules.values()) if getattr(one, "__file__", None) == file)
    rung = any(isinstance(getattr(one, "PUZZLE", None), Puzzle) for one in here)
    return rung and file != str(case.puzzle.path)


def _mapped(case: Case, traced: Traced) -> None:
    for finding in (f for one in traced.launches for f in faults(one)):
        if finding.kind != "misaligned":
            step = finding.step if len(traced.launches) == 1 else None
            raise Rejected(rule_of(finding), finding.words, case=case.label, step=step)


def _copied_at_once(case: Case, traced: Traced, launches: Collection[Launch]) -> None:
    """The same with copies that are made at once; those of a TPU end sometime between the two."""
    if any(one.copies for one in launches):
        _same(case, _flat(case, traced, eager=True))


def _garbage(launches: Collection[Launch]) -> str | None:
    """What may read what nobody wrote, in words; None if nothing does."""
    for one in launches:
        for name, step in one.touched.early[:1]:
            return f"`{name}` is read{_at(one, step)} before anything is written to it"
    for one in launches:
        for operand in one.inputs:
            over = operand.starts + np.array(operand.sizes) > np.array(operand.shape)
            if operand.piped and over.any():
                step = int(np.argmax(over.any(axis=1)))
                return f"the block of `{operand.name}`{_at(one, step)} ends beyond the array"
    return None


def _at(launch: Launch, step: int) -> str:
    return f" at grid step {launch.at(step)}" if launch.grid else ""


def _garbage_unread(case: Case, traced: Traced, where: str) -> None:
    """The same with a number, not NaN, where nothing was written: for who tests what lies there."""
    if on_tpu():
        return
    program = with_interpret(traced.jaxpr, True)
    with learners_code(case.puzzle, case.label), uninitialised(_GARBAGE):
        flat = on_cpu(program, traced.leaves, ("garbage", fingerprint(program)))
    if mismatches(case, [np.asarray(x) for x in flat]) is not None:
        says = (
            f"{where[0].upper()}{where[1:]}. In the interpreter NaN lies there; on a TPU any "
            "number may, and with one the result is wrong. "
        )
        raise Rejected("garbage", says + _USE_NONE, case=case.label)


def _flat(
    case: Case, traced: Traced, eager: bool = False, thorough: bool = False
) -> list[np.ndarray]:
    left_out = None if thorough else partial(_elsewhere, case)
    try:
        return simulate(traced, eager=eager, left_out=left_out)
    except SimulationError as error:
        raise Rejected(simulated_rule(error.finding), error.says, case=case.label) from None


def _same(case: Case, flat: list[np.ndarray]) -> None:
    found = mismatches(case, flat)
    if found is None:
        return
    position, _, wrong = found
    cause = _UNWRITTEN if np.isnan(float(wrong.got)) else _DIFFERENT
    where = f"element {index_words(wrong.first)}{of_which(case, position)}"
    what = f"{number_words(wrong.got)} instead of {number_words(wrong.expected)}"
    says = f"In the TPU simulator, {where} is {what}: {cause}."
    raise Rejected("other-in-simulator", says, case=case.label)
