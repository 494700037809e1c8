"""How near is the reference solution to being refused, in units of the tolerance?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from puzzles._judge import Case, cases, execute, largest_error, tolerance_of
from puzzles._launch import trace_call
from puzzles._puzzle import Puzzle

LIMIT = 0.5  # another JAX, another chip, another key: the rest is theirs


@dataclass(frozen=True)
class Margin:
    """The solution's largest error over cases and keys; 1 is the tolerance, 0 where it is exact.

    computed: without the last digit of a bf16, which alone is half of the tolerance.
    """

    error: float
    computed: float
    tolerance: float
    label: str
    seed: int

    def __str__(self) -> str:
        return "exact" if self.error == 0 else f"{self.error:.2g}"


def margin(puzzle: Puzzle, seeds: Sequence[int]) -> Margin | None:
    """The largest error of the reference solution; None where a predicate judges."""
    if puzzle.accepts is not None:
        return None
    found = [_margin(case) for seed in seeds for case in cases(puzzle, seed)]
    worst = max(found, key=lambda one: one.error)
    return replace(worst, computed=max(one.computed for one in found))


def _margin(case: Case) -> Margin:
    wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(case.expected)]
    pairs = list(zip(wanted, _results(case), strict=True))
    return max((_of(case, *pair) for pair in pairs), key=lambda one: one.error)


def _of(case: Case, want: np.ndarray, got: np.ndarray) -> Margin:
    given = case.puzzle.tolerance
    error = computed = math.inf
    if want.shape == got.shape:
        error = largest_error(want, got, given)
        computed = largest_error(want, got, given, neighbours=True)
    return Margin(error, computed, tolerance_of(want, given), case.label, case.seed)


def _results(case: Case) -> list[np.ndarray]:
    solution = case.puzzle.solution
    if case.puzzle.kernel:
        return execute(trace_call(case.judged(solution), *case.args))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(case.plainly(solution))]


def margin_problem(puzzle: Puzzle, found: Margin | None) -> str | None:
    """That the reference is right by little, or None."""
    if found is None or found.computed < LIMIT:
        return None
    place = puzzle.place("tolerance=" if puzzle.tolerance else "PUZZLE = ")
    return (
        f"{place}: the solution passes by little: its largest error is {_times(found)} "
        f"({found.label}, seed {found.seed}); compute it more exactly, or give `tolerance`"
    )


def how_far(puzzle: Puzzle, seed: int) -> str:
    """What to say of a reference whose numbers are not the spec's."""
    try:
        found = margin(puzzle, [seed])
    except Exception:  # another form than the spec's, or a case that raises: the verdict says so
        return ""
    if found is None or math.isinf(found.error):
        return ""
    return f" (its largest error is {_times(found)}: give `tolerance` if that is rounding)"


def _times(found: Margin) -> str:
    return f"{found.error:.2g} times the tolerance, {found.tolerance:g}"
