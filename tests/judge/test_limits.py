"""Nothing that a learner's function does hangs the checker, or is left behind in it."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from learner import judged

import puzzles
from puzzles._judge import answer, judge
from puzzles._puzzle import variant

ROW_SUM = puzzles.find("row_sum")


SUM = "    o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)"


def test_settings_do_not_survive_a_check() -> None:
    before = dict(jax.config.values)
    judged(
        "row_sum",
        (
            "    M, N = x.shape\n",
            "    jax.config.update('jax_enable_x64', True)\n"
            "    jax.config.update('jax_default_matmul_precision', 'bfloat16')\n"
            "    jax.config.update('jax_debug_nans', True)\n    M, N = x.shape\n",
        ),
    )
    assert dict(jax.config.values) == before
    assert judge(ROW_SUM, ROW_SUM.solution).passed


@pytest.mark.parametrize("observed", [False, True])
def test_nobody_writes_into_the_tables_of_kernels(observed: bool) -> None:
    """Nor does the spec, which gets the same ones."""

    def row_sum(x, table):
        table[0] += 1
        return ROW_SUM.solution(x)

    puzzle = dataclasses.replace(
        ROW_SUM,
        spec=lambda x, table: ROW_SUM.spec(x),
        inputs=lambda key, **dims: (*ROW_SUM.inputs(key, **dims), np.arange(3)),
        observe=(lambda fn: lambda *args: fn(*args)) if observed else None,
    )
    verdict = judge(puzzle, row_sum)
    assert verdict.stage == "error"
    assert "read-only" in verdict.says
    with pytest.raises(ValueError, match="read-only"):
        judge(dataclasses.replace(puzzle, spec=row_sum), row_sum)


def test_when_time_is_over_the_place_alone_is_told() -> None:
    puzzle = puzzles.find("vector_add")
    mistake = next(m for m in puzzle.mistakes if m.stage == "values")
    wrong = variant(puzzle, mistake)
    assert mistake.says in str(judge(puzzle, wrong))
    hurried = judge(puzzle, wrong, patience=0)
    assert hurried.diagnosis is None
    assert "elements are wrong" in hurried.says


def test_time_begins_with_the_first_question(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(answer.time, "monotonic", lambda: now[0])
    one = answer.Answer(ROW_SUM, ROW_SUM.solution, patience=2.0)
    now[0] = 200.0
    assert one.in_time()
    now[0] = 201.9
    assert one.in_time()
    now[0] = 202.1
    assert not one.in_time()
