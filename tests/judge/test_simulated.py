"""Which kernels of an answer JAX's simulator is asked about."""

from __future__ import annotations

import pytest
import sample

from puzzles import find
from puzzles._judge import cases, memory
from puzzles._judge.answer import Answer
from puzzles._tpu import simulator


def simulated(name, number, thorough):
    """What the receipt says of the simulator, given the solution on one case."""
    answer = Answer(find(name), find(name).solution, thorough=thorough)
    answer.runs = (answer.on(cases(find(name))[number]),)
    for run in memory.simulated(answer):
        assert memory.same_in_simulator(run) is None
    return answer.ran["simulator"]


@sample.in_turn
@pytest.mark.parametrize(("thorough", "count"), [(False, 0), (True, 3)])
def test_all_kernels_are_simulated_if_asked_for(monkeypatch, thorough, count):
    watched = []

    def counted(*given):
        watched.append(given)
        return watch(*given)

    watch = simulator.Watch
    monkeypatch.setattr(simulator, "Watch", counted)
    assert simulated("splash_vjp", 1, thorough) == "1 of 1 cases"
    assert len(watched) == count
