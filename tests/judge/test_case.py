"""A case makes its arrays on first use, once, and they are read-only."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import puzzles
from puzzles._judge import cases, judge


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


def test_an_authors_own_fault_is_no_verdict() -> None:
    def broken(key, **dims):
        raise ZeroDivisionError("an author's")

    puzzle = dataclasses.replace(puzzles.find("add_ten"), inputs=broken)
    with pytest.raises(ZeroDivisionError):
        judge(puzzle, lambda x: x + jnp.float32(10))


def test_of_two_mistakes_with_equal_numbers_the_one_that_is_the_same_program_is_named() -> None:
    puzzle = puzzles.find("add_ten")
    one = puzzles.Mistake("adds nine", (("] + 10", "] + 9"),), says="nine")
    other = puzzles.Mistake("adds more", (("] + 10", "] + 12 - 3"),), says="less three")
    puzzle = dataclasses.replace(puzzle, record=puzzles.Record((one, other)))
    for mistake in (one, other):
        assert mistake.says in str(judge(puzzle, puzzles.mutate(puzzle, mistake)))
