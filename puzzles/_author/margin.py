"""How near is the reference solution to being refused, in units of the tolerance?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import jax
import numpy as np

from puzzles._author.report import problem
from puzzles._judge import Case, cases, execute, largest_error, tolerance_of
from puzzles._puzzle import Puzzle

LIMIT = 0.5  # another JAX, another chip, another key: the rest is theirs


@dataclass(frozen=True)
class Margin:
    """The solution's largest error over cases and keys; 1 is the tolerance, 0 where it is exact."""

    error: float
    tolerance: float
    case: str
    seed: int

    def __str__(self) -> str:
        return "exact" if self.error == 0 else f"{self.error:.2g}"


def margin(puzzle: Puzzle, seeds: Sequence[int]) -> Margin | None:
    """The largest error of the reference solution; None where a predicate judges."""
    if puzzle.accepts is not None:
        return None
    found = []
    for case in (case for seed in seeds for case in cases(puzzle, seed)):
        for leaf, got in zip(jax.tree.leaves(case.expected), _results(case), strict=True):
            want = np.asarray(leaf)
            error = largest_error(want, got, puzzle.tolerance)
            allowed = tolerance_of(want, puzzle.tolerance)
            found.append(Margin(error, allowed, case.label, case.seed))
    return max(found, key=lambda one: one.error)


def _results(case: Case) -> list[np.ndarray]:
    if case.puzzle.kernel:
        return execute(case.reference)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(case.plainly(case.puzzle.solution))]


def margin_problem(puzzle: Puzzle, found: Margin | None) -> str | None:
    """That the reference is right by little, or None."""
    if found is None or found.error < LIMIT:
        return None
    place = puzzle.place("tolerance=" if puzzle.tolerance else "PUZZLE = ")
    return problem(place, "passes by little", **asdict(found))
