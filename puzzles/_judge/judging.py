"""The verdict on a function: the stages in their order. Pure: nothing is printed here."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial

import jax
import numpy as np

from puzzles._judge import source, stages
from puzzles._judge.again import Again
from puzzles._judge.beside import beside
from puzzles._judge.case import Case, cases, execute, fresh_case, on_tpu
from puzzles._judge.fresh import own_seed
from puzzles._judge.halfway import right_so_far
from puzzles._judge.limits import jax_at_rest, learners_code
from puzzles._judge.memory import memory, memory_of_fresh
from puzzles._judge.origin import own_launches
from puzzles._judge.scale import Scale, at_scale, compare
from puzzles._judge.values import rounded_once, same_form, same_numbers
from puzzles._judge.verdict import Rejected, Verdict
from puzzles._launch import Launch, Traced, trace_call
from puzzles._puzzle import Puzzle
from puzzles._receipt import receipt_text
from puzzles._rules import sentence
from puzzles._tpu import Compiler

_OFTEN = 1.5  # times the reference's stores, from which on they are worth a remark


def judge(
    puzzle: Puzzle,
    fn: Callable,
    *,
    seed: int | None = None,
    thorough: bool = False,
    compiler: Compiler | None = None,
    patience: float | None = None,
) -> Verdict:
    """The verdict on `fn` as an answer to `puzzle`; raises nothing for a learner's fault.

    seed: draws the data of all cases and the fresh case; without one, the cases have the data of
    seed 0, and the source of `fn` draws the fresh case. thorough: simulates also the cases that
    `check` leaves to the analysis, for time. compiler: compiles with the real TPU compiler, too.
    patience: seconds for which the cause of wrong numbers is looked for; two unless given.
    """
    again = Again(partial(_elsewhere, fn), patience)
    with jax_at_rest():
        return _guarded(
            puzzle, fn, again, lambda: _judge(puzzle, fn, seed, thorough, compiler, again)
        )


def judge_fresh(puzzle: Puzzle, fn: Callable, seed: int) -> Verdict:
    """The verdict on `fn` by the case that `seed` draws, and by no other."""
    again = Again(partial(_elsewhere, fn))

    def judged() -> Verdict:
        case = fresh_case(puzzle, seed)
        if case is not None:
            with _told_as_fresh(case):
                if puzzle.kernel:
                    traced = _traced(case, fn)
                    _numbers(case, traced, again)
                    memory_of_fresh(case, traced)
                else:
                    _plain(case, fn, again)
        return _passed(puzzle, None)

    return _guarded(puzzle, fn, again, judged)


def _guarded(puzzle: Puzzle, fn: Callable, again: Again, judged: Callable[[], Verdict]) -> Verdict:
    """What `judged` returns, or what its `Rejected` says; "unsolved" where `fn` has gaps left."""
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
                says = f"A `...` still stands for a value in `{left[0]}`: `{left[1]}`"
                done = right_so_far(puzzle, fn, again)
                raise Rejected("ellipsis-left", f"{says}\n{done}".strip()) from None
            unfilled = source.partly_filled(puzzle, fn) if puzzle.starter is None else None
            if unfilled:
                raise Rejected("untouched", _where_to_start(puzzle, unfilled)) from None
            raise
    except Rejected as rejected:
        verdict = dataclasses.replace(rejected.verdict, puzzle=puzzle.name)
        old = _old_notebook(puzzle, fn)
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
    seed: int | None,
    thorough: bool,
    compiler: Compiler | None,
    again: Again,
) -> Verdict:
    """All stages, of a rung with a kernel and of one without."""
    if not puzzle.kernel and source.asks_the_spec(puzzle, fn):
        says = f"`{puzzle.spec.__name__}` is what your function is compared with: do without it."
        raise Rejected("calls-spec", says, title="it calls the spec")
    if (asked := source.differentiates_itself(fn)) is not None:
        rule, of = asked
        says = sentence("rule of itself", rule=rule, of=of)
        raise Rejected("rule-of-itself", says, title="its rule has no end")
    listed = cases(puzzle, seed or 0)
    drawn = own_seed(puzzle, fn) if seed is None else seed
    fresh = fresh_case(puzzle, drawn)
    if puzzle.kernel:
        return _kernel(puzzle, fn, listed, fresh, thorough, compiler, again)
    for case in listed:
        planned = _plain(case, fn, again)
    if puzzle.jit:
        stages.unrolled(listed, fn)
    if fresh is not None:
        with _told_as_fresh(fresh):
            _plain(fresh, fn, again)
    receipt = receipt_text(planned, title=case.label) if planned else None
    return _passed(puzzle, receipt, notes=(sentence("no kernel"),))


def _kernel(
    puzzle: Puzzle,
    fn: Callable,
    listed: Sequence[Case],
    fresh: Case | None,
    thorough: bool,
    compiler: Compiler | None,
    again: Again,
) -> Verdict:
    """All stages of a rung with a kernel."""
    _glance(puzzle, fn, listed[0], again)
    traces: dict[Case, Traced] = {}
    for case in listed:
        traces[case] = _traced(case, fn)
        _numbers(case, traces[case], again)
    where = memory(traces, thorough)
    for case, traced in traces.items():
        stages.work(case, traced.launches)
    if fresh is not None:  # before costs: what is wrong at other sizes is no matter of cost
        with _told_as_fresh(fresh):
            traced = _traced(fresh, fn)
            _numbers(fresh, traced, again)
            memory_of_fresh(fresh, traced)
            # In other sizes other rungs' kernels are lowered there.
            own = {fresh: traced} if own_launches(fresh, traced) else {}
    scale = at_scale(puzzle, fn)
    if scale is not None:
        compare(puzzle, scale)
    lowered = stages.tpu(traces, compiler)
    if fresh is not None:
        with _told_as_fresh(fresh):
            stages.tpu(own, None)
    ran = (
        f"values on {len(traces)} case{'s' * (len(traces) > 1)}",
        "compiled on this TPU" if on_tpu() else "CPU interpreter",
        f"TPU simulator ({where})",
        *lowered,
    )
    return _passed(puzzle, _receipt(puzzle, traces, scale, ran), tuple(_remarks(fn, traces, scale)))


def _receipt(
    puzzle: Puzzle, traces: Mapping[Case, Traced], scale: Scale | None, ran: tuple[str, ...]
) -> str:
    """What the launches cost: at production scale, or on the case that moves most."""
    if scale is not None:
        return beside(puzzle, scale, ran)
    largest = max(traces, key=lambda case: sum(one.hbm_bytes for one in traces[case].launches))
    return receipt_text(traces[largest].launches, ran=ran, title=largest.label)


def _remarks(fn: Callable, traces: Mapping[Case, Traced], scale: Scale | None) -> Iterator[str]:
    """What is worth a sentence beside a pass."""
    launches = [one for traced in traces.values() for one in traced.launches]
    if not on_tpu() and not all(one.interpret for one in launches):
        yield sentence("interpret left out")
    if re.search(r"interpret\s*=\s*True\b", source.text_of(fn) or ""):
        yield sentence("interpret always")
    if scale is not None:
        yield from _stores(scale)


def _stores(scale: Scale) -> Iterator[str]:
    """A remark where an output is stored much more often than in the reference, on its grid."""
    if [one.grid for one in scale.mine.launches] != [one.grid for one in scale.par.launches]:
        return
    for mine, par in zip(scale.mine.launches, scale.par.launches, strict=True):
        for (name, often), (_, enough) in zip(mine.stores, par.stores, strict=False):
            if often > _OFTEN * enough:
                yield sentence("stored often", name=name, often=often, enough=enough)


def _traced(case: Case, fn: Callable) -> Traced:
    """`fn` traced on one case, and found to launch kernels."""
    traced = stages.trace(case, fn)
    stages.pallas(case, traced)
    return traced


def _elsewhere(fn: Callable, case: Case) -> list[np.ndarray] | None:
    """The flat results of `fn` on a case that is not judged now; None where it raises."""
    try:
        if case.puzzle.kernel:
            return execute(stages.trace(case, fn))
        with learners_code(case.puzzle, case.label):
            return [np.asarray(x) for x in jax.tree.leaves(case.plainly(fn))]
    except Exception:  # it is another case that is told
        return None


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


def _plain(case: Case, fn: Callable, again: Again) -> tuple[Launch, ...]:
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
        same_numbers(case, flat, again, program=traced)
    if puzzle.launches is None:
        return ()
    launches = puzzle.launches(result, *args)
    stages.work(case, launches)
    return launches


def _numbers(case: Case, traced: Traced, again: Again) -> None:
    """Compare with the spec's numbers."""
    rounded_once(case, stages.numbers(case, traced, again), again)


@contextmanager
def _told_as_fresh(case: Case) -> Iterator[None]:
    """A rejection within it says how to repeat the case."""
    try:
        yield
    except Rejected as rejected:
        raise rejected.on_fresh_case(case.puzzle.name, case.seed, case.unusual) from None


def _passed(puzzle: Puzzle, receipt: str | None, notes: tuple[str, ...] = ()) -> Verdict:
    lesson = _first_sentence(puzzle.explain)
    return Verdict(True, "passed", lesson, None, puzzle.name, receipt=receipt, notes=notes)
