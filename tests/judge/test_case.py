"""A case makes what it holds when first asked for, once, and nobody can write into it."""

from __future__ import annotations

import dataclasses
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest

import puzzles
from puzzles._judge import cases, judge, tried
from puzzles._judge.answer import Answer
from puzzles._judge.tried import mistake_on_record, mistaken
from puzzles._puzzle import variant


def test_a_case_is_made_once_and_named_by_its_dims() -> None:
    puzzle = puzzles.find("row_sum")
    one, two = cases(puzzle)[:2]
    assert cases(puzzle)[0] is one
    assert one.args is one.args
    assert one.expected is one.expected
    assert one.label == "M=128, N=384"
    assert one.label != two.label
    assert cases(puzzle, 1)[0] != one
    assert not np.array_equal(cases(puzzle, 1)[0].args[0], one.args[0])


def named(wrong, case, numbers):
    """What is said of an answer that gives some numbers on some cases.

    Its program is another than the solution's, which on JAX 0.7 is a mistake's on the first case.
    """
    answer = Answer(case.puzzle, variant(case.puzzle, case.puzzle.alternatives[0]), patience=60)
    run = answer.on(case)
    run.flat = numbers[case]
    with mock.patch.object(tried, "elsewhere", lambda run, case: numbers[case]):
        return mistake_on_record(run)


@pytest.mark.slow
def test_a_mistake_that_is_wrong_before_is_not_named() -> None:
    """Its numbers on the case that fails are not enough: the cases before it passed."""
    puzzle = puzzles.find("add_ten")
    wrong = puzzle.mistake(next(m.name for m in puzzle.mistakes if m.stage == "values"))
    first, second = cases(puzzle)[:2]
    theirs = mistaken(second, wrong)
    assert theirs is not None

    assert named(wrong, second, {second: theirs}) is None
    assert wrong.says in str(named(wrong, first, {c: mistaken(c, wrong) for c in (first, second)}))


@pytest.mark.slow
def test_a_mistake_that_gives_something_else_on_the_next_case_is_not_named() -> None:
    puzzle = puzzles.find("add_ten")
    wrong = puzzle.mistake(next(m.name for m in puzzle.mistakes if m.stage == "values"))
    first, second = cases(puzzle)[:2]
    theirs = mistaken(first, wrong)
    for elsewhere in (second.expected, None):
        assert named(wrong, first, {first: theirs, second: elsewhere}) is None


def test_an_authors_own_fault_is_no_verdict() -> None:
    def broken(key, **dims):
        raise ZeroDivisionError("an author's")

    puzzle = dataclasses.replace(puzzles.find("add_ten"), inputs=broken)
    with pytest.raises(ZeroDivisionError):
        judge(puzzle, lambda x: x + jnp.float32(10))


def test_of_two_mistakes_with_equal_numbers_the_one_that_is_the_same_program_is_named() -> None:
    puzzle = puzzles.find("add_ten")
    one = puzzles.Mistake("adds nine", "] + 10", "] + 9", says="nine")
    other = puzzles.Mistake("adds twelve, less three", "] + 10", "] + 12 - 3", says="less three")
    puzzle = dataclasses.replace(puzzle, mistakes=[one, other])
    for mistake in (one, other):
        assert mistake.says in str(judge(puzzle, puzzles.mutate(puzzle, mistake)))
