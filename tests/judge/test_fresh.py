"""After the listed cases comes one that nobody could know: the same for the same code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from learner import edited

import puzzles
from puzzles._author import proof
from puzzles._check import verdict_page
from puzzles._judge import Code, cases, fresh_case, judge, judge_fresh
from puzzles._judge.case import own_seed

ROW_SUM, VECTOR_ADD = puzzles.find("row_sum"), puzzles.find("vector_add")


BY_HEART = {
    "right up to seven blocks": ("vector_add", ("grid=(N // bn,)", "grid=(min(7, N // bn),)")),
    "right up to three matrices": ("batched_matmul", ("grid=(B,)", "grid=(min(3, B),)")),
}


@pytest.mark.parametrize("name", BY_HEART)
def test_sizes_known_by_heart_do_not_help(name: str) -> None:
    """Each answer passes the listed cases; a random case refuses it, at each of the given seeds."""
    puzzle, edit = BY_HEART[name]
    fn = edited(puzzle, edit)
    puzzle = dataclasses.replace(puzzles.find(puzzle), scale=None)  # it would refuse some first
    assert judge(dataclasses.replace(puzzle, fresh=None), fn).passed
    verdicts = [judge_fresh(puzzle, fn, seed) for seed in range(12)]
    refused = [v for v in verdicts if not v.passed]
    assert refused, name
    first = refused[0]
    again = judge(puzzle, fn, seed=first.seed)
    assert (again.case, again.stage, again.says) == (first.case, first.stage, first.says)
    assert f"`check({puzzle.name}, seed={first.seed})` draws it again" in str(again)
    assert f"check({puzzle.name}, seed={first.seed})" in verdict_page(again)


def test_the_same_code_meets_the_same_case_and_any_edit_another() -> None:
    def seed(*edits: tuple[str, str]) -> int:
        return own_seed(ROW_SUM, Code(ROW_SUM, edited("row_sum", *edits)).text)

    assert seed() == seed()
    in_the_kernel = ("o_ref[...] = jnp.zeros_like(o_ref)", "o_ref[...] = jnp.zeros_like(o_ref) * 1")
    in_the_function = ("bm, bn = 64, 128", "bn, bm = 128, 64")
    assert len({seed(), seed(in_the_kernel), seed(in_the_function)}) == 3
    assert judge(ROW_SUM, edited("row_sum")) == judge(ROW_SUM, edited("row_sum"))


def test_a_seed_draws_the_data_of_all_cases() -> None:
    first, other = fresh_case(ROW_SUM, 1), fresh_case(ROW_SUM, 2)
    assert first is fresh_case(ROW_SUM, 1)
    assert first.dims != other.dims or not np.array_equal(first.args[0], other.args[0])
    assert first not in cases(ROW_SUM, 1)
    for seed in (0, 1, 2):
        assert judge(ROW_SUM, ROW_SUM.solution, seed=seed).passed


def test_on_a_tpu_the_shape_is_one_that_is_compiled_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("puzzles._judge.case.on_tpu", lambda: True)
    case = dataclasses.replace(fresh_case(ROW_SUM, 3))
    assert case.dims == ROW_SUM.cases[0]
    assert not np.array_equal(case.args[0], cases(ROW_SUM)[0].args[0])


def test_plain_puzzles_have_a_fresh_case_too() -> None:
    def group_offsets(sizes):
        out = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(sizes)])
        return out if sizes.shape[0] in (5, 3, 144) else 0 * out

    puzzle = dataclasses.replace(puzzles.find("group_offsets"), fresh=None)
    assert judge(puzzle, group_offsets).passed
    verdict = judge(dataclasses.replace(puzzle, fresh=lambda r: dict(E=6, total=99)), group_offsets)
    assert (verdict.stage, verdict.case) == ("values", "E=6, total=99")
    assert f"check(group_offsets, seed={verdict.seed})" in str(verdict)


def test_a_mistake_that_only_a_fresh_case_catches_is_no_mistake_of_the_puzzle() -> None:
    puzzle = dataclasses.replace(VECTOR_ADD, fresh=lambda r: dict(N=1024 * 9))
    luck = puzzles.Mistake(
        "stops after seven blocks",
        (("grid=(N // bn,)", "grid=(min(7, N // bn),)"),),
        says="the last blocks stay garbage",
    )
    problem = proof.mistake_problem(puzzle, luck, seeds=(0,))
    assert problem is not None
    assert "caught by a fresh case only (N=9216, seed 0)" in problem
    assert "add a case to `cases`" in problem


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda r: dict(N=1024 * int(r.integers(1, 60))), "different cases in 100 draws"),
        (lambda r: dict(N=1000), "it draws a case that the solution does not pass"),
    ],
)
def test_verify_looks_at_what_is_drawn(draw: Callable, says: str) -> None:
    puzzle = dataclasses.replace(VECTOR_ADD, fresh=draw)
    problems = list(proof.fresh_problems(puzzle))
    assert any(says in problem for problem in problems), problems
    assert problems[0].startswith("puzzles/basics/vector_add.py:")
    assert list(proof.fresh_problems(VECTOR_ADD)) == []
