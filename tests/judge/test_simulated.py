"""Which kernels of an answer JAX's simulator is asked about."""

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
@pytest.mark.parametrize(
    ("name", "number", "thorough", "said", "count"),
    [
        ("moe_layer", 0, False, "1 of 1 cases", 0),  # NumPy runs all kernels
        ("moe_layer", 0, True, "0 of 1 cases", 0),  # which are other rungs'
        ("splash_vjp", 1, False, "1 of 1 cases", 0),
        ("splash_vjp", 1, True, "1 of 1 cases", 1),  # of three kernels its own
    ],
)
def test_only_the_rungs_own_kernels_are_asked_about_and_if_asked_for(
    monkeypatch, name, number, thorough, said, count
):
    watched = []

    def counted(*given):
        watched.append(given)
        return watch(*given)

    watch = simulator.Watch
    monkeypatch.setattr(simulator, "Watch", counted)
    assert simulated(name, number, thorough) == said
    assert len(watched) == count
