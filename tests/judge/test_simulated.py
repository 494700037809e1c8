"""When JAX's simulator is asked about an answer, beside NumPy."""

from __future__ import annotations

import pytest

from puzzles import find
from puzzles._judge import cases, memory
from puzzles._judge.answer import Answer
from puzzles._tpu import in_jax


@pytest.mark.parametrize("thorough", [False, True])
def test_jax_simulates_what_is_judged_thoroughly(
    monkeypatch: pytest.MonkeyPatch, thorough: bool
) -> None:
    asked = []

    def counted(traced):
        asked.append(len(traced.launches))
        return in_jax(traced)

    monkeypatch.setattr(memory, "in_jax", counted)
    puzzle = find("row_sum")
    answer = Answer(puzzle, puzzle.solution, thorough=thorough)
    answer.runs = (answer.on(cases(puzzle)[0]),)
    assert [memory.same_in_simulator(run) for run in memory.simulated(answer)] == [None] * thorough
    assert answer.ran["simulator"] == "1 of 1 cases"
    assert asked == [1] * thorough
