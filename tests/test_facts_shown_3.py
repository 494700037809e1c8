"""What splash's last rungs and grouped_matmul state, shown by running; tests/facts names each."""

from __future__ import annotations

import ast
import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import puzzles
from puzzles import Launch, _regions, _tpu
from puzzles._mesh import as_tpu
from puzzles._tpu import CHIPS, Compiler, supported_chips
from puzzles._trace import trace_call
from puzzles.splash_attention import _graduation as graduation
from puzzles.splash_attention import splash_multi_head

f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
MIB, GIB = 2**20, 2**30
S = jax.ShapeDtypeStruct
needs_libtpu = pytest.mark.skipif(
    not _tpu.has_libtpu() or importlib.util.find_spec("flatbuffers") is None,
    reason="no libtpu here",
)
needs_splash = pytest.mark.skipif(not graduation.has_splash(), reason="this JAX ships no splash")

classify_blocks = puzzles.find("classify_blocks").solution
active_tiles = puzzles.find("active_tiles").solution
tile_metadata = puzzles.find("tile_metadata").solution


def one(fn, *args) -> Launch:
    (launch,) = puzzles.trace(fn, *args)
    return launch


def reference(name: str, *args, **options) -> Launch:
    """The launch of a rung's solution."""
    return one(functools.partial(puzzles.find(name).solution, **options), *args)


def causal(T: int, window: int | None = None) -> np.ndarray:
    t, s = np.arange(T)[:, None], np.arange(T)[None, :]
    return (s <= t) & (t - s < (window or T))


# Masks as tables and lists


def test_a_long_mask_is_large_and_its_table_is_not():
    T = 131_072
    assert T * T == 16 * GIB  # one byte an element
    assert np.dtype(bool).itemsize == 1
    assert T // 512 == 256
    assert 256 * 256 == 65_536
    assert 4 * T * T * 4 == 256 * GIB  # the scores of four heads, in f32


@pytest.mark.parametrize(("bq", "bk", "number"), [(64, 128, 2), (128, 128, 1), (64, 64, 1)])
def test_a_causal_mask_has_one_pattern_or_two_however_long(bq, bk, number):
    for T in (256, 512, 1024):
        _, _, patterns = classify_blocks(causal(T), bq, bk)
        assert len(patterns) == number


def test_blocks_of_the_causal_picture():
    t, s = np.arange(256)[:, None], np.arange(384)[None, :]
    block_mask, mask_index, patterns = classify_blocks(s <= t, 64, 128)
    assert block_mask.tolist() == [[1, 0, 0], [1, 0, 0], [2, 1, 0], [2, 1, 0]]
    assert mask_index[block_mask == 1].tolist() == [0, 1, 0, 1]
    assert len(patterns) == 2


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


def scalars_in_smem(shape: tuple[int, ...]):
    """A launch whose only prefetched array has this shape."""

    def kernel(table_ref, x_ref, o_ref):
        first = table_ref[0, 0] if len(shape) == 2 else table_ref[0]
        o_ref[...] = x_ref[...] * first.astype(f32)

    spec = pl.BlockSpec((8, 128), lambda i, table_ref: (i, 0))
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(2,), in_specs=[spec], out_specs=spec
    )
    call = pl.pallas_call(kernel, grid_spec=grid, out_shape=S((16, 128), f32), interpret=True)
    with as_tpu():
        return trace_call(call, S(shape, i32), S((16, 128), f32))


@pytest.fixture(scope="module")
def compiler():
    with Compiler() as one:
        yield one


@needs_libtpu
@pytest.mark.slow
def test_rows_of_a_table_in_smem_are_padded_to_128_numbers(compiler):
    def works(*shape):
        return compiler.compile(scalars_in_smem(shape), ["v5e"])["v5e"] is None

    assert works(1024, 16)  # 1024 · 128 · 4 bytes: 512 KiB
    assert works(32_768)
    assert not works(2048, 16)  # as many numbers, but all of SMEM
    assert CHIPS["v5e"].smem_bytes == 2048 * 128 * 4


def test_the_example_of_active_tiles():
    n, p, f = 0, 1, 2
    table = np.array([[f, n, n, n], [p, f, n, n], [f, p, f, n], [n, n, f, p]], np.int32)
    rows, cols, _, flags = active_tiles(table, np.zeros_like(table))
    assert rows.tolist() == [0, 1, 1, 2, 2, 2, 3, 3]
    assert cols.tolist() == [0, 0, 1, 0, 1, 2, 2, 3]
    assert flags.tolist() == [14, 5, 10, 6, 1, 10, 6, 9]
    assert table.shape[0] * (table > 0).sum(axis=1).max() == 12


def test_the_example_of_splash_attention():
    table = np.array([[2, 1, 0], [0, 1, 0], [0, 0, 0], [0, 2, 1]], np.int32)
    index = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]], np.int32)
    rows, cols, masks, flags = active_tiles(table, index)
    assert rows.tolist() == [0, 0, 1, 2, 3, 3]
    assert cols.tolist() == [0, 1, 1, 0, 1, 2]
    assert masks.tolist() == [0, 0, 1, 1, 1, 0]
    assert flags.tolist() == [6, 9, 13, 12, 6, 9]
    assert table.size == 12


def test_a_causal_grid_gains_nothing_by_being_shrunk_and_its_list_does():
    block_mask, mask_index, _ = classify_blocks(causal(1024), 128, 128)
    rows, *_ = active_tiles(block_mask, mask_index)
    widest = (block_mask > 0).sum(axis=1).max()
    assert len(block_mask) * widest == block_mask.size == 64
    assert len(rows) == 36


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


def test_steps_of_long_windows_and_long_lists():
    tiles, _ = graduation.banded_tiles(131_072, 512, window=1024)
    assert len(tiles[0]) == 765
    narrow, _ = graduation.banded_tiles(131_072, 512, window=512)
    assert len(narrow[0]) == 511
    tiles, _ = graduation.banded_tiles(131_072, 512)
    assert len(tiles[0]) == 32_896
    assert sum(x[0].nbytes for x in tiles) == 16
    assert sum(x.nbytes for x in tiles) == pytest.approx(CHIPS["v5e"].smem_bytes / 2, rel=0.01)


def test_entries_that_are_not_used_repeat_the_next_one_that_is():
    masks, kind = np.array([5, 0, 0, 3, 3, 0, 8]), np.array([1, 2, 2, 1, 1, 0, 1])
    assert splash_multi_head.next_used(masks, kind == 1).tolist() == [5, 3, 3, 3, 3, 8, 8]


def test_one_mask_is_walked_by_every_head_and_many_masks_are_one_list():
    q, k = S((4, 256, 64), f32), S((2, 256, 64), f32)
    shared = reference("splash_multi_head", q, k, k, causal(256))
    each = reference("splash_multi_head", q, k, k, np.stack([causal(256)] * 4))
    assert shared.grid == (4, 3)
    assert each.grid == (1, 12)
    assert shared.dimension_semantics[0] == "parallel"
    assert sum(x.smem_bytes for x in each.scalars) == 4 * sum(x.smem_bytes for x in shared.scalars)
    assert len(shared.inputs) == 4  # no segments: no ids
    assert len(reference("splash_multi_head", q, k, k, causal(256) | True).inputs) == 3


@needs_splash
@pytest.mark.parametrize("window", [None, 4096])
def test_equal_work_and_traffic_in_fewer_steps_than_jax(window):
    N, K, T, H, block = 8, 2, 32_768, 128, 512
    q, k = S((N, T, H), bf16), S((K, T, H), bf16)
    tiles, patterns = graduation.banded_tiles(T, block, window)
    mine = graduation.Cost.of(
        puzzles.trace(lambda *x: splash_multi_head.splash_over_tiles(*x, tiles, patterns), q, k, k)
    )
    masks = [graduation._blockwise(T, block, window)] * N
    theirs = graduation.Cost.of(
        puzzles.trace(graduation.production(masks, None, block, block), q, k, k)
    )
    assert (mine.dots, mine.flops) == (theirs.dots, theirs.flops)
    assert mine.bytes == pytest.approx(theirs.bytes, rel=0.001)
    assert mine.steps < theirs.steps
    if window is None:
        assert theirs.steps == N * (T // block) ** 2


@needs_libtpu
@pytest.mark.slow
def test_the_list_of_131072_tokens_compiles_for_every_tpu(compiler):
    tiles, patterns = graduation.banded_tiles(131_072, block=512)
    q, k = S((4, 131_072, 128), bf16), S((1, 131_072, 128), bf16)
    with as_tpu():
        traced = trace_call(
            lambda *x: splash_multi_head.splash_over_tiles(*x, tiles, patterns), q, k, k
        )
    chips = supported_chips()
    assert compiler.compile(traced, chips) == dict.fromkeys(chips)


# Groups and their visits


def visits(sizes, M, bm):
    groups, tiles, steps = (np.asarray(x) for x in tile_metadata(jnp.asarray(sizes, i32), M, bm))
    return groups[:steps].tolist(), tiles[:steps].tolist()


def test_the_examples_of_visits():
    assert visits([100, 0, 156, 200, 56], 512, 128) == ([0, 2, 2, 3, 3, 4], [0, 0, 1, 2, 3, 3])
    assert visits([50, 0, 80, 30, 3], 256, 64) == ([0, 2, 2, 2, 3, 4], [0, 0, 1, 2, 2, 2])
    counts = puzzles.find("tiles_per_group").solution(jnp.array([100, 0, 156, 200, 56]), 128)
    assert counts.tolist() == [1, 0, 2, 2, 1]


def test_sixty_rows_touch_one_tile_or_two():
    counts = puzzles.find("tiles_per_group").solution
    assert counts(jnp.array([60, 68]), 128).tolist() == [1, 1]
    assert counts(jnp.array([100, 60]), 128).tolist() == [1, 2]


def test_visits_are_no_more_than_tiles_and_groups_less_one():
    M, bm, E = 512, 128, 5
    most = 0
    for seed in range(100):
        r = np.random.default_rng(seed)
        sizes = np.diff(np.sort(r.integers(1, M, E - 1)), prepend=0, append=M)
        groups, tiles = visits(sizes, M, bm)
        most = max(most, len(groups))
        assert tiles == sorted(tiles)  # those of one tile are one right after another
        assert groups == sorted(groups)
    assert most == M // bm + E - 1


def test_one_compiled_program_serves_all_sizes():
    traces = []

    @jax.jit
    def lists(sizes):
        traces.append(sizes)
        return tile_metadata(sizes, 512, 128)

    for sizes in ([100, 0, 156, 200, 56], [0, 0, 512, 0, 0], [7, 7, 7, 7, 7]):
        lists(jnp.array(sizes))
    assert len(traces) == 1


# Grouped products


def test_a_permutation_of_three_has_12_bytes():
    launch = reference("permuted_matmul", *puzzles.find("permuted_matmul").arguments(0))
    assert [x.hbm_bytes for x in launch.scalars] == [12]


def test_every_tile_of_every_group_is_fetched_where_no_list_says_which():
    for G in (4, 16, 64):
        starts = jnp.arange(G) * (4096 // G)
        x = S((G, 4096, 256), f32)
        launch = reference("launch_masked_store", x, starts, starts + 4096 // G)
        assert launch.inputs[0].transfers == G * 128
        fetched = launch.inputs[0].blocks.reshape(launch.steps, -1)
        tile, group = fetched[:, 1], fetched[:, 0]
        begins = np.asarray(starts)[group]
        counts = (tile * 64 < begins + 4096 // G) & ((tile + 1) * 64 > begins)
        assert counts.sum() == 128


def body(name: str) -> str:
    """What a rung's kernel does, without the names of its operands and the numbers of its axes."""
    tree = ast.parse(_regions.without_marks(puzzles.find(name).text))
    kernels = [x for x in tree.body if getattr(x, "name", "") == f"{name}_kernel"]
    text = "\n".join(ast.unparse(statement) for statement in kernels[0].body)
    return text.replace("lhs_ref", "a_ref").replace("rhs_ref", "b_ref")


def test_the_kernel_for_whole_tiles_is_tiled_matmuls():
    assert body("grouped_matmul_aligned") == body("tiled_matmul")


def test_weights_that_no_token_needs_are_never_fetched():
    lhs, rhs = S((384, 256), f32), S((4, 256, 512), f32)
    launch = reference("grouped_matmul_aligned", lhs, rhs, jnp.array([64, 0, 128, 192]))
    assert np.unique(launch.inputs[1].blocks[:, 0]).tolist() == [0, 2, 3]
    groups = launch.inputs[1].blocks[:, 0].reshape(launch.grid)[:, 0, 0]
    assert groups.tolist() == [0, 2, 2, 3, 3, 3]


def test_more_experts_take_the_same_steps_and_bytes_and_a_longer_list():
    lhs = S((8192, 1024), f32)
    few, many = (
        reference("grouped_matmul_aligned", lhs, S((E, 1024, 512), f32), jnp.full(E, 8192 // E))
        for E in (8, 64)
    )
    assert few.grid == many.grid
    assert sum(x.hbm_bytes for x in few.inputs) == sum(x.hbm_bytes for x in many.inputs)
    assert (few.dot_flops, few.vmem_bytes) == (many.dot_flops, many.vmem_bytes)
    assert [sum(x.smem_bytes for x in one.scalars) for one in (few, many)] == [540, 764]


def test_lhs_is_read_anew_for_each_column_of_blocks():
    sizes = jnp.array([128, 256, 128])
    found = [
        reference("launch_grouped_matmul", S((512, 128), f32), S((3, 128, N), f32), sizes)
        for N in (256, 512, 1024)
    ]
    assert [x.grid[0] for x in found] == [1, 2, 4]
    assert [x.inputs[0].hbm_bytes for x in found] == [n * 512 * 128 * 4 for n in (1, 2, 4)]
    puzzle = puzzles.find("launch_grouped_matmul")
    other = puzzles.mutate(puzzle, puzzle.mistake("puts the visits outermost"))
    shapes = S((512, 512), f32), S((3, 512, 512), f32), sizes
    (theirs,), ours = puzzles.trace(other, *shapes), reference("launch_grouped_matmul", *shapes)
    assert (theirs.grid, ours.grid) == ((4, 2, 4), (2, 4, 4))
    assert theirs.inputs[0].hbm_bytes == ours.inputs[0].hbm_bytes == 2 * 512 * 512 * 4


def test_the_gradient_of_a_grouped_product_is_two_of_the_rungs():
    sizes, r = jnp.array([50, 0, 30]), np.random.default_rng(0)
    x, w, dy = (r.normal(size=s) for s in ((80, 8), (3, 8, 4), (80, 4)))
    ends = np.cumsum(sizes)
    y, back = jax.vjp(
        lambda x, w: jnp.concatenate(
            [x[end - n : end] @ w[e] for e, (n, end) in enumerate(zip(sizes, ends, strict=True))]
        ),
        jnp.asarray(x, f32),
        jnp.asarray(w, f32),
    )
    dx, dw = back(jnp.asarray(dy, y.dtype))
    for e, (n, end) in enumerate(zip(sizes, ends, strict=True)):
        mine = slice(int(end - n), int(end))
        np.testing.assert_allclose(dx[mine], dy[mine] @ w[e].T, atol=1e-4)
        np.testing.assert_allclose(dw[e], x[mine].T @ dy[mine], atol=1e-4)


def test_one_visit_an_empty_group_costs_less_than_clearing_all_weights():
    gmm = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    K, N, sizes = 512, 512, [100, 0, 156, 200, 56]
    lhs, rhs, groups = S((512, K), f32), S((512, N), f32), jnp.array(sizes)

    def production(lhs, rhs, groups):
        tiling = 64, 128, 128
        return gmm.tgmm(lhs.swapaxes(0, 1), rhs, groups, f32, tiling, interpret=True)

    mine, theirs = reference("grouped_outer", lhs, rhs, groups), one(production, lhs, rhs, groups)
    assert theirs.steps - mine.steps == (K // 128) * (N // 128)  # one visit for each block
    moved = [sum(x.hbm_bytes for x in one.inputs + one.outputs) for one in (mine, theirs)]
    assert moved[0] < moved[1] < moved[0] + len(sizes) * K * N * 4


def test_the_example_of_slots():
    experts = jnp.array([2, 0, 2, 1, 0, 2])
    order = jnp.argsort(experts)
    assert order.tolist() == [1, 4, 3, 0, 2, 5]
    assert (order // 2).tolist() == [0, 2, 1, 0, 1, 2]
    assert jnp.argsort(order).tolist() == [3, 0, 4, 2, 1, 5]
    assert jnp.bincount(experts, length=3).tolist() == [2, 1, 3]


def test_jax_does_not_differentiate_a_grouped_matmul():
    solution, sizes = puzzles.find("grouped_matmul").solution, jnp.array([64])
    with pytest.raises(NotImplementedError):
        jax.vjp(lambda w: solution(jnp.ones((64, 128)), w, sizes), jnp.ones((1, 128, 128)))


def test_the_gradient_of_a_gather_is_a_scatter_add():
    order = jnp.array([1, 1, 0])
    gradient = jax.make_jaxpr(jax.grad(lambda x: x[order].sum()))(jnp.ones((4, 3)))
    names = [str(one.primitive) for one in gradient.eqns]
    assert "gather" in names
    assert names[-1] == "scatter-add"


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
    tiles = int(tile_metadata(sizes, M * top_k, 512)[2])
    shared = tiles - M * top_k // 512  # visits to a tile beyond its first
    slots = 9 * 2 * M * top_k * D * F
    computed = sum(one.dot_flops for one in launches)
    assert computed - slots == 9 * 2 * shared * 512 * D * F > 0
    smaller = int(tile_metadata(sizes, M * top_k, 128)[2]) - M * top_k // 128
    assert smaller * 128 < shared * 512


def test_ragged_dot_is_one_operation_on_a_tpu():
    shapes = S((8, 4), f32), S((2, 4, 3), f32), S((2,), i32)
    traced = jax.jit(lambda *x: jax.lax.ragged_dot(*x)).trace(*shapes)
    assert "chlo.ragged_dot" in traced.lower(lowering_platforms=("tpu",)).as_text()


def test_interpret_finds_zeros_where_a_tpu_has_garbage():
    puzzle = puzzles.find("grouped_matmul")
    never = puzzles.mutate(puzzle, puzzle.mistake("never clears the other rows"))
    args = puzzle.arguments(0)
    np.testing.assert_array_equal(never(*args), puzzle.solution(*args))
