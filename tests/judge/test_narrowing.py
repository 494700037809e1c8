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
ROUNDED = "acc_ref[...] += (scale * dq).astype(q_ref.dtype).astype(jnp.float32)"
DS = "ds = p * (dp - delta_ref[...]) * slope"


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        ((SUM, ROUNDED), "goes on in float32 with what was rounded to bfloat16 before"),
        (
            (DS, "ds = p.astype(q_ref.dtype) * (dp - delta_ref[...]).astype(q_ref.dtype) * slope"),
            "computes in bfloat16",
        ),
        (
            (DS, "ds = (p * (dp - delta_ref[...])).astype(q_ref.dtype) * slope"),
            "goes on in float32 with what was rounded to bfloat16 before",
        ),
    ],
)
def test_a_tolerance_that_hides_a_rounding_does_not_save_it(
    edit: tuple[str, str], says: str
) -> None:
    verdict = judged("attention_dq", edit)
    assert verdict.headline.startswith("✗ attention_dq: it rounds on the way (case ")
    assert says in verdict.says


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
    delta = "delta = jnp.sum(products, axis=-1, keepdims=True)"
    verdict = judged("splash_vjp", (delta, f"{delta}.astype(q.dtype)"))
    assert verdict.title == "it rounds on the way"


def test_an_operand_that_no_step_reads_is_told() -> None:
    verdict = judged(
        "online_softmax",
        ("def online_softmax_kernel(x_ref,", "def online_softmax_kernel(x_ref, more_ref,"),
        ("in_specs=[", "in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j)), "),
        (")(x)", ")(x, x)"),
    )
    assert verdict.title == "something is fetched for nothing"
    assert "no step reads `more_ref`" in verdict.says


def test_blocks_that_are_fetched_and_skipped_are_told_whatever_their_size() -> None:
    verdict = judged(
        "causal_prefetch",
        ("else (128, 64)", "else (256 if T % 256 == 0 else 128, 64)"),
        ("return jnp.minimum(j, last_needed), 0", "return j, 0"),
    )
    assert verdict.title == "something is fetched for nothing"
    assert "where there is no work, let its index map name the block that is there" in verdict.says


def test_exponentials_of_skipped_blocks_are_too_many() -> None:
    verdict = judged(
        "causal_attention",
        ("    @pl.when(j * bk <= (i + 1) * bq - 1)\n    def _():\n", "    if True:\n"),
    )
    assert verdict.stage == "work"


def test_what_outgrows_its_dtype_at_production_scale_only_is_told() -> None:
    sizes = "group_sizes = jnp.bincount(experts, length=router_logits.shape[1])"
    counted = "jnp.zeros(router_logits.shape[1], jnp.int8).at[experts].add(1).astype(jnp.int32)"
    verdict = judged("moe_layer", (sizes, f"group_sizes = {counted}"))
    assert verdict.title == "something is left out"
    assert "Does a count outgrow its dtype" in verdict.says
