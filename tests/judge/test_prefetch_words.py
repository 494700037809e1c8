"""What a call with scalar prefetch is told of its own mistakes, and in which order it is judged."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from puzzles import Mistake, Puzzle, Verdict, find
from puzzles._judge import cases, execute, judge, judging, memory
from puzzles._judge.answer import Answer
from puzzles._launch import compiling, kernel_calls, trace_call
from puzzles._puzzle import mutate
from puzzles._tpu import simulator


def verdict(name: str, old: str, new: str, puzzle: Puzzle | None = None) -> Verdict:
    puzzle = puzzle or find(name)
    return judge(puzzle, mutate(puzzle, Mistake("errs", old=old, new=new)), seed=0)


def test_without_scalar_prefetch_nobody_hears_of_it():
    verdict_ = verdict("vector_add", "in_specs=[\n", "in_specs=[\n            None,\n")
    assert "num_scalar_prefetch" not in verdict_.says


@pytest.mark.slow
def test_a_wrong_result_is_told_before_its_gradients_are_run(monkeypatch):
    launches = []

    def counted(traced):
        launches.append(len(traced.launches))
        return execute(traced)

    monkeypatch.setattr("puzzles._judge.answer.execute", counted)
    monkeypatch.setattr(judging, "EXPLAINERS", {"numbers": (judging._ON_RECORD,)})
    puzzle = find("moe_layer")
    wrong = judge(puzzle, mutate(puzzle, puzzle.mistake("does not unsort")), seed=0)
    assert wrong.stage == "values"
    assert "a kernel that does not unsort" in (wrong.diagnosis or "")
    assert launches == [3]


def simulated(name, number, thorough):
    """What the receipt says of the simulator, given the solution on one case."""
    answer = Answer(find(name), find(name).solution, thorough=thorough)
    answer.runs = (answer.on(cases(find(name))[number]),)
    for run in memory.simulated(answer):
        assert memory.same_in_simulator(run) is None
    return answer.ran["simulator"]


@pytest.mark.slow
def test_kernels_of_other_rungs_are_simulated_there_and_by_verify():
    assert simulated("moe_layer", 0, thorough=False) == "its kernels are other rungs': there"
    assert simulated("moe_layer", 0, thorough=True) == "1 of 1 cases"
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


def test_of_equal_kernels_one_is_compiled(monkeypatch):
    compiled = []

    def counted(program, args):
        compiled.extend(kernel_calls(program.jaxpr))
        return compile_(program, args)

    compile_ = compiling._compile
    monkeypatch.setattr(compiling, "_compile", counted)
    monkeypatch.setattr(compiling, "_compiled", {})
    matmul = find("tiled_matmul").solution
    a = jnp.asarray(np.random.default_rng(0).normal(size=(256, 256)), jnp.float32)
    (got,) = execute(trace_call(lambda a, b: matmul(a, b) + matmul(b, a), a, a.T))
    np.testing.assert_allclose(got, a @ a.T + a.T @ a, atol=1e-2)
    assert len(compiled) == 1
