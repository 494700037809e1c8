"""What is rounded to bfloat16 on the way, left out at production scale, or fetched for nothing."""

from __future__ import annotations

import pytest

import puzzles
from puzzles import Mistake, Verdict, judge

pytestmark = pytest.mark.slow


def judged(name: str, *edits: tuple[str, str]) -> Verdict:
    puzzle = puzzles.find(name)
    return judge(puzzle, puzzles.mutate(puzzle, Mistake("differs", edits=edits)))


SUM = "acc_ref[...] += scale * dq"


def test_what_is_summed_in_a_narrow_output_is_rounded_at_every_step() -> None:
    verdict = judged(
        "attention_dq",
        ("acc_ref[...] = jnp.zeros_like(acc_ref)", "dq_ref[...] = jnp.zeros_like(dq_ref)"),
        (SUM, "dq_ref[...] = (dq_ref[...] + scale * dq).astype(dq_ref.dtype)"),
        ("dq_ref[...] = acc_ref[...].astype(dq_ref.dtype)", "pass"),
    )
    assert verdict.title == "it rounds on the way"
    assert "reads back what was rounded to bfloat16 when it was stored" in verdict.says


def test_a_rounding_is_followed_into_the_kernel_that_gets_it() -> None:
    delta = "delta = jnp.sum(products, axis=-1)[:, None]"
    verdict = judged("splash_vjp", (delta, f"{delta}.astype(q.dtype)"))
    assert verdict.title == "it rounds on the way"


STORED = "jnp.where(mine, acc_ref[...], others)"
ONCE_ROUNDED = "acc_ref[...].astype(o_ref.dtype).astype(jnp.float32)"


@pytest.mark.parametrize(
    ("new", "passes"),
    [
        (f"jnp.where(mine, {ONCE_ROUNDED}, others)", True),
        (f"jnp.where(mine, 2 * jnp.where(mine, {ONCE_ROUNDED}, 0) / 2, others)", False),
    ],
)
def test_what_is_rounded_again_and_not_computed_with_loses_nothing(new: str, passes: bool) -> None:
    assert judged("grouped_matmul", (STORED, new)).passed is passes


@pytest.mark.parametrize(
    "new",
    [
        "jnp.where(inside, x_ref[...], 0)",  # a whole number of the source is no count
        "jnp.where(inside, x_ref[...], 0) * inside.astype(x_ref.dtype)",  # a product with a mask
    ],
)
def test_what_rounds_nothing_is_accepted(new: str) -> None:
    picked = "jnp.where(inside, x_ref[...].astype(jnp.float32), 0.0).astype(x_ref.dtype)"
    assert judged("grouped_outer", (picked, new)).passed


def test_who_looks_up_where_there_is_work_may_fetch_less() -> None:
    block = "lambda j, i, g, *_: (g, i, j))]"
    here = "(starts[g] < (i + 1) * bm) & (ends[g] > i * bm)"
    skips = f"lambda j, i, g, starts, ends: (jnp.where({here}, g, 0), i, j))]"
    assert judged("launch_masked_store", (block, skips)).passed
    cut = judged("launch_masked_store", (block, block.replace("(g, i", "(jnp.minimum(g, 1), i")))
    assert not cut.passed


def test_wrong_digits_are_traced_to_the_line_that_rounds() -> None:
    verdict = judged(
        "flash_attention",
        ("jnp.sum(p, axis=1", "jnp.sum(p.astype(jnp.bfloat16).astype(jnp.float32), axis=1"),
    )
    assert verdict.stage == "values"
    assert verdict.first is not None
    assert "goes on in float32 with what was rounded to bfloat16 before" in verdict.first


DOT = "jnp.dot(x_ref[...], jnp.ones((x_ref.shape[1], 1), jnp.float32){})"


@pytest.mark.parametrize("how", ["", ", precision=jax.lax.Precision.HIGHEST"])
def test_a_sum_by_a_dot_keeps_its_digits_only_if_it_asks(how: str) -> None:
    verdict = judged("row_sum", ("jnp.sum(x_ref[...], axis=1, keepdims=True)", DOT.format(how)))
    assert verdict.passed == bool(how)
    if not how:
        assert verdict.headline.startswith("✗ row_sum: it rounds on the way (case ")
        assert f"`o_ref[...] += {DOT.format(how)}` multiplies float32" in verdict.says
