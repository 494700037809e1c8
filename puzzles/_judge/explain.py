"""Why are the numbers wrong? What looks for a cause, each alone: a run in, a sentence out, or None.

The cheap ones state a fact of the launches; the dear ones try something, while there is time.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from puzzles._judge.accuracy import foreign, narrowings, rounded_alike
from puzzles._judge.answer import Clock, Run
from puzzles._judge.case import Case, cases, fresh_case
from puzzles._judge.copied import explains, hazard
from puzzles._judge.exchanged import exchanged
from puzzles._judge.likeness import early, left_undone, likeness, unstored
from puzzles._judge.numbers import compare, equal, number_words, on_tpu, tolerance_of
from puzzles._judge.picture import block_map
from puzzles._judge.running import MAY_RUN
from puzzles._judge.source import handed_out
from puzzles._launch import Launch, faults, fingerprint, first_not_finite
from puzzles._puzzle import Mistake, Puzzle
from puzzles._rules import Finding, sentence

_NEAR = 10.0  # times the tolerance
_ROUNDED = 0.05  # relatively: a number and a sum of some, rounded to bf16, are no farther off
_WHOLE = 20  # elements of a vector that is printed whole


def map_of_blocks(run: Run) -> str | None:
    """Right and wrong blocks, drawn."""
    return None if run.place is None else block_map(run.place.operand, run.place.marks)


def numbers_listed(run: Run) -> str | None:
    """A short result of a function without a kernel, whole, beside the spec's."""
    position, want, _ = run.mismatch
    if run.puzzle.kernel or want.ndim != 1 or want.size > _WHOLE:
        return None
    both = (", ".join(map(number_words, values)) for values in (want, run.flat[position]))
    return "\nexpected [{}]\ngot      [{}]".format(*both)


def fault_of_a_launch(run: Run) -> str | None:
    """A fault that makes numbers wrong however the kernel computes."""
    found = _fault(run)
    return None if found is None else found[1]


def _fault(run: Run) -> tuple[str, str] | None:
    """The kind and the words of the first one."""
    own = run.own if run.puzzle.kernel else ()
    found = (f for one in own for f in faults(one) if f.kind != "misaligned")
    return next(((f.kind, f.words) for f in found), None) or explains(own)


def garbage(run: Run) -> str | None:
    """Memory that is read before it is written, or never written, where NaN came out."""
    _, _, wrong = run.mismatch
    if not math.isnan(float(wrong.got)):
        return None
    return _first_of(early, run) or _first_of(unstored, run)


def undone(run: Run) -> str | None:
    """What a launch never reads, writes or fetches, and a buffer that is used in flight."""
    return _first_of(left_undone, run) or hazard(_launches(run))


def _launches(run: Run) -> Sequence[Launch]:
    """The answer's own launches, or that of them whose output is wrong."""
    if not run.puzzle.kernel:
        return ()
    return [one for one in run.own if run.place is None or one is run.place.launch]


def _first_of(fact: Callable[[Launch, Sequence[Launch]], str | None], run: Run) -> str | None:
    """The first launch's words about a fact, where there is one that is not the reference's."""
    usual = run.case.reference.launches if run.puzzle.kernel else ()
    return next(filter(None, (fact(one, usual) for one in _launches(run))), None)


def nearness(run: Run) -> str | None:
    """That the largest error is not far from what is allowed."""
    _, _, wrong = run.mismatch
    return sentence("close", excess=wrong.excess) if wrong.excess <= _NEAR else None


def like_others(run: Run) -> str | None:
    """What the wrong numbers have in common with the right ones, or with an argument."""
    position, want, wrong = run.mismatch
    place = run.place
    whole = place.operand if place is not None and place.marks is wrong.wrong else None
    names = inspect.signature(run.puzzle.spec).parameters
    given = dict(zip(names, run.case.args, strict=False))
    same = 2 * tolerance_of(want, run.puzzle.tolerance)
    return likeness(want, run.flat[position], wrong.wrong, given, whole, same)


def rounds_on_the_way(run: Run) -> str | None:
    """A line that rounds and goes on computing, where the numbers are off by digits."""
    _, want, wrong = run.mismatch
    if not run.puzzle.kernel:
        return None
    if wrong.excess * tolerance_of(want, run.puzzle.tolerance) >= _ROUNDED:
        return None
    found = foreign(narrowings(run.traced), narrowings(run.case.reference))
    return found[0].says if found else None


def not_finite(run: Run, clock: Clock) -> str | None:
    """The learner's line that makes the first number that is not finite."""
    _, _, wrong = run.mismatch
    known = run.puzzle.kernel or run.puzzle.jit  # there is a program to be watched
    if on_tpu() or not known or not math.isfinite(wrong.expected) or math.isfinite(wrong.got):
        return None
    if not clock.in_time():
        return None
    try:
        found = first_not_finite(run.traced)
    except Exception:  # it ran once, without being watched: then nothing more is known
        return None
    return None if found and found.split("`")[1] in handed_out(run.puzzle) else found


def part_exchanged(run: Run, clock: Clock) -> str | None:
    """What of the launch, exchanged for the reference's, makes the numbers right."""
    if on_tpu() or not run.puzzle.kernel:
        return None
    right = lambda flat: run.case.mismatch(flat) is None  # noqa: E731
    kernel = _written_kernel(run.puzzle)
    return exchanged(run.traced, run.case.reference, right, kernel, clock.in_time)


def _written_kernel(puzzle: Puzzle) -> str | None:
    """The kernel's name, where the learner writes both it and its launch."""
    kernel = f"{puzzle.name}_kernel"
    return kernel if {puzzle.name, kernel} <= set(puzzle.blanks) else None


def mistake_on_record(run: Run, clock: Clock) -> str | None:
    """The mistake on record whose numbers on this case these are, in its own words.

    On the cases before it, and on the next, it has to give what the judged function gives there.
    One that is the same program is asked first, and needs neither to run nor a next case. Where
    the launch has a fault that explains the numbers by itself, the mistake must have it, too.
    """
    case, puzzle = run.case, run.puzzle
    if case.fresh:  # every mistake on record is wrong on a listed case, and all of those passed
        return None
    numbers_right = run.differs is None  # then it is rounded too often, whatever the launch does
    fault = None if numbers_right else _fault(run)
    mistakes = [
        m
        for m in puzzle.mistakes
        if m.stage == "values" and (fault is None or fault[0] in case.faults_of(m))
    ]
    found = None
    if puzzle.kernel and not numbers_right:
        program = fingerprint(run.traced.jaxpr)
        timely = (m for m in mistakes if clock.in_time())
        same = (m for m in timely if program == case.program_of(m))
        found = next((m for m in same if _right_before(case, m)), None)
    only_nan = _only_nan(run)
    if found is None and not (fault is not None and only_nan):
        timely = (m for m in mistakes if clock.in_time())
        found = next((m for m in timely if _same_values(run, m)), None)
    if found is None:
        return None
    what = "kernel" if puzzle.kernel else "function"
    said = "all wrong is nan" if only_nan else "known numbers"
    return sentence(said, what=what, mistake=found.name, says=found.says)


def _only_nan(run: Run) -> bool:
    """Whether every wrong number is NaN, which tells little: many causes have the same."""
    found = [
        (got, compare(want, got, run.puzzle.tolerance))
        for want, got in zip(jax.tree.leaves(run.case.expected), run.flat, strict=True)
    ]
    wrong = [got[one.wrong] for got, one in found if one is not None]
    return bool(wrong) and all(np.isnan(x.astype(np.float32)).all() for x in wrong)


def _same_values(run: Run, mistake: Mistake) -> bool:
    """Whether a mistake gives these numbers here, the right ones before, and the same on the next
    on which it is wrong.

    One case alone may not tell: whatever reads a huge number that it should not, gives that.
    """
    case = run.case
    return (
        _right_before(case, mistake)
        and _gives(case, mistake, run.flat)
        and all(_gives(one, mistake, elsewhere(run, one)) for one in _after(case, mistake))
    )


def _after(case: Case, mistake: Mistake) -> Iterator[Case]:
    """The cases that follow, at last a fresh one, up to one on which the mistake is wrong."""
    puzzle = case.puzzle
    fresh = fresh_case(puzzle, case.seed)
    for one in (*cases(puzzle, case.seed)[case.number + 1 :], *([fresh] if fresh else [])):
        yield one
        if not _gives(one, mistake, jax.tree.leaves(one.expected)):
            return


def _right_before(case: Case, mistake: Mistake) -> bool:
    before = cases(case.puzzle, case.seed)[: case.number]
    return all(_gives(one, mistake, jax.tree.leaves(one.expected)) for one in before)


def _gives(case: Case, mistake: Mistake, numbers: Sequence[np.ndarray] | None) -> bool:
    theirs = case.mistaken(mistake)
    if theirs is None or numbers is None:
        return theirs is numbers
    return alike(case.puzzle, theirs, numbers)


def alike(puzzle: Puzzle, one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> bool:
    """Whether a puzzle tells two flat results apart, by their numbers or by their roundings."""
    return equal(one, other, puzzle.tolerance) and all(
        rounded_alike(puzzle, a, b) for a, b in zip(one, other, strict=True)
    )


def elsewhere(run: Run, case: Case) -> list[np.ndarray] | None:
    """The flat results of the same answer on a case that is not judged now; None if it raises."""
    kept, other = run.answer.elsewhere, run.answer.on(case)
    if case not in kept:
        try:
            found = _first_wrong(other) if case.puzzle.kernel else None
            kept[case] = other.flat if found is None else None
        except Exception:  # it is another case that is told
            kept[case] = None
    return kept[case]


def _first_wrong(run: Run) -> Finding | None:
    return next(filter(None, (ask(run) for ask in MAY_RUN)), None)
