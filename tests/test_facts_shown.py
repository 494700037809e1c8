"""What the prose says of JAX, Pallas and costs, shown by running it; tests/facts names each."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import puzzles
from puzzles import Launch, _puzzle
from puzzles._chips import CHIPS
from puzzles._mesh import as_tpu
from puzzles._simulate import SimulationError, quickly, simulate
from puzzles._tpu import LoweringError, lower
from puzzles._trace import as_function, trace_call

f32, bf16 = jnp.float32, jnp.bfloat16
KIB, MIB, GIB = 2**10, 2**20, 2**30
S = jax.ShapeDtypeStruct


def one(fn, *args) -> Launch:
    (launch,) = puzzles.trace(fn, *args)
    return launch


def reference(name: str, *args, **options) -> Launch:
    """The launch of a rung's solution."""
    return one(functools.partial(puzzles.find(name).solution, **options), *args)


def traced(fn, *args):
    with as_tpu():
        return trace_call(fn, *args)


def interpreted(fn, *args) -> np.ndarray:
    """The first result under `interpret=True`."""
    one = traced(fn, *args)
    return quickly(as_function(one, True), *one.leaves)[0]


def simulated(fn, *args) -> np.ndarray:
    return simulate(traced(fn, *args))[0]


def call(kernel, out, grid=(), specs=None, out_spec=None, scratch=()):
    return pl.pallas_call(
        kernel,
        grid=grid,
        in_specs=[pl.BlockSpec()] if specs is None else specs,
        out_specs=pl.BlockSpec() if out_spec is None else out_spec,
        out_shape=out,
        scratch_shapes=list(scratch),
        interpret=True,
    )


# Memory that nobody wrote


@pytest.mark.parametrize("run", [interpreted, simulated])
def test_an_output_and_scratch_begin_as_nan(run):
    def kernel(x_ref, o_ref, acc_ref):
        o_ref[:8] += x_ref[:8]
        o_ref[8:] = acc_ref[8:]

    x = jnp.ones((16, 128))
    out = run(call(kernel, x, scratch=[pltpu.VMEM((16, 128), f32)]), x)
    assert np.isnan(out).all()


@pytest.mark.parametrize("run", [interpreted, simulated])
def test_reads_beyond_the_edge_are_nan_and_writes_there_are_dropped(run):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0
        beyond = jnp.sum(x_ref[...], axis=1, keepdims=True)
        o_ref[:, :1] = jnp.where(pl.program_id(0) == 1, beyond, o_ref[:, :1])

    spec = pl.BlockSpec((8, 128), lambda j: (0, j))
    x = jnp.ones((8, 200))
    out = run(call(kernel, S(x.shape, f32), (2,), [spec], spec), x)
    assert out.shape == (8, 200)
    assert (out[:, :128] == 2).all()
    assert (out[:, 129:] == 2).all()
    assert np.isnan(out[:, 128]).all()  # the sum of the second block, 56 of whose columns are none


def test_scratch_is_kept_from_the_first_step_to_the_last():
    def kernel(o_ref, acc_ref):
        @pl.when(pl.program_id(0) == 0)
        def _():
            acc_ref[...] = jnp.zeros_like(acc_ref)

        acc_ref[...] += 1.0
        o_ref[...] = acc_ref[...]

    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    counts = call(kernel, S((24, 128), f32), (3,), [], spec, [pltpu.VMEM((8, 128), f32)])
    assert simulated(counts)[::8, 0].tolist() == [1, 2, 3]


# Blocks


@pytest.mark.parametrize("block", [(4, 128), (8, 64)])
def test_interpret_takes_blocks_that_a_tpu_refuses(block):
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    spec = pl.BlockSpec(block, lambda i, j: (i, j))
    x = jnp.arange(16 * 256, dtype=f32).reshape(16, 256)
    copy = call(kernel, x, (16 // block[0], 256 // block[1]), [spec], spec)
    np.testing.assert_array_equal(interpreted(copy, x), x)
    with pytest.raises(LoweringError):
        lower(traced(copy, x))


def test_interpret_clamps_a_block_that_lies_outside():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    beyond = pl.BlockSpec((8, 128), lambda i: (8 * i, 0))
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    x = jnp.arange(32 * 128, dtype=f32).reshape(32, 128)
    copy = call(kernel, x, (4,), [beyond], spec)
    np.testing.assert_array_equal(interpreted(copy, x)[::8, 0], x[[0, 24, 24, 24], 0])
    with pytest.raises(SimulationError):
        simulated(copy, x)


def test_an_index_map_rounds_down_below_zero_too():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    # (i - 3) // 2 is -2, -1, -1, 0
    back = pl.BlockSpec((8, 128), lambda i: ((i - 3) // 2 + 2, 0))
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    x = jnp.arange(32 * 128, dtype=f32).reshape(32, 128)
    copy = call(kernel, x, (4,), [back], spec)
    assert one(copy, x).inputs[0].blocks[:, 0].tolist() == [0, 1, 1, 2]
    np.testing.assert_array_equal(simulated(copy, x)[::8, 0], x[[0, 8, 8, 16], 0])
    lower(traced(copy, x))


def test_an_outer_product_reads_36_kib_and_not_48():
    launch = reference("outer_product", *puzzles.find("outer_product").arguments(0))
    assert [x.transfers for x in launch.inputs] == [3, 6]
    assert launch.hbm_bytes_read == 36 * KIB
    assert launch.steps * 2 * 1024 * 4 == 48 * KIB


@pytest.mark.parametrize("case", [0, 1])
def test_fix_the_grid_is_right_to_the_last_digit_under_interpret_alone(case):
    puzzle = puzzles.find("fix_the_grid")
    starter, args = _puzzle.starter_function(puzzle), puzzle.arguments(case)
    np.testing.assert_array_equal(interpreted(starter, *args), puzzle.spec(*args))
    with pytest.raises(SimulationError, match="again"):
        simulated(starter, *args)


# Products


def test_bf16_has_the_range_of_f32_and_8_bits():
    wide, narrow, bf = jnp.finfo(f32), jnp.finfo(bf16), np.dtype(bf16)
    assert (wide.nexp, narrow.nexp) == (8, 8)
    assert narrow.nmant + 1 == 8  # with the leading 1, which is not stored
    assert bf.type(256) + bf.type(0.5) == bf.type(256)
    for start, apart in [(16, 0.125), (32, 0.25), (64, 0.5), (128, 1), (256, 2)]:
        between = np.linspace(start, 2 * start - apart, 2000).astype(bf).astype(float)
        assert np.diff(np.unique(between)).tolist() == [apart] * 127  # 128 neighbours


def test_a_bf16_score_may_be_off_by_half_and_its_exponential_by_more():
    off = float(np.dtype(bf16).type(129.5)) - 129.5
    assert abs(off) == 0.5
    assert np.exp(0.5) - 1 > 0.5
    assert round(float(np.exp(1.0)), 1) == 2.7


@pytest.mark.parametrize(("case", "peak"), [(0, 64), (1, 96)])
def test_sums_of_matmul_bf16_climb_to_64_and_more_and_end_near_2(case, peak):
    a, b = (np.asarray(x, np.float32) for x in puzzles.find("matmul_bf16").arguments(case))
    half = a.shape[1] // 2
    assert np.abs(a[:8, :half] @ b[:half]).mean() == pytest.approx(peak, rel=0.05)
    assert np.abs(a[:8] @ b).mean() == pytest.approx(2, abs=0.7)


def test_the_gradient_of_a_matmul_contracts_the_first_axes():
    def loss(w, x):
        return jnp.dot(x, w).sum()

    x = jnp.asarray(np.random.default_rng(0).normal(size=(16, 8)), f32)
    got = jax.grad(loss)(jnp.ones((8, 4)), x)
    np.testing.assert_allclose(got, x.T @ np.ones((16, 4)), rtol=1e-5)


def test_vmap_of_tiled_matmul_is_the_launch_of_batched_matmul():
    shapes = S((3, 256, 384), f32), S((3, 384, 512), f32)
    mapped = one(jax.vmap(puzzles.find("tiled_matmul").solution), *shapes)
    batched = reference("batched_matmul", *shapes)
    assert mapped.grid == batched.grid
    assert [x.block for x in mapped.operands] == [x.block for x in batched.operands]
    for a, b in zip(mapped.operands[:3], batched.operands[:3], strict=True):
        np.testing.assert_array_equal(a.blocks, b.blocks)
    assert mapped.hbm_bytes_read == batched.hbm_bytes_read
    assert mapped.hbm_bytes_written == batched.hbm_bytes_written
    assert mapped.vmem_bytes == batched.vmem_bytes


def test_fusion_adds_the_bias_alone_to_the_traffic():
    M, K, N = 8192, 4096, 4096
    a, b, bias = S((M, K), bf16), S((K, N), bf16), S((N,), f32)
    bare, fused = reference("matmul_bf16", a, b), reference("fused_matmul", a, b, bias)
    assert bare.hbm_bytes_read == 4 * GIB
    assert fused.hbm_bytes_read - bare.hbm_bytes_read == 1 * MIB
    assert fused.hbm_bytes_written == bare.hbm_bytes_written == 2 * M * N
    assert 4 * M * N == 128 * MIB  # the product read and written once more


def test_gelu_is_slightly_negative_left_of_zero():
    x = jnp.linspace(-3.0, -0.1, 30)
    assert (jax.nn.gelu(x, approximate=True) < 0).all()
    assert (jax.nn.gelu(x, approximate=True) > -0.2).all()


@pytest.mark.parametrize(("bm", "bk", "bn"), [(128, 128, 128), (256, 512, 512), (512, 128, 256)])
def test_a_matmul_reads_a_for_each_column_of_blocks_and_b_for_each_row(bm, bk, bn):
    M, K, N = 1024, 2048, 1536
    launch = reference("matmul_bf16", S((M, K), bf16), S((K, N), bf16), bm=bm, bk=bk, bn=bn)
    a, b = launch.inputs
    assert a.transfers * bm * bk == N // bn * M * K
    assert b.transfers * bk * bn == M // bm * K * N
    flops_per_byte = 2 * M * K * N / launch.hbm_bytes
    assert flops_per_byte == pytest.approx(1 / (1 / bn + 1 / bm + 1 / K))


def test_with_all_of_k_in_one_block_a_is_read_once():
    M, K, N = 1024, 512, 1536
    launch = reference("matmul_bf16", S((M, K), bf16), S((K, N), bf16), bm=256, bk=K, bn=256)
    assert launch.inputs[0].transfers * 256 * K == M * K


def test_512_blocks_just_reach_the_ridge_of_a_v5e():
    square = S((4096, 4096), bf16)
    ridge = CHIPS["v5e"].ridge
    found = {
        n: 2 * 4096**3 / reference("matmul_bf16", square, square, bm=n, bk=256, bn=n).hbm_bytes
        for n in (128, 256, 512, 1024)
    }
    assert found[128] < 64
    assert found[256] < ridge
    assert ridge < found[512] < 1.01 * ridge
    assert ridge < found[1024]


# Softmax


def test_exponentials_overflow_above_88_in_f32_and_709_in_f64():
    assert np.isfinite(np.exp(np.float32(88)))
    assert np.isfinite(np.exp(np.float64(709)))
    with np.errstate(over="ignore"):
        assert np.isinf(np.exp(np.float32(89)))
        assert np.isinf(np.exp(np.float64(710)))


def test_random_scores_stay_near_one_however_long_the_vectors():
    r = np.random.default_rng(0)
    for H in (16, 256, 4096):
        q, k = r.normal(size=(2, 500, H))
        assert np.std((q * k).sum(axis=1) / np.sqrt(H)) == pytest.approx(1, abs=0.15)


def test_a_finite_mask_vanishes_and_an_infinite_one_is_nan():
    low, m = jnp.float32(-1e30), jnp.float32(-200.0)
    assert jnp.exp(low - m) == 0
    assert jnp.exp(low - low) == 1
    assert jnp.isnan(jnp.exp(-jnp.inf - jnp.float32(-jnp.inf)))
    assert jnp.exp(m - low) == jnp.inf  # alpha upside down
    assert jnp.isnan(jnp.inf * jnp.float32(0))


def test_nan_stays_in_a_maximum_a_product_and_a_sum():
    nan = jnp.full((8, 128), jnp.nan)
    assert jnp.isnan(jnp.maximum(nan, 1.0)).all()
    assert jnp.isnan(nan * 0.0).all()
    assert jnp.isnan(nan + 1.0).all()


def test_the_row_of_six_numbers():
    m, total, seen = -1e30, 0.0, []
    for block in ([1, 3], [2, 5], [4, 0]):
        new = max(m, *block)
        total = np.exp(m - new) * total + np.exp(np.array(block) - new).sum()
        m = new
        seen.append((m, round(float(total), 3)))
    assert seen == [(3, 1.135), (5, 1.203), (5, 1.578)]


def test_online_softmax_reads_x_once_for_one_more_exponential_a_row_and_block():
    x = S((1024, 4096), f32)
    first, second = puzzles.trace(puzzles.find("softmax_two_pass").solution, x)
    online = reference("online_softmax", x)
    size = 1024 * 4096 * 4
    assert [launch.inputs[0].transfers for launch in (first, second, online)] == [
        first.steps,
        second.steps,
        online.steps,
    ]
    assert first.inputs[0].hbm_bytes == second.inputs[0].hbm_bytes == size
    assert online.hbm_bytes_read == size
    blocks = 4096 // 128
    assert second.transcendentals == 1024 * 4096
    assert online.transcendentals == second.transcendentals + 1024 * blocks


# Attention


def test_the_matrix_of_scores_is_large():
    assert 64 * GIB == 131072**2 * 4
    assert 256 * MIB == 8192**2 * 4


def test_flash_attention_reads_keys_once_for_every_block_of_queries():
    q = S((8192, 128), f32)
    once = 8192 * 128 * 4
    small = reference("flash_attention", q, q, q)
    assert small.inputs[0].block == (64, 128)
    assert small.hbm_bytes_read == once + 128 * 2 * once
    plain = 4 * 8192**2 * 4  # scores and weights, each written and read
    assert small.hbm_bytes == pytest.approx(plain, rel=0.01)
    large = reference("flash_attention", q, q, q, bq=1024, bk=512)
    assert large.hbm_bytes_read == once + 8 * 2 * once


def test_a_group_shares_its_keys_without_a_copy_and_with_the_same_traffic():
    N, K, T, H = 32, 8, 8192, 128
    q, k, repeated = S((N, T, H), bf16), S((K, T, H), bf16), S((N, T, H), bf16)
    assert 2 * K * T * H * 2 == 32 * MIB
    assert 2 * N * T * H * 2 == 128 * MIB
    shared = reference("multi_head_attention", q, k, k, bq=1024, bk=512)
    copied = reference("multi_head_attention", q, repeated, repeated, bq=1024, bk=512)
    assert shared.hbm_bytes_read == copied.hbm_bytes_read


def kinds(mask: np.ndarray, bq: int, bk: int) -> list[str]:
    """Each row of blocks as a word: a for all, s for some, n for none."""
    T, n = mask.shape
    blocks = mask.reshape(T // bq, bq, n // bk, bk).mean(axis=(1, 3))
    return ["".join("n" if x == 0 else "a" if x == 1 else "s" for x in row) for row in blocks]


def below(T: int, n: int, window: int | None = None) -> np.ndarray:
    t, s = np.arange(T)[:, None], np.arange(n)[None, :]
    return (s <= t) & (s > t - (window or T + n))


def test_the_causal_picture_and_the_half_that_it_throws_away():
    assert kinds(below(256, 384), 64, 128) == ["snn", "snn", "asn", "asn"]
    assert (~below(1024, 1024)).mean() == pytest.approx(0.5, abs=0.001)


def test_skipping_work_saves_no_traffic_and_repeating_an_index_saves_half():
    for n in (1024, 4096):
        x = S((n, 128), f32)
        plain, clamped = (
            reference(f"causal_{name}", x, x, x) for name in ("attention", "prefetch")
        )
        everything = reference("flash_attention", x, x, x, bq=128, bk=64)
        assert plain.hbm_bytes_read == everything.hbm_bytes_read
        assert plain.grid == clamped.grid
        assert plain.dot_flops == clamped.dot_flops
        about_half = pytest.approx(0.5, abs=0.1)
        assert clamped.hbm_bytes_read / plain.hbm_bytes_read == about_half
        assert plain.dot_flops / everything.dot_flops == about_half


def test_the_second_row_of_causal_prefetch_fetches_one_block():
    x, k = S((256, 64), f32), S((512, 64), f32)
    plain, clamped = (reference(f"causal_{name}", x, k, k) for name in ("attention", "prefetch"))
    assert plain.grid == (4, 4)
    assert plain.inputs[1].blocks[4:8, 0].tolist() == [0, 1, 2, 3]
    assert clamped.inputs[1].blocks[4:8, 0].tolist() == [0, 0, 0, 0]
    assert (plain.dots[0].executed[4:8] > 0).tolist() == [True, False, False, False]


def test_the_picture_of_a_window_and_row_255():
    seen = below(384, 320, window=129)
    assert kinds(seen, 128, 64) == ["ssnnn", "ssssn", "nnsss"]
    assert seen[255].argmax() == 127
    assert seen[128:256, :64].any()
    assert not seen[255, :64].any()


def test_a_window_bounds_the_work_of_a_row_of_blocks():
    found = []
    for n in (1024, 2048):
        x = S((n, 64), f32)
        launch = reference("local_attention", x, x, x, window=129)
        found.append(launch.dots[0].executed.reshape(launch.grid).sum(axis=1).max())
    assert found[0] == found[1]


def test_a_row_that_attends_to_nothing_becomes_a_mean_of_values():
    puzzle = puzzles.find("segment_attention")
    careless = puzzles.mutate(
        puzzle, puzzle.mistake("leaves garbage in rows that attend to nothing")
    )
    q = jnp.zeros((64, 16))
    k = v = jnp.asarray(np.random.default_rng(0).normal(size=(256, 16)), f32)
    ids, others = jnp.full(64, 3), jnp.full(256, 4)
    mean = np.asarray(v[:128]).mean(axis=0)  # the block that is not skipped
    np.testing.assert_allclose(interpreted(careless, q, k, v, ids, others)[5], mean, atol=1e-5)
    assert not interpreted(puzzle.solution, q, k, v, ids, others).any()


def test_a_cap_adds_no_traffic_and_brings_a_mask_back():
    x = S((1024, 64), f32)
    plain = reference("causal_attention", x, x, x)
    capped = reference("soft_cap_attention", x, x, x, cap=50.0)
    assert capped.hbm_bytes == plain.hbm_bytes
    assert 50 * jnp.tanh(jnp.float32(-1e30) / 50) == -50
    small = jnp.float32(1.0)
    assert 50 * jnp.tanh(small / 50) == pytest.approx(1.0, abs=1e-3)


def test_jax_has_no_soft_cap():
    names = inspect.signature(jax.nn.dot_product_attention).parameters
    assert not [name for name in names if "cap" in name]


def test_exponentials_below_minus_88_are_not_normal_numbers() -> None:
    smallest = np.finfo(np.float32).tiny
    assert np.exp(np.float32(-87)) > smallest
    assert 384 * np.exp(np.float32(-100)) < smallest
