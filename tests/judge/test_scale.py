"""At the production shape an answer costs as much as the reference, or the verdict shows both."""

from __future__ import annotations

from learner import judged

import puzzles
from puzzles._judge.cost import Cost
from puzzles._judge.costs import Scale
from puzzles._judge.verdict import beside as table
from puzzles._launch import trace_call
from puzzles._receipt import amounts


def test_a_pass_shows_both_costs_and_the_production_shape() -> None:
    same = judged("row_sum")
    assert same.receipt == (
        "At M=1,024, N=262,144: 16 blocks of sums in 32,768 steps; about 13.4 ms on one v5e, bound "
        "by its steps."
    )
    assert "yours, and the reference's\n" in str(same.details)
    assert "its steps 13.1 ms" in str(same.details)
    other = judged("row_sum", ("bm, bn = 64, 128", "bm, bn = 32, 128"))
    assert "reference\n" in str(other.details)
    assert "steps (the reference: 16 blocks of sums in 32,768 steps); about" in str(other.receipt)


def test_what_is_made_outside_is_said_where_it_differs() -> None:
    puzzle = puzzles.find("tiled_matmul")
    plain, padded = (
        Cost.of(trace_call(fn, *puzzle.arguments(0)))
        for fn in (puzzle.solution, lambda a, b: puzzle.solution(a + 0, b))
    )
    for mine, par in ((padded, plain), (plain, padded)):
        assert "made outside" in table(Scale("", mine, par), ())
        assert "made outside" not in table(Scale("", mine, mine), ())


def test_both_sides_have_one_unit() -> None:
    assert amounts(3003 * 2**20, 990 * 2**20) == ("3,003 MiB", "990 MiB")
    assert amounts(2**30, 3 * 2**20) == ("1,024 MiB", "3 MiB")
    assert amounts(10 * 2**30, 3 * 2**20) == ("10 GiB", "0.00293 GiB")
    assert amounts(0, 5 * 2**20) == ("0 B", "5 MiB")
    assert amounts(2**20, 2**20) == ("1 MiB", "1 MiB")
    assert amounts(2**20, 2**20 + 1) == ("1,048,576 B", "1,048,577 B")
