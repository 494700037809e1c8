"""Who differentiates a kernel that has no gradient yet is told so, and where to learn it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from puzzles import find, judge
from puzzles._judge import no_derivative, told


def differentiate(name: str) -> object:
    """The gradient of a reference solution, by its first argument, on its first case."""
    puzzle = find(name)
    fn = puzzle.solution if puzzle.observe is None else puzzle.observe(puzzle.solution)
    first, *rest = puzzle.arguments(0)
    return jax.grad(lambda x: jnp.sum(fn(x, *rest).astype(jnp.float32)))(first)


@pytest.mark.parametrize(
    "name", ["splash_multi_head", "flash_attention", "tiled_matmul", "grouped_matmul"]
)
def test_the_gradient_of_a_kernel_says_in_a_sentence_where_to_climb(name: str) -> None:
    with pytest.raises(NotImplementedError, match=r"jax\.custom_vjp") as caught:
        differentiate(name)
    assert str(caught.value) == no_derivative()


def test_the_sentence_names_every_rung_that_writes_a_gradient() -> None:
    says = no_derivative()
    for rung in ("trainable_matmul (basics)", "moe_layer (grouped_matmul)"):
        assert rung in says
    assert says.count(". ") == 0


def test_what_jax_can_differentiate_it_still_does() -> None:
    add_ten, (x,) = find("add_ten").solution, find("add_ten").arguments(0)
    _, tangent = jax.jvp(add_ten, (x,), (x,))
    assert (tangent == x).all()


def test_a_learner_reads_it_in_the_verdict() -> None:
    puzzle = find("trainable_matmul")
    verdict = judge(puzzle, find("tiled_matmul").solution)
    assert verdict.stage == "error"
    assert no_derivative() in str(verdict)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (TypeError("Custom VJP fwd rule f must produce a pair"), "The forward rule returns a pair"),
        (ValueError("Linearization failed to produce known values"), "jax.custom_vjp"),
    ],
)
def test_other_errors_of_rules_have_a_remedy(error: Exception, says: str) -> None:
    assert says in told(error)
