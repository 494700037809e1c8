"""The verdict on a function: the stages in their order. Pure: nothing is printed here."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache

import jax
import numpy as np

from puzzles._judge import source, stages
from puzzles._judge.beside import beside
from puzzles._judge.case import Case, cases, execute, fresh_case, on_tpu
from puzzles._judge.diagnosis import Again
from puzzles._judge.edition import brought_up_to_date, outdated
from puzzles._judge.fresh import own_seed
from puzzles._judge.limits import jax_at_rest, learners_code, seldom_collected
from puzzles._judge.memory import memory, memory_if_small, own_launches, right, to_run
from puzzles._judge.probes import extremes
from puzzles._judge.scale import Scale, at_scale, compare, keywords
from puzzles._judge.values import rounded_once, same_form, same_numbers
from puzzles._judge.verdict import Rejected, Verdict
from puzzles._launch import Launch, Traced, ahead, trace_call
from puzzles._puzzle import Puzzle
from puzzles._receipt import receipt_text
from puzzles._tpu import Compiler

_INTERPRET = (
    "One thing: without `interpret=INTERPRET` in the call, it does not run on a CPU if you call it."
)
_ALWAYS = (
    "One thing: with `interpret=True` in the call, it is interpreted on a TPU, too. Write "
    "`interpret=INTERPRET`, which is False there."
)
_OFTEN = 1.5  # times the reference's stores, from which on they are worth a remark
_STORES = (
    "One thing: `{name}` is stored at {often:,} grid steps, in the reference at {enough:,}. Each "
    "store goes over a block in VMEM; HBM gets what the last one leaves."
)
_NO_KERNEL = "This rung has no kernel of its own, so there was nothing to simulate or to lower."


def judge(
    puzzle: Puzzle,
    fn: Callable,
    *,
    seed: int | None = None,
    thorough: bool = False,
    compiler: Compiler | None = None,
) -> Verdict:
    """The verdict on `fn` as an answer to `puzzle`; raises nothing for a learner's fault.

    seed: draws the data of all cases and the fresh case; without one, the cases have the data of
    seed 0, and the source of `fn` draws the fresh case. thorough: simulates also the cases that
    `check` leaves to the analysis, for time. compiler: compiles with the real TPU compiler, too.
    """
    fn, moved_on, newer = brought_up_to_date(puzzle, fn)
    with seldom_collected(), jax_at_rest():
        verdict = _guarded(puzzle, fn, lambda: _judge(puzzle, fn, newer, seed, thorough, compiler))
    if moved_on is None:
        return verdict
    return dataclasses.replace(verdict, notes=(*verdict.notes, moved_on))


def judge_fresh(puzzle: Puzzle, fn: Callable, seed: int) -> Verdict:
    """The verdict on `fn` by the case that `seed` draws, and by no other."""

    def judged() -> Verdict:
        case = fresh_case(puzzle, seed)
        if case is not None:
            with _told_as_fresh(case):
                if puzzle.kernel:
                    _one_more(case, _traced(case, fn), _again(fn))
                else:
                    _plain(case, fn)
        return _passed(puzzle, None)

    return _guarded(puzzle, fn, judged)


def _guarded(puzzle: Puzzle, fn: Callable, judged: Callable[[], Verdict]) -> Verdict:
    """What `judged` returns, or what its `Rejected` says; "unsolved" where `fn` is a starter."""
    try:
        untouched = source.is_starter(puzzle, fn)
        if untouched:
            raise Rejected("untouched", _where_to_start(puzzle, untouched))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                verdict = judged()
        except Rejected:
            left = source.ellipsis_left(puzzle, fn)
            if left:
                raise Rejected(
                    "ellipsis-left", f"A `...` still stands for a value in `{left[0]}`: `{left[1]}`"
                ) from None
            unfilled = source.partly_filled(puzzle, fn) if puzzle.starter is None else None
            if unfilled:
                raise Rejected("untouched", _where_to_start(puzzle, unfilled)) from None
            raise
    except Rejected as rejected:
        verdict = dataclasses.replace(rejected.verdict, puzzle=puzzle.name)
        old = _old_notebook(puzzle, fn) or outdated(puzzle, fn)
        return dataclasses.replace(verdict, notes=(*verdict.notes, *([old] if old else [])))
    return verdict


def _old_notebook(puzzle: Puzzle, fn: Callable) -> str | None:
    """What to say if the notebook holds another spec than this version of the puzzles."""
    if source.same_spec(puzzle, fn):
        return None
    return (
        f"`{puzzle.spec.__name__}` in your notebook is not the one that this version checks "
        "against: take the newest notebook, or the version of the puzzles that yours came with."
    )


def _where_to_start(puzzle: Puzzle, name: str) -> str:
    if puzzle.starter is not None:
        return f"`{name}` is as you found it. Find the bug, then run this cell again."
    return f"Fill in `{name}` where it says YOUR CODE HERE. Stuck? `hint({puzzle.name})`."


def _judge(
    puzzle: Puzzle,
    fn: Callable,
    newer: frozenset[str],
    seed: int | None,
    thorough: bool,
    compiler: Compiler | None,
) -> Verdict:
    """All stages; cases that ask for one of `newer` are left out."""
    if not puzzle.kernel and source.asks_the_spec(puzzle, fn):
        says = f"`{puzzle.spec.__name__}` is what your function is compared with: do without it."
        raise Rejected("calls-spec", says, title="it calls the spec")
    listed = [case for case in cases(puzzle, seed or 0) if not case.asks_for(newer)]
    drawn = own_seed(puzzle, fn) if seed is None else seed
    fresh = fresh_case(puzzle, drawn)
    if fresh is not None and fresh.asks_for(newer):
        fresh = None
    if puzzle.kernel:
        return _kernel(puzzle, fn, listed, fresh, drawn, thorough, compiler)
    for case in listed:
        planned = _plain(case, fn)
    if puzzle.jit:
        stages.unrolled(listed, fn)
    if fresh is not None:
        with _told_as_fresh(fresh):
            _plain(fresh, fn)
    receipt = receipt_text(planned, title=case.label) if planned else None
    return _passed(puzzle, receipt, notes=(_NO_KERNEL,))


def _kernel(
    puzzle: Puzzle,
    fn: Callable,
    listed: Sequence[Case],
    fresh: Case | None,
    drawn: int,
    thorough: bool,
    compiler: Compiler | None,
) -> Verdict:
    """All stages of a rung with a kernel; `drawn` is the number that the source draws."""
    again = _again(fn)
    _glance(puzzle, fn, listed[0], again)
    first, *rest = listed
    traces = {first: _traced(first, fn)}
    # The interpreter runs at least the first case, as a learner's own call of `fn` would.
    rounded_once(first, stages.numbers(first, traces[first], again), again)
    later = (*rest, fresh) if fresh is not None else rest
    attempt = cache(lambda case: traces[case] if case in traces else _attempt(case, fn))
    known: set[Case] = set()
    with _compiling(attempt, (*later, first)):
        for case in rest:
            traces[case] = _told(attempt(case))
            if _numbers(case, traces[case], again):
                known.add(case)
        simulated = memory(traces, thorough, known)
        for case, traced in traces.items():
            stages.work(case, traced.launches)
        if fresh is not None:  # first: what is wrong at other sizes is no matter of cost
            with _told_as_fresh(fresh):
                _one_more(fresh, _told(attempt(fresh)), again)
    scale = at_scale(puzzle, fn)
    if scale is not None:
        compare(puzzle, scale)
        keywords(puzzle, fn, scale)
    extremes(traces, drawn)
    ran = [f"values on {len(traces)} case{'s' * (len(traces) > 1)}"]
    ran.append("compiled on this TPU" if on_tpu() else "CPU interpreter")
    ran.append(f"TPU simulator ({simulated})")
    ran += stages.tpu(traces, compiler)
    # In other sizes other rungs' kernels are lowered there.
    if fresh is not None and own_launches(fresh, _told(attempt(fresh))):
        with _told_as_fresh(fresh):
            stages.tpu({fresh: _told(attempt(fresh))}, None)
    if scale is not None:
        receipt = beside(puzzle, scale, tuple(ran))
    else:
        largest = max(traces, key=lambda case: sum(one.hbm_bytes for one in traces[case].launches))
        receipt = receipt_text(traces[largest].launches, ran=tuple(ran), title=largest.label)
    launches = [one for traced in traces.values() for one in traced.launches]
    forgot = not on_tpu() and not all(one.interpret for one in launches)
    notes: tuple[str, ...] = (_INTERPRET,) if forgot else ()
    if re.search(r"interpret\s*=\s*True\b", source.text_of(fn) or ""):
        notes += (_ALWAYS,)
    return _passed(puzzle, receipt, notes=(*notes, *(_stores(scale) if scale is not None else ())))


def _stores(scale: Scale) -> Iterator[str]:
    """A remark where an output is stored much more often than in the reference, on its grid."""
    if [one.grid for one in scale.mine.launches] != [one.grid for one in scale.par.launches]:
        return
    for mine, par in zip(scale.mine.launches, scale.par.launches, strict=True):
        for (name, often), (_, enough) in zip(mine.stores, par.stores, strict=False):
            if often > _OFTEN * enough:
                yield _STORES.format(name=name, often=often, enough=enough)


def _traced(case: Case, fn: Callable) -> Traced:
    """`fn` traced on one case, and found to launch kernels."""
    traced = stages.trace(case, fn)
    stages.pallas(case, traced)
    return traced


def _attempt(case: Case, fn: Callable) -> Traced | Rejected:
    """The same before its turn: what is wrong with it is kept, to be `_told` then."""
    try:
        return _traced(case, fn)
    except Rejected as rejected:
        return rejected


def _told(attempt: Traced | Rejected) -> Traced:
    if isinstance(attempt, Rejected):
        raise attempt
    return attempt


def _compiling(
    attempt: Callable[[Case], Traced | Rejected], all_cases: Sequence[Case]
) -> AbstractContextManager:
    """Within it, other threads compile what the cases will run; a TPU compiles for itself."""
    some = () if on_tpu() else all_cases
    traced = ((case, one) for case in some if isinstance(one := attempt(case), Traced))
    return ahead(program for case, one in traced for program in to_run(case, one))


def _again(fn: Callable) -> Again:
    """What `fn` gives on another case: run once, and only if a diagnosis asks."""

    @cache
    def results(case: Case) -> list[np.ndarray] | None:
        try:
            if case.puzzle.kernel:
                return execute(stages.trace(case, fn))
            with learners_code(case.puzzle, case.label):
                return [np.asarray(x) for x in jax.tree.leaves(case.plainly(fn))]
        except Exception:  # it is another case that is told
            return None

    return results


def _glance(puzzle: Puzzle, fn: Callable, case: Case, again: Again) -> None:
    """What a rung wants judged before all else: a wrong result before its gradients are run."""
    if puzzle.glance is not None:
        part = _part(puzzle, case.number, case.seed)
        stages.numbers(part, _traced(part, fn), again)


@cache
def _part(puzzle: Puzzle, number: int, seed: int) -> Case:
    return Case(dataclasses.replace(puzzle, observe=puzzle.glance, results=()), number, seed)


def _first_sentence(text: str) -> str:
    flat = " ".join(text.split())
    end = flat.find(". ")
    return flat if end < 0 else flat[: end + 1]


def _plain(case: Case, fn: Callable) -> tuple[Launch, ...]:
    """What a case without a kernel launches: no `pallas`, `memory` or `tpu` stage."""
    puzzle, args = case.puzzle, case.args  # an author's own fault is not the learner's
    if puzzle.accepts is None:
        _ = case.expected
    with learners_code(puzzle, case.label):
        result = case.plainly(fn)
    if result is None:
        says = f"`{puzzle.name}` returns None: is a `return` missing?"
        raise Rejected("none", says, case=case.label)
    if puzzle.accepts is not None:
        try:
            puzzle.accepts(result, *args)
        except AssertionError as error:
            raise Rejected("not-accepted", str(error), case=case.label) from None
    else:
        same_form(case, result)
        flat = [np.asarray(x) for x in jax.tree.leaves(result)]
        traced = (lambda: trace_call(case.judged(fn), *args)) if puzzle.jit else None
        same_numbers(case, flat, _again(fn), program=traced)
    if puzzle.launches is None:
        return ()
    launches = puzzle.launches(result, *args)
    stages.work(case, launches)
    return launches


def _numbers(case: Case, traced: Traced, again: Again) -> bool:
    """Compare with the spec's numbers; True if the simulator has run the case for that."""
    flat = right(case, traced)
    simulated = flat is not None
    if flat is None:
        flat = stages.numbers(case, traced, again)
    rounded_once(case, flat, again)
    return simulated


def _one_more(case: Case, traced: Traced, again: Again) -> None:
    """The fresh case, which nobody could know; it costs no work that an audit would count."""
    if not _numbers(case, traced, again):
        memory_if_small(case, traced)


@contextmanager
def _told_as_fresh(case: Case) -> Iterator[None]:
    """A rejection within it says how to repeat the case."""
    try:
        yield
    except Rejected as rejected:
        raise rejected.on_fresh_case(case.puzzle.name, case.seed) from None


def _passed(puzzle: Puzzle, receipt: str | None, notes: tuple[str, ...] = ()) -> Verdict:
    lesson = _first_sentence(puzzle.explain)
    return Verdict(True, "passed", lesson, None, puzzle.name, receipt=receipt, notes=notes)
