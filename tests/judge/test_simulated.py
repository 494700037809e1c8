"""Which kernels of an answer are simulated."""

from __future__ import annotations

import pytest

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


@pytest.mark.slow
def test_kernels_of_other_rungs_are_simulated_there():
    assert simulated("moe_layer", 0, thorough=False) == "its kernels are other rungs': there"
    assert simulated("grouped_outer", 0, thorough=False) == "1 of 1 cases"


@pytest.mark.slow
@pytest.mark.parametrize(("thorough", "count"), [(False, 1), (True, 3)])
def test_of_kernels_of_several_rungs_the_own_one_is_simulated(monkeypatch, thorough, count):
    watched = []

    def counted(*given):
        watched.append(given)
        return watch(*given)

    watch = simulator.Watch
    monkeypatch.setattr(simulator, "Watch", counted)
    assert simulated("splash_vjp", 1, thorough) == "1 of 1 cases"
    assert len(watched) == count
