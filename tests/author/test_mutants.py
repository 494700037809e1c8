"""`make mutants` changes the right places, and finds a checker that accepts everything."""

from __future__ import annotations

import dataclasses

import mutants as hunting
import pytest
from mutate import mutants

import puzzles
from puzzles import _judge

TEXT = """
def kernel(x_ref, o_ref):
    ### BEGIN SOLUTION
    i = pl.program_id(0)

    @pl.when(i == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    o_ref[...] += x_ref[...] - 2
    ### END SOLUTION


spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
"""


def test_each_kind_of_slip_is_made_inside_the_region_alone() -> None:
    made = {one.change for one in mutants(TEXT)}
    assert {
        "i == 0 -> i != 0",
        "0 -> 1",
        "jnp.zeros_like -> jnp.ones_like",
        "x_ref[...] - 2 -> 2 - x_ref[...]",
        "x_ref[...] - 2 -> x_ref[...]",
        "o_ref[...] += x_ref[...] - 2 -> pass",
        "@pl.when(i == 0); o_ref[...] += x_ref[...] - 2"
        " -> o_ref[...] += x_ref[...] - 2; @pl.when(i == 0)",
    } <= made
    assert any("pl.when(False)" in one.text for one in mutants(TEXT))
    assert not any("128" in change for change in made)
    inside = TEXT.replace("spec =", "### BEGIN SOLUTION\nspec =") + "### END SOLUTION\n"
    assert {"(i, j) -> (j, i)", "(8, 128) -> (128, 8)"} <= {one.change for one in mutants(inside)}
    assert len({one.text for one in mutants(inside)}) == len(list(mutants(inside)))


@pytest.mark.slow
def test_a_checker_that_lets_everything_pass_has_survivors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hunting.hunt("add_ten")["survives"] == []

    def blind(puzzle: puzzles.Puzzle, fn: object, **options: object) -> puzzles.Verdict:
        return dataclasses.replace(_judge.judge(puzzle, puzzle.solution), passed=True)

    monkeypatch.setattr(hunting, "judge", blind)
    found = hunting.hunt("add_ten")
    assert found["rejected"] == []
    assert any("10 -> 11: other values on" in one for one in found["survives"])
