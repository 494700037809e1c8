"""Answers that are right in NumPy are right in JAX's own simulator of a TPU."""

from __future__ import annotations

import pytest
import sample
from jax_simulator import beyond_jax, in_jax

import puzzles
from puzzles import Puzzle
from puzzles._judge.answer import Answer
from puzzles._puzzle import variant

PUZZLES = [p for name in puzzles.ladders() for p in puzzles.ladder(name)]
KERNELS = [p for p in PUZZLES if p.kernel and not p.axes]  # test_collectives.py runs the others


@pytest.mark.graduate
@pytest.mark.parametrize("puzzle", sample.share(KERNELS, 16), ids=lambda puzzle: puzzle.name)
def test_the_simulator_gives_the_same(puzzle: Puzzle) -> None:
    """The solution on all cases, other answers on the first."""
    answers = [Answer(puzzle, puzzle.solution)]
    answers += [Answer(puzzle, variant(puzzle, one)) for one in puzzle.alternatives]
    for number, answer in enumerate(answers):
        for run in answer.runs[:1] if number else answer.runs:
            if not beyond_jax(run.launches):
                assert run.case.mismatch(in_jax(run.traced)) is None, (number, run.case.label)
