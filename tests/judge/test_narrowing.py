"""What is rounded to bfloat16 on the way, left out at production scale, or fetched for nothing."""

from __future__ import annotations

import pytest
import sample

import puzzles
from puzzles import Mistake, Verdict, judge
from puzzles._judge.scale import at_scale, compare
from puzzles._judge.verdict import Rejected

pytestmark = pytest.mark.slow


def judged(name: str, *edits: tuple[str, str]) -> Verdict:
    puzzle = puzzles.find(name)
    return judge(puzzle, puzzles.mutate(puzzle, Mistake("differs", edits=edits)))


def beside_the_reference(name: str, edit: tuple[str, str]) -> Verdict:
    """What production scale alone says: `make graduate` shows that the cases before it pass."""
    puzzle = puzzles.find(name)
    scale = at_scale(puzzle, puzzles.mutate(puzzle, Mistake("differs", edits=(edit,))))
    assert scale is not None
    with pytest.raises(Rejected) as rejected:
        compare(puzzle, scale)
    return rejected.value.verdict


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


MATMUL = 'dimension_semantics=("parallel", "parallel", "arbitrary")'


@pytest.mark.parametrize(
    ("rung", "edit", "title", "says"),
    [
        (
            "row_sum",
            ("grid=(M // bm, N // bn)", "grid=(M // bm, min(N // bn, 1024))"),
            "something is left out",
            "no step gets 16,384 of the 32,768 blocks of `x_ref`",
        ),
        (
            "stream_sum",
            ("fori_loop(0, x_ref.shape[0] // 64,", "fori_loop(0, min(x_ref.shape[0] // 64, 100),"),
            "something is left out",
            "25 MiB are read of `x_ref`, which has 64 MiB",
        ),
        (
            "gather_pages",
            ("(table_ref[i], 0, 0)", "(table_ref[i] & 255, 0, 0)"),
            "something is left out",
            "Is an index cut short?",
        ),
        (
            "scale_blocks",
            ("x_ref[...] * number", "x_ref[...] * (number + jnp.int32(0)).astype(jnp.uint8)"),
            "numbers outgrow their dtype",
            "holds whole numbers in uint8, which larger ones outgrow",
        ),
        (
            "launch_matmul",
            (MATMUL, f"{MATMUL}, vmem_limit_bytes=2**16"),
            "it asks for less VMEM",
            "`vmem_limit_bytes=65,536` is too little: its blocks and scratch take ",
        ),
        (
            "launch_matmul",
            (MATMUL, f"{MATMUL}, vmem_limit_bytes=2**40"),
            "it asks for more VMEM than there is",
            "no TPU has more than 134,217,728 B of VMEM.",
        ),
        (
            "tiled_matmul",
            ("lambda i, j, k: (i, k))", "lambda i, j, k: (i, k), pipeline_mode=pl.Buffered(1))"),
            "copies and work take turns",
            "`a_ref` has one buffer, and 65,536 of 65,536 steps move a block of it",
        ),
        (
            "grouped_matmul_transposed",
            ("lhs_ref[...], rhs_ref", "lhs_ref[...].astype(jnp.float32), rhs_ref"),
            "its dots are not the reference's",
            "100% of the FLOPs of its dots have a float32 operand, in the reference 0%",
        ),
        (
            "permuted_matmul",
            (
                "jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)",
                "jnp.sum(lhs_ref[...][:, :, None] * rhs_ref[...][None], axis=1)",
            ),
            "its dots are not the reference's",
            "no dot runs, where",
        ),
        (
            "batched_matmul",
            ("lambda b, i, j, k: (b, k, j)", "lambda b, i, j, k: (b % 16, k, j)"),
            "something is left out",
            "no step gets 12,288 of the 16,384 blocks of `rhs_ref`, for example (16, 0, 0)",
        ),
        (  # right wherever the window is shorter
            "local_attention",
            ("(i * bq - window + 1) // bk", "(i * bq - 129 + 1) // bk"),
            "something is left out",
            "that belong together, no step computes with",
        ),
        (  # of keys and values alike
            "paged_attention",
            (
                "return table_ref[b * pages + jnp.minimum(i, last)]",
                "return table_ref[b * pages + jnp.minimum(i, last)] & 255",
            ),
            "something is left out",
            "blocks of `k_ref` that the reference needs are in no step",
        ),
        (  # copies by hand
            "paged_attention_dma",
            ("length, most = lengths_ref[b],", "length, most = jnp.minimum(lengths_ref[b], 300),"),
            "something is left out",
            "blocks of `k_pages_ref` that the reference needs are in no step",
        ),
        (
            "copy_rows",
            ("(start_ref[0], 8)", "(jnp.minimum(start_ref[0], 1024), 8)"),
            "something is left out",
            "1 of the 1 blocks of `x_ref` that the reference needs are in no step, for example the "
            "one at (131000, 0)",
        ),
        (
            "pipelined_matmul",
            ("lambda i, j, k: (k, j))", "lambda i, j, k: (k, jnp.minimum(j, 3)))"),
            "something is left out",
            "blocks of `b_ref` that the reference needs are in no step",
        ),
        (
            "block_sparse_attention",
            ("needed = kind > 0", "needed = (kind > 0) & (j < 16)"),
            "something is left out",
            "that belong together, no step computes with",
        ),
        (  # scratch
            "tiled_matmul",
            ("@pl.when(k == 0)", "@pl.when((k == 0) & (pl.program_id(0) < 16))"),
            "what one block leaves, the next one gets",
            "blocks `acc_ref` goes on with what it held for the block before, first at grid step "
            "(16, 0, 0)",
        ),
        (  # an output
            "row_sum",
            ("pl.program_id(1) == 0", "(pl.program_id(1) == 0) & (pl.program_id(0) < 9)"),
            "what one block leaves, the next one gets",
            "`o_ref` is read at step (9, 0) before anything is written there.",
        ),
    ],
)
def test_what_only_production_scale_shows_is_told(
    rung: str, edit: tuple[str, str], title: str, says: str
) -> None:
    verdict = judged(rung, edit) if sample.ALL else beside_the_reference(rung, edit)
    assert verdict.title == title
    assert says in verdict.says


def test_many_small_copies_are_told() -> None:
    verdict = judged(
        "stream_sum",
        ("pl.ds(i * 64, 64)", "pl.ds(i * 8, 8)"),
        ("x_ref.shape[0] // 64, add", "x_ref.shape[0] // 8, add"),
        ("pltpu.VMEM((64, N)", "pltpu.VMEM((8, N)"),
    )
    assert verdict.title == "its copies are small"
    assert "it starts 2,048 copies by hand, the reference 256" in verdict.says


def test_who_looks_up_where_there_is_work_may_fetch_less() -> None:
    block = "lambda j, i, g, *_: (g, i, j))]"
    here = "(starts[g] < (i + 1) * bm) & (ends[g] > i * bm)"
    skips = f"lambda j, i, g, starts, ends: (jnp.where({here}, g, 0), i, j))]"
    assert judged("launch_masked_store", (block, skips)).passed
    cut = judged("launch_masked_store", (block, block.replace("(g, i", "(jnp.minimum(g, 1), i")))
    assert not cut.passed


def test_what_is_made_outside_is_compared_with_the_arrays_and_not_with_all_that_moves() -> None:
    verdict = judged(  # 32 MiB of 14 GiB that are moved
        "matmul_gradients",
        ("grid=(K // bk, N // bn, M // bm)", "grid=(N // bn, K // bk, M // bm)"),
        ("(bm, bk), lambda i, j, m: (m, i)", "(bm, bn), lambda i, j, m: (m, i)"),
        ("(bm, bn), lambda i, j, m: (m, j)", "(bm, bk), lambda i, j, m: (m, j)"),
        ("out_specs=pl.BlockSpec((bk, bn)", "out_specs=pl.BlockSpec((bn, bk)"),
        ("jax.ShapeDtypeStruct((K, N)", "jax.ShapeDtypeStruct((N, K)"),
        ("pltpu.VMEM((bk, bn)", "pltpu.VMEM((bn, bk)"),
        (")(a, g)", ")(g, a).T"),
    )
    assert verdict.stage == "work"
    assert "arrays of 32 MiB are made outside of the kernel" in verdict.says


def test_an_array_that_is_fetched_twice_is_compared_with_one() -> None:
    b = "            pl.BlockSpec((bk, bn), lambda i, j, k: (k, j)),\n"
    verdict = judged(
        "tiled_matmul",
        ("def tiled_matmul_kernel(a_ref, b_ref,", "def tiled_matmul_kernel(a_ref, b_ref, c_ref,"),
        ("jnp.dot(a_ref[...], b_ref[...]", "jnp.dot(a_ref[...], (b_ref[...] + c_ref[...]) / 2"),
        (b, b * 2),
        (")(a, b)", ")(a, b, b)"),
    )
    assert verdict.stage == "work"
    assert "are moved" in verdict.says


def test_wrong_digits_are_traced_to_the_line_that_rounds() -> None:
    verdict = judged(
        "flash_attention",
        ("jnp.sum(p, axis=1", "jnp.sum(p.astype(jnp.bfloat16).astype(jnp.float32), axis=1"),
    )
    assert verdict.stage == "values"
    assert verdict.first is not None
    assert "goes on in float32 with what was rounded to bfloat16 before" in verdict.first


def test_a_rounded_factor_is_told_before_a_count_that_only_larger_ones_outgrow() -> None:
    product = "(x_ref[...].astype(jnp.bfloat16) * number).astype(jnp.float32)"
    verdict = judged("scale_blocks", ("x_ref[...] * number", product))
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
