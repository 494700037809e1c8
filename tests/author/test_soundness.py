"""Faults that would make a puzzle's proofs worth nothing: each is planted, and seen."""

from __future__ import annotations

import re

import jax.numpy as jnp
import numpy as np
import pytest
from planted import Plant

from puzzles import Puzzle
from puzzles._author import proof, soundness
from puzzles._judge import largest_error

DRAW = "rng(key).normal(0, 3, (M, N))"


def problems(puzzle: Puzzle) -> list[str]:
    return list(soundness.soundness_problems(puzzle))


def test_the_scaffolds_puzzle_is_sound_and_exact(plant: Plant) -> None:
    puzzle = plant()
    assert problems(puzzle) == list(soundness.margin_problems(puzzle, (0,))) == []


def test_interpret_may_be_passed_on(plant: Plant) -> None:
    head = 'x: Float[Array, "M N"]) -> Float[Array, "M N"]:\n    M, N'
    parameter = (head, "x, interpret=INTERPRET):\n    M, N")
    assert problems(plant(("interpret=INTERPRET,\n", "interpret=interpret,\n"), parameter)) == []


def test_nan_in_the_data_may_come_out_of_the_spec_but_not_everywhere(plant: Plant) -> None:
    needs = ("import jax.numpy as jnp\n", "import jax.numpy as jnp\nimport numpy as np\n")
    some = (DRAW, f"np.where(rng(key).random((M, N)) < 0.2, np.nan, {DRAW})")
    assert problems(plant(some, needs)) == []


def test_a_waiver_with_a_reason_stands(plant: Plant) -> None:
    waiver = "    waivers={'signed': 'a share of tokens cannot be negative'},\n"
    positive = (DRAW, "rng(key).random((M, N))")
    assert problems(plant(positive, ("    scale=scale,\n", f"    scale=scale,\n{waiver}"))) == []


# How near the reference is to being refused


def near(error: float) -> tuple[str, str]:
    """A solution whose largest error is near a share of the tolerance, 2e-5."""
    return "o_ref[...] = x_ref[...] * 2", f"o_ref[...] = x_ref[...] * {2 * (1 + error * 2e-5)!r}"


def test_the_margin_is_told_in_units_of_the_tolerance(plant: Plant) -> None:
    (problem,) = soundness.margin_problems(plant(near(1.0)), (0, 1))
    error = re.search(r"an error is (\S+) times the tolerance, 2e-05", problem)
    assert error is not None
    assert 0.6 < float(error[1]) < 1


@pytest.mark.parametrize(
    ("want", "got", "error"),
    [
        ([1, 2], [1, 2], 0),
        ([1, 2], [1, 3], np.inf),
        ([1.0, np.nan], [1.0, np.nan], 0),
        ([1.0, np.nan], [1.0, 1.0], np.inf),
        ([np.nan, np.nan], [np.nan, np.nan], 0),
        ([0.0, 0.0], [0.0, 0.1], np.inf),
        ([1.0, -1.0], [1.0, -1.02], 0.1),
    ],
)
def test_an_error_is_counted_in_tolerances(want: list, got: list, error: float) -> None:
    found = largest_error(np.array(want), np.array(got), 0.1)
    assert found == pytest.approx(error)


def test_a_tolerance_may_go_by_dtype_and_the_last_digit_of_a_bf16_is_free() -> None:
    one, other = np.array([1.0, -1.0], np.float32), np.array([1.0, -1.01], np.float32)
    assert largest_error(one, other, {"float32": 0.1}) == pytest.approx(0.05, rel=1e-3)
    assert largest_error(one, other, {"bfloat16": 0.1}) == largest_error(one, other, None) > 1
    near, next_to_it = jnp.asarray([[1 + 2**-8], [1 + 2**-7]], jnp.bfloat16)
    assert largest_error(near, next_to_it, None) == 0


def test_a_rejected_reference_gets_no_diagnosis(plant: Plant) -> None:
    alike = ("replace = 'x_ref[...] * 2'\nwith = 'x_ref[...] + 2'", 'code = "\\n"')
    puzzle = plant(near(3.0), alike)  # the first mistake gives the solution's own numbers
    problem = str(proof.solution_problem(puzzle, seeds=(0,)))
    assert "the solution is rejected (seed 0); fix it" in problem
    assert "Your numbers are those of" not in problem
