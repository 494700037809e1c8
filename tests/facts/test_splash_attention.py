"""The statements of splash_attention, shown by running code; splash_attention.toml lists them."""

from __future__ import annotations

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from launched import interpreted, mistaken, reference, traced

import puzzles
from puzzles.splash_attention import _graduation as graduation
from puzzles.splash_attention import computed_masks, splash_multi_head
from puzzles.splash_attention._production import shipped

f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
MIB = 2**20
S = jax.ShapeDtypeStruct
needs_splash = pytest.mark.skipif(not graduation.has_splash(), reason="this JAX ships no splash")

classify_blocks = puzzles.find("classify_blocks").solution
active_tiles = puzzles.find("active_tiles").solution


def causal(T: int, window: int | None = None) -> np.ndarray:
    t, s = np.arange(T)[:, None], np.arange(T)[None, :]
    return (s <= t) & (t - s < (window or T))


# Attention


@sample.drill
def test_what_the_body_holds_needs_vmem_too(compiler):
    q = S((8192, 128), f32)
    solution = puzzles.find("flash_attention").solution

    def fits(bq, bk):
        program = traced(functools.partial(solution, bq=bq, bk=bk), q, q, q)
        (launch,) = program.launches
        held = launch.vmem_bytes + 2 * 4 * bq * bk  # s and p
        return launch.vmem_bytes, held, compiler.compile(program, ["v5e"])["v5e"] is None

    assert fits(1024, 512)[2]
    buffers, held, compiles = fits(2048, 1024)
    assert buffers < 16 * MIB < held
    assert not compiles


def test_a_row_that_attends_to_nothing_becomes_a_mean_of_values():
    puzzle = puzzles.find("segment_attention")
    careless = mistaken("segment_attention", "leaves garbage in rows that attend to nothing")
    q = jnp.zeros((64, 16))
    k = v = jnp.asarray(np.random.default_rng(0).normal(size=(256, 16)), f32)
    ids, others = jnp.full(64, 3), jnp.full(256, 4)
    mean = np.asarray(v[:128]).mean(axis=0)  # the block that is not skipped
    np.testing.assert_allclose(interpreted(careless, q, k, v, ids, others)[5], mean, atol=1e-5)
    assert not interpreted(puzzle.solution, q, k, v, ids, others).any()


@sample.in_turn
def test_the_causal_mask_hides_padded_keys_where_there_are_no_more_queries_than_keys():
    puzzle = puzzles.find("segment_attention")
    q, k, v = np.random.default_rng(0).normal(size=(3, 256, 16)).astype(np.float32)
    for T, S, nobody in ((200, 200, 0), (100, 200, 0), (256, 100, 0), (256, 100, -2)):
        ids = np.zeros(T, np.int32), np.zeros(S, np.int32)
        padded = [np.pad(x[:n], ((0, 256 - n), (0, 0))) for x, n in ((q, T), (k, S), (v, S))]
        kv_ids = np.pad(ids[1], (0, 256 - S), constant_values=nobody)
        out = interpreted(puzzle.solution, *padded, np.zeros(256, np.int32), kv_ids)[:T]
        wrong = abs(out - puzzle.spec(q[:T], k[:S], v[:S], *ids)).max(axis=1) > 1e-4
        assert wrong.any() == (T > S and nobody == 0)
        assert not wrong[:S].any()


# Masks as tables and lists


def test_one_kernel_has_the_dots_of_a_mask_and_the_steps_and_fetches_of_a_dense_grid():
    x, t = S((512, 64), f32), np.arange(512)
    masks = (
        causal(512),
        causal(512, window=100),
        t[:, None] // 200 == t[None, :] // 200,
    )
    for mask in masks:
        tables = classify_blocks(mask, 64, 128)
        launch = reference("block_sparse_attention", x, x, x, *tables)
        busy = tables[0].ravel() > 0
        assert ((launch.dots[0].executed > 0) == busy).all()
        assert launch.steps == tables[0].size == 32
        assert launch.inputs[1].transfers == launch.inputs[2].transfers == 32


def test_a_wide_row_widens_the_padded_grid_and_not_the_list():
    t, s = np.arange(4096)[:, None], np.arange(4096)[None, :]
    near = causal(4096, window=512)
    found = []
    for mask in (near, near | ((s <= t) & (t // 16 == 200))):
        block_mask, mask_index, _ = classify_blocks(mask, 128, 128)
        rows, *_ = active_tiles(block_mask, mask_index)
        found.append(((block_mask > 0).sum(axis=1).max() * len(block_mask), len(rows)))
    (padded, listed), (wide, long) = found
    assert wide > 5 * padded
    assert long < 1.2 * listed


@pytest.fixture(scope="module")
def beside_production():
    return graduation.compared(splash_multi_head.splash_over_tiles, T=4096, block=512)


@needs_splash
def test_the_table_beside_production(beside_production):
    for name, rows in beside_production.items():
        mine, theirs = rows["mine"], rows["JAX's splash"]
        assert (mine.dots, mine.flops) == (theirs.dots, theirs.flops), name
        assert mine.steps <= theirs.steps
        assert (mine.steps < theirs.steps) == (name != "full")
        assert mine.fetched <= theirs.fetched
        assert mine.bytes <= theirs.bytes
        tiles = mine.steps // 8  # of a single head, whose list all heads follow
        assert mine.lists == 16 * tiles
        assert mine.lists < theirs.lists
    causal = beside_production["causal"]
    assert causal["JAX's splash"].steps == 8 * (4096 // 512) ** 2
    assert causal["mine"].bytes < 0.95 * causal["JAX's splash"].bytes


@needs_splash
def test_production_computes_the_masks_that_have_a_formula():
    q, k = S((1, 1024, 128), bf16), S((1, 1024, 128), bf16)
    masks = graduation.shipped_masks(1024)
    masks["causal in chunks"] = shipped("ChunkedCausalMask", (1024, 1024), 300)
    for name, mask in masks.items():
        (launch,) = puzzles.trace(graduation.production([mask], None, 512, 512), q, k, k)
        shapes = [o.shape for o in launch.inputs]
        computed = name.startswith("causal") and "prefix" not in name
        assert ((1024, 128) in shapes) == computed, name
        assert any(shape[1:] == (512, 512) for shape in shapes) == ("prefix" in name)
    two = S((2, 1024, 128), bf16)  # masks that differ from head to head are stored
    each = [masks["causal"], masks["causal in chunks"]]
    (launch,) = puzzles.trace(graduation.production(each, None, 512, 512), two, two, two)
    shapes = [o.shape for o in launch.inputs]
    assert (1024, 128) not in shapes
    assert any(shape[1:] == (512, 512) for shape in shapes)


@needs_splash
@sample.drill
def test_rows_that_see_nothing_differ_and_the_learners_are_zeros():
    with np.errstate(invalid="ignore"):
        _, mine, theirs, plain = graduation.blind(splash_multi_head.splash_multi_head)
    assert mine.split() == ["yours", "zeros", "zeros"]
    assert "the mean of v[:256]" in theirs
    assert theirs.endswith("NaN")
    assert plain.count("the mean of all v") == 2


def window_of_1024(row, column):
    return (column <= row) & (row - column < 1024)


def test_a_rule_has_the_list_of_its_mask_and_fetches_no_pattern():
    x, b = S((4096, 128), f32), 512
    tiles = computed_masks.tiles_of_rule(window_of_1024, 4096, 4096, b, b)
    block_mask, mask_index, patterns = classify_blocks(causal(4096, 1024), b, b)
    stored = active_tiles(block_mask, mask_index)
    for mine, theirs in zip((0, 1, 3), (0, 1, 3), strict=True):
        np.testing.assert_array_equal(tiles[mine], stored[theirs])
    computed = reference("computed_masks", x, x, x, tiles, window_of_1024, bq=b, bk=b)
    plain = reference("splash_attention", x, x, x, stored, patterns)
    assert len(computed.inputs) == 3
    assert computed.steps == plain.steps
    assert computed.dot_flops == plain.dot_flops
    assert computed.hbm_bytes_read < plain.hbm_bytes_read / 2


def test_the_summit_has_no_gradient_and_takes_a_batch():
    mask = causal(256)
    q, k, v = graduation.draw(0, 1, 1, 256, 256, 64, 64, f32)

    def attend(q, k, v):
        return splash_multi_head.splash_multi_head(q, k, v, mask)

    with pytest.raises(Exception):  # noqa: B017, PT011  (its type differs between JAX's versions)
        jax.grad(lambda q: attend(q, k, v).sum())(q)
    batch = jax.vmap(attend)(*(jnp.stack([x, 2 * x]) for x in (q, k, v)))
    np.testing.assert_allclose(batch[1], attend(2 * q, 2 * k, 2 * v), atol=1e-5)


@needs_splash
def test_production_skips_tiles_between_documents_by_a_mask_that_is_a_jax_array():
    splash = importlib.import_module(
        "jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel"
    )
    q, documents = S((2, 1024, 64), f32), np.arange(1024) // 256
    ids = jnp.asarray(documents, i32)
    apart = np.stack([causal(1024) & (documents[:, None] == documents)] * 2)
    blocks = splash.BlockSizes(block_q=128, block_kv=128, block_kv_compute=128)

    def dots(mask, *segments):
        kernel = splash.make_splash_mha(
            mask, block_sizes=blocks, head_shards=1, q_seq_shards=1, interpret=True
        )
        (launch,) = puzzles.trace(lambda q, k, v: kernel(q, k, v, *segments), q, q, q)
        return sum(int(dot.executed.sum()) for dot in launch.dots)

    assert dots(np.stack([causal(1024)] * 2), splash.SegmentIds(ids, ids)) == 2 * 72
    assert dots(jnp.asarray(apart)) == 2 * 24
