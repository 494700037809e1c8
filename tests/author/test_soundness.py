"""Faults that would make a rung's proofs worth nothing: each is planted, and seen."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from planted import Rung, line

from puzzles import Puzzle
from puzzles._author import margin, proof, shapes, soundness
from puzzles._judge import largest_error

SPEC = "def toy_warm_up_spec("
DRAW = "rng(key).normal(0, 3, (M, N))"
BODY = "    return 2 * x\n"
OUTER = '            says="cut the matrix into blocks",\n            stage="work",\n'
CASES = "cases=[dict(M=16, N=384), dict(M=24, N=256)]"


def problems(puzzle: Puzzle) -> list[str]:
    return [*soundness.soundness_problems(puzzle), *shapes.annotation_problems(puzzle)]


def test_the_scaffolds_puzzle_is_sound(rung: Rung) -> None:
    assert problems(rung()) == []


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        (
            DRAW,
            "np.random.default_rng().normal(0, 3, (M, N))",
            "inputs=",
            "`inputs` gives other data for the same key (M=16, N=384): draw all of it from",
        ),
        (
            BODY,
            "    return toy_warm_up(x)\n",
            SPEC,
            "`toy_warm_up_spec` reaches `toy_warm_up`, which the learner writes: nothing",
        ),
        (
            BODY,
            '    from puzzles import find\n    return find("toy_warm_up").solution(x)\n',
            SPEC,
            "`toy_warm_up_spec` reaches `toy_warm_up`, which the learner writes: nothing",
        ),
        (
            BODY,
            "    return pl.pallas_call(\n        toy_warm_up_kernel, out_shape=x, "
            "interpret=INTERPRET\n    )(x)\n",
            SPEC,
            "`toy_warm_up_spec` reaches `toy_warm_up_kernel`",
        ),
        (
            BODY,
            "    def twice(x_ref, o_ref):\n        o_ref[...] = 2 * x_ref[...]\n"
            "    return pl.pallas_call(twice, out_shape=x, interpret=INTERPRET)(x)\n",
            SPEC,
            "the spec launches a kernel itself: write what is wanted in plain jax.numpy",
        ),
        (BODY, "    return 2 * x / 0\n", SPEC, "% of a result is NaN or infinite (M=16, N=384)"),
        (
            "interpret=INTERPRET",
            "interpret=True",
            "interpret=True",
            "`interpret=True` in a launch: write `interpret=INTERPRET`",
        ),
        (
            "        interpret=INTERPRET,\n",
            "",
            "pl.pallas_call(",
            "a launch without `interpret`: write `interpret=INTERPRET`",
        ),
        (
            OUTER,
            OUTER.replace("work", "tpu"),
            "audit=audit",
            "no mistake of stage 'work' shows that the audit can fail: record the launch",
        ),
        (
            'new="x_ref[...] + x_ref[...]"',
            'new="(x_ref[...] * 2)"',
            '"adds the block to itself"',
            "alternative 'adds the block to itself' is the solution in other layout: write",
        ),
        (
            "dict(M=24, N=256)",
            "dict(N=384, M=16)",
            "cases=",
            "two cases are {'N': 384, 'M': 16}: make one differ, or take it out",
        ),
        (
            CASES,
            "cases=[dict(M=8, N=384), dict(M=24, N=128)]",
            "cases=",
            "no case has more than one block on every axis of its grid (grids (1, 3), (3, 1))",
        ),
        (CASES, f"{CASES}, newer=['M']", "newer=", "every case gives `M`, which earlier editions"),
        (CASES, f"{CASES}, newer=['K']", "newer=", "no case gives `K`, which earlier editions had"),
        (DRAW, "jnp.full((M, N), 3)", "inputs=", "array 0 of the arguments is constant in every"),
        (DRAW, "jnp.zeros((M, N))", "inputs=", "array 0 of the arguments is constant in every"),
        (DRAW, "rng(key).random((M, N))", "inputs=", "array 0 of the arguments is never negative"),
        (
            'x: Float[Array, "M N"]) -> Float[Array, "M N"]:\n    return',
            'x: Float[Array, "M M"]) -> Float[Array, "M M"]:\n    return',
            SPEC,
            "`x` of `toy_warm_up_spec` is annotated Float[Array, 'M M'], and it is "
            "float32[16, 384] (M=16, N=384): mend the annotation",
        ),
        (
            '-> Float[Array, "M N"]:\n    M, N',
            '-> Float[Array, "N 7"]:\n    M, N',
            "def toy_warm_up(",
            "the result of `toy_warm_up` is annotated Float[Array, 'N 7']",
        ),
        (
            'x: Float[Array, "M N"]) -> Float[Array, "M N"]:\n    M, N',
            'x: Float[Array, "N M"]) -> Float[Array, "N M"]:\n    M, N',
            "def toy_warm_up(",
            "`x` of `toy_warm_up` is annotated Float[Array, 'N M']",
        ),
        (
            '-> Float[Array, "M N"]:\n    M, N',
            '-> Float[Array, "M"]:\n    M, N',
            "def toy_warm_up(",
            "the result of `toy_warm_up` is annotated Float[Array, 'M']",
        ),
        (
            '-> Float[Array, "M N"]:\n    M, N',
            '-> tuple[Float[Array, "M N"], int]:\n    M, N',
            "def toy_warm_up(",
            "the result of `toy_warm_up` is annotated tuple[Float[Array, 'M N'], int]",
        ),
    ],
)
def test_a_fault_that_empties_the_proofs_is_named_with_its_place_and_remedy(
    rung: Rung, old: str, new: str, at: str, says: str
) -> None:
    needs = ("import jax.numpy as jnp\n", "import jax.numpy as jnp\nimport numpy as np\n")
    puzzle = rung((old, new), needs)
    found = problems(puzzle)
    assert len(found) == 1, found
    assert found[0].startswith(f"toy/toy_warm_up.py:{line(puzzle, at)}: ")
    assert says in found[0]


def test_fewer_than_two_alternatives_are_counted(rung: Rung) -> None:
    puzzle = rung()
    object.__setattr__(puzzle, "alternatives", puzzle.alternatives[:1])
    (problem,) = soundness.soundness_problems(puzzle)
    assert "1 alternative: at least 2 are wanted; how else would an expert write it?" in problem


def test_interpret_may_be_passed_on(rung: Rung) -> None:
    head = 'x: Float[Array, "M N"]) -> Float[Array, "M N"]:\n    M, N'
    parameter = (head, "x, interpret=INTERPRET):\n    M, N")
    assert problems(rung(("interpret=INTERPRET,\n", "interpret=interpret,\n"), parameter)) == []


def test_nan_in_the_data_may_come_out_of_the_spec_but_not_everywhere(rung: Rung) -> None:
    needs = ("import jax.numpy as jnp\n", "import jax.numpy as jnp\nimport numpy as np\n")
    some = (DRAW, f"np.where(rng(key).random((M, N)) < 0.2, np.nan, {DRAW})")
    assert problems(rung(some, needs)) == []


def test_a_result_that_is_all_nan_proves_nothing(rung: Rung) -> None:
    needs = ("import jax.numpy as jnp\n", "import jax.numpy as jnp\nimport numpy as np\n")
    some = (DRAW, f"np.where(rng(key).random((M, N)) < 0.2, np.nan, {DRAW})")
    (problem,) = problems(rung(some, needs, (BODY, "    return 2 * x + 0 * jnp.sum(x)\n")))
    assert "100 % of a result is NaN or infinite" in problem


POSITIVE = (DRAW, "rng(key).random((M, N))")


@pytest.mark.parametrize(
    ("edits", "says"),
    [
        ((POSITIVE, '{"signed": "a share of tokens cannot be negative"}'), None),
        ((POSITIVE, '{"signed": "meant"}'), "the waiver 'signed' has no reason: say in a sentence"),
        ((POSITIVE, "{}"), "or say why not: waivers={'signed': '...'}"),
        (
            ((DRAW, DRAW), '{"signed": "a share of tokens cannot be negative"}'),
            "nothing asks for the waiver 'signed' any more: take it out",
        ),
        (
            ((DRAW, DRAW), '{"hints": "there is nothing at all to hint at"}'),
            "no waiver is called 'hints'; there are work, blocks, finite, constant, signed",
        ),
    ],
)
def test_a_waiver_is_one_of_the_list_has_a_reason_and_is_needed(
    rung: Rung, edits: tuple[tuple[str, str], str], says: str | None
) -> None:
    edit, waivers = edits
    puzzle = rung(edit, ("    scale=scale,\n", f"    scale=scale,\n    waivers={waivers},\n"))
    found = problems(puzzle)
    assert len(found) == (says is not None)
    assert says is None or says in found[0]


# How near the reference is to being refused


def near(error: float) -> tuple[str, str]:
    """A solution whose largest error is near a share of the tolerance, 2e-5."""
    return "o_ref[...] = x_ref[...] * 2", f"o_ref[...] = x_ref[...] * {2 * (1 + error * 2e-5)!r}"


def test_the_margin_is_the_largest_error_in_units_of_the_tolerance(rung: Rung) -> None:
    puzzle = rung(near(1.0))
    found = margin.margin(puzzle, (0, 1))
    assert found is not None
    assert 0.6 < found.error < 1
    assert found.tolerance == 2e-5
    assert margin.margin_problem(puzzle, found) == (
        f"toy/toy_warm_up.py:{line(puzzle, 'PUZZLE = ')}: the solution passes by little: its "
        f"largest error is {found} times the tolerance, 2e-05 ({found.label}, seed {found.seed}); "
        "compute it more exactly, or give `tolerance`"
    )


def test_an_exact_reference_has_all_of_its_margin(rung: Rung) -> None:
    puzzle = rung()
    found = margin.margin(puzzle, (0,))
    assert (str(found), margin.margin_problem(puzzle, found)) == ("exact", None)


def test_the_last_digit_of_a_bf16_is_no_error_of_the_reference() -> None:
    one = np.float32(1 + 2**-8).astype(jnp.bfloat16).reshape(1)
    other = np.float32(1 + 2**-7).astype(jnp.bfloat16).reshape(1)
    assert largest_error(one, other, None) > 0.3
    assert largest_error(one, other, None, neighbours=True) == 0


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


def test_a_rejected_reference_is_told_how_far_off_it_is_and_gets_no_diagnosis(rung: Rung) -> None:
    alike = ('old="x_ref[...] * 2",\n            new="x_ref[...] + 2"', 'code="\\n"')
    puzzle = rung(near(3.0), alike)  # the first mistake gives the solution's own numbers
    problem = proof.solution_problem(puzzle, seeds=(0,))
    assert problem is not None
    assert "the solution is rejected (seed 0); mend it, or its spec (its largest error is 2." in (
        problem
    )
    assert "times the tolerance, 2e-05: give `tolerance` if that is rounding):" in problem
    assert "Your numbers are those of" not in problem


def test_a_reference_of_another_form_is_rejected_without_a_figure(rung: Rung) -> None:
    puzzle = rung(("    )(x)\n", "    )(x), x\n"))
    problem = proof.solution_problem(puzzle, seeds=(0,))
    assert problem is not None
    assert "mend it, or its spec:\n" in problem
    assert "returns a tuple of 2; the spec returns one array" in problem
