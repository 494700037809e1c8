"""Which mistake on record gives these numbers?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
import numpy as np

from puzzles._judge import rounding
from puzzles._judge.again import Again
from puzzles._judge.case import Case, cases, fresh_case
from puzzles._judge.numbers import compare, equal
from puzzles._launch import Traced, fingerprint
from puzzles._puzzle import Mistake, Puzzle


def diagnosis(
    case: Case,
    flat: Sequence[np.ndarray],
    again: Again,
    traced: Traced | None = None,
    fault: str | None = None,
) -> str | None:
    """The mistake on record whose numbers on this case these are, in its own words, or None.

    On the cases before it, and on the next, it has to give what the judged function gives there.
    None, too, where time is over before one is found (`Again.in_time`).
    traced: the judged function on the case, where it has a kernel; a mistake that is the same
    program is asked first, and needs neither to run nor a next case. fault: a kind that explains
    the numbers by itself, so that the mistake must have it, too.
    """
    if case.fresh:  # every mistake on record is wrong on a listed case, and all of those passed
        return None
    mistakes = [
        m
        for m in case.puzzle.mistakes
        if m.stage == "values" and (fault is None or fault in case.faults_of(m))
    ]
    mistake = None
    if traced is not None:
        program = fingerprint(traced.jaxpr)
        timely = (m for m in mistakes if again.in_time())
        same = (m for m in timely if program == case.program_of(m))
        mistake = next((m for m in same if _right_before(case, m)), None)
    if mistake is None and not (fault is not None and _only_nan(case, flat)):
        timely = (m for m in mistakes if again.in_time())
        mistake = next((m for m in timely if _same_values(case, m, flat, again)), None)
    if mistake is None:
        return None
    what = "kernel" if case.puzzle.kernel else "function"
    if _only_nan(case, flat):
        example = f"as for example in a {what} that {mistake.name}: {mistake.says}."
        return f"All that is wrong is NaN, {example}"
    return f"Your numbers are those of a {what} that {mistake.name}: {mistake.says}."


def _only_nan(case: Case, flat: Sequence[np.ndarray]) -> bool:
    """Whether every wrong number is NaN, which tells little: many causes have the same."""
    wanted = jax.tree.leaves(case.expected)
    found = [
        (got, compare(want, got, case.puzzle.tolerance))
        for want, got in zip(wanted, flat, strict=True)
    ]
    wrong = [got[one.wrong] for got, one in found if one is not None]
    return bool(wrong) and all(np.isnan(x.astype(np.float32)).all() for x in wrong)


def _same_values(case: Case, mistake: Mistake, flat: Sequence[np.ndarray], again: Again) -> bool:
    """Whether a mistake gives these numbers here, the right ones before, and the same on the next
    on which it is wrong.

    One case alone may not tell: whatever reads a huge number that it should not, gives that.
    """
    return (
        _right_before(case, mistake)
        and _gives(case, mistake, flat)
        and all(_gives(one, mistake, again(one)) for one in _after(case, mistake))
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
        rounding.rounded_alike(puzzle, a, b) for a, b in zip(one, other, strict=True)
    )
