"""Nothing that a learner's function does hangs the checker, or is left behind in it."""

from __future__ import annotations

import dataclasses
import re

import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl
from learner import judged

import puzzles
from puzzles._author.repository import ROOT
from puzzles._judge import answer, judge
from puzzles._judge.case import Case
from puzzles._judge.explain import by_trying
from puzzles._puzzle import variant

ROW_SUM = puzzles.find("row_sum")


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


def test_a_python_loop_over_blocks_is_not_traced_at_the_production_shape() -> None:
    def vector_add_kernel(x_ref: jax.Ref, y_ref: jax.Ref, o_ref: jax.Ref) -> None:
        lengths.append(len(x_ref))
        for i in range(len(x_ref) // 1024):
            block = slice(i * 1024, (i + 1) * 1024)
            o_ref[block] = x_ref[block] + y_ref[block]

    def vector_add(x: jax.Array, y: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(vector_add_kernel, out_shape=shape, interpret=True)(x, y)

    lengths: list[int] = []
    verdict = judge(puzzles.find("vector_add"), vector_add)
    assert verdict.rule == "grown-kernel"
    assert max(lengths) == 2**24 // 64


def test_no_variant_is_run_by_jax_if_numpy_runs_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known mistake of this puzzle uses a semaphore that does not exist: JAX takes seconds."""
    by_jax: list[object] = []
    monkeypatch.setattr(by_trying, "in_jax", by_jax.append)
    by_trying.mistaken.cache_clear()
    verdict = judged("paged_window_attention", ("& (column < length)", "& (column < length - 1)"))
    assert "& (column < length - 1)`: changing that part alone" in str(verdict)
    assert by_jax == []


def test_one_buffer_is_remarked_on() -> None:
    verdict = judged(
        "row_sum", ("lambda i, j: (i, j))", "lambda i, j: (i, j), pipeline_mode=pl.Buffered(1))")
    )
    assert verdict.passed
    assert "`x_ref` has one buffer" in str(verdict)
    assert "one buffer" not in str(judge(ROW_SUM, ROW_SUM.solution))
    fetches_from_the_input = judged(
        "append_to_pages",
        ("_, pages_ref", "old, pages_ref"),
        ("source = pages_ref", "source = old"),
    )
    assert fetches_from_the_input.passed
    assert "one buffer" not in str(fetches_from_the_input)


@pytest.mark.parametrize("observed", [False, True])
def test_nobody_writes_into_the_tables_of_kernels(observed: bool) -> None:
    """Nor does the spec, which gets the same arrays."""

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


def test_when_the_budget_is_used_up_the_place_alone_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Programs are always compared: only numbers have a budget.
    monkeypatch.setattr("puzzles._judge.explain.by_trying._program_of", lambda *_: None)
    puzzle = puzzles.find("vector_add")
    mistake = next(m for m in puzzle.mistakes if m.stage == "values")
    wrong = variant(puzzle, mistake)
    assert mistake.says in str(judge(puzzle, wrong))
    hurried = judge(puzzle, wrong, patience=0)
    assert hurried.diagnosis is None
    assert "elements are wrong" in hurried.says
    assert "some possible causes were not tried" in str(hurried)


def test_no_verdict_asks_a_clock() -> None:
    for path in (ROOT / "puzzles" / "_judge").rglob("*.py"):
        assert not re.search(r"\bimport time\b|\bfrom time\b", path.read_text("utf-8")), path


def test_runs_of_variants_are_paid_for_until_the_budget_is_used_up() -> None:
    one = answer.Answer(ROW_SUM, ROW_SUM.solution)
    case = one.runs[0].case
    one._patience = 2.5 * case.work
    assert [one.affords(case) for _ in range(4)] == [True, True, True, False]
    assert one.gave_up
    assert 600 < case.work < answer.PATIENCE / 100


def test_the_budget_covers_every_known_mistake_of_most_puzzles() -> None:
    affordable = [
        len(puzzle.mistakes) * Case(puzzle, 0).work < answer.PATIENCE
        for ladder in puzzles.ladders()
        for puzzle in puzzles.ladder(ladder)
    ]
    assert sum(affordable) >= 0.95 * len(affordable)
