"""The statements of grouped_matmul, shown by running code; grouped_matmul.toml lists them."""

from __future__ import annotations

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sample
from launched import interpreted, one, reference, simulated

import puzzles
from puzzles.grouped_matmul import choose_tiles

f32, bf16 = jnp.float32, jnp.bfloat16
S = jax.ShapeDtypeStruct

tile_metadata = puzzles.find("tile_metadata").solution


def test_reuse_of_a_weight_falls_with_experts_where_k_is_whole():
    M, K, N, found = 32_768, 4096, 1024, {}
    for bk, bn in ((4096, 128), (1024, 1024)):
        for E in (8, 64):
            launch = choose_tiles.launched(M, K, N, E, 512, bk, bn)
            fetched = launch.inputs[1].hbm_bytes
            times, rows = fetched // (E * K * N * 2), launch.dot_flops // fetched
            found[launch.grid[2], E] = fetched >> 20, times, rows
    assert found == {  # by blocks of K and experts: MiB fetched, times each weight, rows a fetch
        (1, 8): (64, 1, 4096),
        (1, 64): (512, 1, 512),
        (4, 8): (512, 8, 512),
        (4, 64): (512, 1, 512),
    }


@pytest.mark.graduate
def test_the_table_of_tiles_gives_the_receipts_bytes():
    r, seen = np.random.default_rng(0), set()
    for _ in range(60 if sample.ALL else 30):  # of 28 some are of each kind
        M, E = 16 * int(r.choice([8, 16, 24, 48])), int(r.choice([2, 4, 8]))
        K, N = (128 * int(n) for n in r.choice([1, 2, 3, 6], 2))
        bm, bk, bn = (
            int(r.choice([b for b in range(step, n + 1, step) if n % b == 0]))
            for n, step in ((M, 16), (K, 128), (N, 128))
        )
        launch = choose_tiles.launched(M, K, N, E, bm, bk, bn)
        V, C, whole = choose_tiles.visits(M, E, bm), N // bn, bk == K
        lhs = M * K * (1 if bm == M else C) if whole else V * bm * K * C
        weights = E * K * N if whole else V * K * N
        expected = [2 * n for n in (lhs, weights, M * N)]
        assert [x.hbm_bytes for x in (*launch.inputs[:2], *launch.outputs)] == expected
        assert launch.vmem_bytes == 4 * (bm * bk + bk * bn + bm * bn) + 4 * bm * bn
        seen.add((whole, bm == M))
    assert len(seen) == 4


def test_one_fused_launch_moves_less_than_two():
    M, K, N, E = 16_384, 4096, 14_336, 8
    lhs, w, sizes = S((M, K), bf16), S((E, K, N), bf16), jnp.full(E, M // E)
    fused = reference("fused_gate_up", lhs, w, w, sizes)
    each = reference("grouped_matmul", lhs, w, sizes)
    assert fused.inputs[0].hbm_bytes < 2 * each.inputs[0].hbm_bytes  # two launches read it twice
    assert fused.dot_flops == 2 * each.dot_flops
    saved = 2 * each.hbm_bytes + 3 * M * N * 2 - fused.hbm_bytes
    assert saved > 3 * M * N * 2
    assert fused.vmem_bytes <= 12 * 2**20


def test_with_few_rows_the_weights_are_most_of_what_is_moved():
    args = 512, 2048, 1408, 64, 12 * 2**20
    launch = choose_tiles.launched(*args[:4], *choose_tiles.choose_tiles(*args))
    assert launch.inputs[1].hbm_bytes > 0.9 * launch.hbm_bytes


def test_tiles_for_equal_groups_may_be_dear_for_a_routers():
    layer, r = (8192, 7168, 2048, 128), np.random.default_rng(0)
    routed = jnp.asarray(r.multinomial(8192, r.dirichlet(np.full(128, 0.3))))
    best, other = choose_tiles.choose_tiles(*layer, 32 * 2**20), (128, 7168, 512)

    def price(tiles, sizes=None):
        return max(choose_tiles.prices(choose_tiles.launched(*layer, *tiles, sizes)))

    assert price(best) < price(other)
    assert 1.45 < price(best, routed) / price(other, routed) < 1.55


def test_products_are_the_price_where_experts_have_many_rows_and_bytes_where_few():
    K, N, mebibytes = 2048, 1408, 12 * 2**20
    dearest = []
    for M, E in ((16_384, 8), (16_384, 64), (512, 64)):
        tiles = choose_tiles.choose_tiles(M, K, N, E, mebibytes)
        one = choose_tiles.launched(M, K, N, E, *tiles)
        prices = choose_tiles.prices(one)
        dearest.append(("bytes", "products", "steps")[prices.index(max(prices))])
        if (M, E) == (16_384, 8):
            moved = one.hbm_bytes
            assert (round(moved / 2**20), round(2 * M * K * N / moved)) == (284, 317)
    assert dearest == ["products", "bytes", "bytes"]


@sample.in_turn
def test_a_chip_takes_no_step_for_others_and_one_term_of_the_sum_is_not_zero():
    M, sizes = 256, jnp.array([50, 30, 100, 0, 30, 20])
    r = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(r.normal(size=s), f32) for s in ((M, 128), (6, 128, 128)))
    parts, steps = [], []
    for first, L in ((0, 2), (2, 3), (5, 1)):
        args = lhs, rhs[first : first + L], sizes, jnp.int32(first)
        parts.append(interpreted(puzzles.find("local_experts").solution, *args))
        steps.append(reference("local_experts", *args).steps)
    assert steps == [3, 4, 1]
    assert (sum((part != 0).any(axis=1).astype(int) for part in parts)[:230] == 1).all()
    whole = interpreted(puzzles.find("grouped_matmul").solution, lhs, rhs, sizes)
    np.testing.assert_array_equal(sum(parts), whole)


def test_one_visit_an_empty_group_costs_less_than_clearing_all_weights():
    gmm = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    K, N, sizes = 384, 384, [100, 0, 156, 200, 56]
    lhs, rhs, groups = S((512, K), f32), S((512, N), f32), jnp.array(sizes)

    def production(lhs, rhs, groups):
        tiling = 64, 128, 128
        return gmm.tgmm(lhs.swapaxes(0, 1), rhs, groups, f32, tiling, interpret=True)

    mine, theirs = reference("grouped_outer", lhs, rhs, groups), one(production, lhs, rhs, groups)
    assert theirs.steps - mine.steps == (K // 128) * (N // 128)  # one visit for each block
    moved = [sum(x.hbm_bytes for x in one.inputs + one.outputs) for one in (mine, theirs)]
    assert moved[0] < moved[1] < moved[0] + len(sizes) * K * N * 4


def test_jax_does_not_differentiate_a_grouped_matmul():
    solution, sizes = puzzles.find("grouped_matmul").solution, jnp.array([64])
    with pytest.raises(NotImplementedError):
        jax.vjp(lambda w: solution(jnp.ones((64, 128)), w, sizes), jnp.ones((1, 128, 128)))


@sample.in_turn
def test_a_training_step_at_mixtrals_shapes():
    M, D, F, E, top_k = 8192, 4096, 14_336, 8, 2
    x, (w_in, w_out) = S((M, D), bf16), (S(s, bf16) for s in [(E, D, F), (E, F, D)])

    def step(x, logits, *weights):
        layer = functools.partial(puzzles.find("moe_layer").solution, top_k=top_k)
        y, pullback = jax.vjp(layer, x, logits, *weights)
        return pullback(y)

    logits = jax.random.normal(jax.random.key(0), (M, E), bf16)
    launches = puzzles.trace(step, x, logits, w_in, w_in, w_out)
    assert len(launches) == 9
    _, experts = jax.lax.top_k(logits, top_k)
    sizes = jnp.bincount(experts.ravel(), length=E)
    shared = {}  # rows of visits to a tile beyond its first, by the rows of a tile
    for bm in (512, 256):
        visits = int(tile_metadata(sizes, M * top_k, bm)[2])
        shared[bm] = bm * visits - M * top_k
    for launch in launches:
        rows = M * top_k + shared[launch.inputs[0].sizes[0]]
        assert launch.dot_flops == 2 * rows * D * F
    assert 0 < shared[256] < shared[512]


def megablox(lhs, rhs, sizes):
    gmm = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm").gmm
    return gmm(lhs, rhs, sizes, lhs.dtype, (64, 128, 128), interpret=True)


@sample.in_turn
def test_megablox_leaves_garbage_in_nobodys_rows():
    args = jnp.ones((192, 128)), jnp.ones((2, 128, 128)), jnp.array([30, 50])
    tile = slice(80, 128)  # the rest of the last tile that is visited
    assert (simulated(megablox, *args)[tile] != 0).all()
    assert np.isnan(interpreted(megablox, *args)[128:]).all()
    assert (interpreted(puzzles.find("grouped_matmul").solution, *args)[80:] == 0).all()
    assert not one(megablox, *args).aliases  # no zeros go in
