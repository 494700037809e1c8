"""Puzzle 17: a scale for each block of K."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, Int8

from puzzles import INTERPRET, find

# %% [markdown]
# ## block_scaled_grouped_matmul: scales that change along K
#
# The largest weight of a column sets the column's scale, so one outlier costs all others their
# precision. Confine the damage: a scale holds for a **block of 128 weights along K** only (in DeepSeek-V3, 2024, for
# 128 × 128). From which part of the sum can you take the scale out now?
#
# $$\sum_k x_{mk}\, q_{kn}\, s_{b,n}, \qquad b = \lfloor k / 128 \rfloor$$
#
# At the last k it is too late: by then the blocks are mixed. But *within* a block the scale is
# constant. So each block's product is scaled **before** it is added:
#
# ```text
# lhs_ref     (bm, bk)        │ b = 0 │ b = 1 │ b = 2 │ b = 3 │      bk = 512
# rhs_ref     (bk, bn)            ×       ×       ×       ×          four products of 128 terms
# scales_ref  (bk/128, 1, bn)   · s₀    · s₁    · s₂    · s₃
#                                 └───────┴───┬───┴───────┘
#                                          acc_ref
# ```
#
# ![Two visits of two steps each: with every bk of K come its scales, and the sum is stored after the last.](diagrams/grouped_matmul/block_scaled_grouped_matmul.svg)
#
# `scales` is (E, K/128, 1, N). Write the `BlockSpec` of the scales that a step needs, and the sum. A Python
# `for` over the blocks of a step is unrolled.


# %%
def block_scaled_grouped_matmul_spec(
    lhs: Float[Array, "M K"],
    rhs_q: Int8[Array, "E K N"],
    scales: Float[Array, "E B 1 N"],  # B = K / 128
    group_sizes: Int[Array, " E"],
) -> Float[Array, "M N"]:
    row, ends = jnp.arange(lhs.shape[0]), jnp.cumsum(group_sizes)
    group = jnp.sum(row[:, None] >= ends, axis=1)  # of each row; E if it has no group
    weights = rhs_q.astype(jnp.float32) * jnp.repeat(scales[:, :, 0], 128, axis=1)
    each = jnp.einsum("mk,ekn->emn", lhs.astype(jnp.float32), weights)
    return each.at[group, row].get(mode="fill", fill_value=0).astype(lhs.dtype)


# %%
from puzzles.grouped_matmul._sizes import check_sizes
from puzzles.grouped_matmul.grouped_matmul import tiles  # bk is a multiple of 128 if K is


def block_scaled_grouped_matmul_kernel(
    offsets_ref, group_ids_ref, tile_ids_ref,
    lhs_ref, rhs_ref, scales_ref, zeros_ref, o_ref, acc_ref,
):  # fmt: skip
    step, k = pl.program_id(1), pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    ### BEGIN SOLUTION
    for b in range(scales_ref.shape[0]):
        block = slice(128 * b, 128 * (b + 1))
        weights = rhs_ref[block, :].astype(jnp.bfloat16)
        product = jnp.dot(lhs_ref[:, block], weights, preferred_element_type=jnp.float32)
        acc_ref[...] += product * scales_ref[b]
    ### END SOLUTION

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        group, tile = group_ids_ref[step], tile_ids_ref[step]
        row = tile * o_ref.shape[0] + jax.lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
        mine = (offsets_ref[group] <= row) & (row < offsets_ref[group + 1])
        first = (step == 0) | (tile != tile_ids_ref[jnp.maximum(step - 1, 0)])
        others = jnp.where(first, 0.0, o_ref[...].astype(jnp.float32))
        o_ref[...] = jnp.where(mine, acc_ref[...], others).astype(o_ref.dtype)


def block_scaled_grouped_matmul(
    lhs: Float[Array, "M K"],
    rhs_q: Int8[Array, "E K N"],
    scales: Float[Array, "E B 1 N"],
    group_sizes: Int[Array, " E"],
) -> Float[Array, "M N"]:
    (M, K), (E, rows, N) = lhs.shape, rhs_q.shape
    if (E, rows) != (len(group_sizes), K):
        raise ValueError(
            f"{len(group_sizes)} groups and K={K} do not fit rhs_q of shape {rhs_q.shape}"
        )
    if K % 128 or scales.shape != (E, K // 128, 1, N):
        raise ValueError(
            f"scales of shape {scales.shape}: one for each column and each 128 terms of K={K}, "
            f"a multiple of 128: {(E, K // 128, 1, N)}"
        )
    check_sizes(group_sizes, M)
    bm, bk, bn = tiles(M, K, N, lhs.dtype, E=E)
    offsets = find("group_offsets").solution(group_sizes)
    whole = pl.cdiv(M, bm) * bm  # the last tile may hang over
    group_ids, tile_ids, num_steps = find("tile_metadata").solution(group_sizes, whole, bm)
    return pl.pallas_call(
        block_scaled_grouped_matmul_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(pl.cdiv(N, bn), num_steps, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda j, s, k, offsets, groups, tiles: (tiles[s], k)),
                pl.BlockSpec(
                    (None, bk, bn), lambda j, s, k, offsets, groups, tiles: (groups[s], k, j)
                ),
                ### BEGIN SOLUTION
                pl.BlockSpec(
                    (None, bk // 128, 1, bn),
                    lambda j, s, k, offsets, groups, tiles: (groups[s], k, 0, j),
                ),
                ### END SOLUTION
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda j, s, k, offsets, groups, tiles: (tiles[s], j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), lhs.dtype),
        input_output_aliases={6: 0},
        interpret=INTERPRET,
    )(offsets, group_ids, tile_ids, lhs, rhs_q, scales, jnp.zeros((M, N), lhs.dtype))


# %% [markdown]
# What do you gain from scales for each block, and what do they cost? Below, one weight in 1000 is 20 times as
# large. The scales are more bytes now. And for every block, the vector unit multiplies and adds a tile of results.

# %% active="ipynb"
# from puzzles.grouped_matmul.block_scaled_grouped_matmul import quantised
#
# E, M, K, N = 8, 512, 2048, 1024
# r = np.random.default_rng(0)
# w = r.normal(size=(E, K, N)) * np.where(r.random((E, K, N)) < 0.001, 20, 1)
# lhs, sizes = jnp.asarray(r.normal(size=(M, K)), jnp.float32), jnp.full(E, M // E)
# want = np.concatenate([np.float64(x) @ one for x, one in zip(np.split(lhs, E), w)])
# for block, name in ((K, "quantized_grouped_matmul"), (128, "block_scaled_grouped_matmul")):
#     q, scales = quantised(w, block)
#     scales = scales[:, 0] if block == K else scales
#     got = find(name).solution(lhs, q, scales, sizes)
#     off = np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2))
#     print(f"{name:28} off by {off:.1%}; scales are {scales.nbytes / q.nbytes:.1%} of the weights")

# %% [markdown]
# **A layer from three kernels.** Each device has its share of the experts. Gate and
# up are one launch; down is `local_experts`, or `quantized_grouped_matmul` with int8 weights.
# `fused_gate_up` and `quantized_grouped_matmul` expect the device's own rows in front. So these
# rows are rolled to the front; the rows after them belong to no group. The kernels are yours, or
# the reference's until yours pass; the rest is plain JAX. The result is compared with a dense
# mixture.

# %% active="ipynb"
# from puzzles import checked
# from puzzles.grouped_matmul.moe_layer import moe_layer_spec, route
#
# names = "fused_gate_up", "local_experts", "quantized_grouped_matmul"
# kernels, whose = zip(*map(checked, names))
# gate_up, local, quantized = kernels
#
#
# def served(x, logits, w_gate, w_up, w_down, integers, scales):
#     """Return the results for both kinds of weights, summed over the devices."""
#     rows, weights, order, sizes = route(x, logits, top_k)
#     first, L = len(w_gate) * jax.lax.axis_index("expert"), len(w_gate)
#     start = jnp.sum(jnp.where(jnp.arange(len(sizes)) < first, sizes, 0))  # of the own rows
#     own = jax.lax.dynamic_slice(sizes, (first,), (L,))
#     hidden = gate_up(jnp.roll(rows, -start, axis=0), w_gate, w_up, own)
#     down = local(jnp.roll(hidden, start, axis=0), w_down, sizes, first)
#     down_int8 = jnp.roll(quantized(hidden, integers, scales, own), start, axis=0)
#     back = jnp.argsort(order)
#     answers = (out[back].reshape(*weights.shape, -1) for out in (down, down_int8))
#     return jax.lax.psum([jnp.einsum("mk,mkd->md", weights, one) for one in answers], "expert")
#
#
# M, D, F, E, top_k, r = 60, 128, 256, 8, 2, np.random.default_rng(0)
# shapes = (M, D), (M, E), (E, D, F), (E, D, F), (E, F, D)
# x, logits, *w_in, w_down = (jnp.asarray(r.normal(size=s) / s[-2] ** 0.5, jnp.float32) for s in shapes)
# scales = jnp.abs(w_down).max(axis=1, keepdims=True) / 127
# integers = jnp.round(w_down / scales).astype(jnp.int8)
# chips, P = np.array(jax.devices()[:4]), jax.sharding.PartitionSpec
# mesh, specs = jax.sharding.Mesh(chips, ("expert",)), (P(), P(), *[P("expert")] * 5)
# layer = jax.shard_map(served, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
# results = jax.jit(layer)(x, logits, *w_in, w_down, integers, scales)
# meant = [moe_layer_spec(x, logits, *w_in, down, top_k) for down in (w_down, integers * scales)]
# for kind, got, want in zip(("f32", "int8"), results, meant):
#     limit = 1e-5 if INTERPRET else 1e-2  # a TPU rounds the factors of f32 products to bf16
#     assert np.abs(got - want).max() < limit * np.abs(want).max()
#     off = float(jnp.sqrt(jnp.mean((got - meant[0]) ** 2) / jnp.mean(meant[0] ** 2)))
#     print(f"{len(chips)} devices, {kind:4} down: {off:.0e} off the dense mixture in f32")
# print(*(f"{name}: {one}" for name, one in zip(names, whose)), sep=", ")

# %% [markdown]
# **Is it fast?** Only a TPU can tell. There the next cell times your `grouped_matmul` (the reference's,
# until yours passes its check), `jax.lax.ragged_dot`, which XLA compiles, and JAX's Megablox. On a CPU it
# prints receipts: the bytes moved, and the useful FLOPs per byte. The bytes include the zeros that XLA
# writes before our launch, 128 MiB and 4 MiB. Megablox writes none, and leaves garbage in unassigned
# rows. The first layer is in training; the second decodes, one token of each sequence.

# %% active="ipynb"
# from puzzles import checked
#
#
# def milliseconds(fn, *shapes, repeats=10):
#     """Return the host's time for a run. Operands are ones: data hardly change the time, shapes and sizes do."""
#     import time
#
#     *data, sizes = shapes
#     run, operands = jax.jit(fn), (*(jnp.ones(s.shape, s.dtype) for s in data), sizes)
#     jax.block_until_ready(run(*operands))
#     start = time.perf_counter()
#     for _ in range(repeats):
#         result = run(*operands)
#     jax.block_until_ready(result)
#     return 1e3 * (time.perf_counter() - start) / repeats
#
#
# fn, whose = checked("grouped_matmul")
# rivals = {whose: fn, "ragged_dot": jax.lax.ragged_dot}
# if find_spec("jax.experimental.pallas.ops.tpu.megablox"):
#     from jax.experimental.pallas.ops.tpu.megablox import gmm
#
#     options = dict(preferred_element_type=jnp.bfloat16, tiling=lambda m, *_: (512 if m > 4096 else 128, 1024, 1024))
#     rivals["Megablox"] = functools.partial(gmm, **options, interpret=INTERPRET)
#
# K, N = 2048, 4096
# for M, E in ((16384, 8), (512, 64)):
#     sizes = jnp.full(E, M // E, jnp.int32)
#     shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((M, K), (E, K, N))]
#     print(f"{M} rows, {E} experts")
#     for name, fn in rivals.items():
#         launches = trace(fn, *shapes, sizes)
#         moved = sum(one.hbm_bytes + 2 * M * N * len(one.aliases) for one in launches)
#         row = f"{moved / 2**20:6.0f} MiB{2 * M * K * N / moved:6.0f} FLOP/byte" if moved else "no receipt"
#         measured = "" if INTERPRET else f"{milliseconds(fn, *shapes, sizes):9.2f} ms"
#         print(f"  {name:16}{row:28}{measured}")
# if "Megablox" in rivals:
#     print(f"Megablox: jax/experimental/pallas/ops/tpu/megablox/gmm.py, JAX {jax.__version__}")
# if INTERPRET:
#     print("This is a CPU: only a TPU can tell how long each takes.")

# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array, rng
from puzzles.grouped_matmul import grouped_matmul
from puzzles.grouped_matmul.fused_gate_up import fresh
from puzzles.grouped_matmul.grouped_matmul import rows_of


def quantised(weights, block=128):
    """int8 and scales, the largest number of each block of a column being 127."""
    E, K, N = weights.shape
    blocks = weights.reshape(E, K // block, block, N)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / 127
    integers = np.round(blocks / scales).reshape(weights.shape)
    return array(integers, jnp.int8), array(scales, jnp.float32)


def make_inputs(key, M, K, N, sizes=(), dtype="float32", E=0):
    r, sizes = rng(key), sizes or grouped_matmul.crowd(E, M)
    size = r.uniform(0.5, 2, size=(len(sizes), K // 128, 1, N))
    weights = r.normal(size=(len(sizes), K, N)) * np.repeat(size[:, :, 0], 128, axis=1)
    rows = rows_of(r, M, K, sizes, dtype)
    return rows, *quantised(weights), array(sizes, jnp.int32)


def scale(M=70_000, K=8192, N=4096, E=160):
    lhs, rhs = jax.ShapeDtypeStruct((M, K), jnp.bfloat16), jax.ShapeDtypeStruct((E, K, N), jnp.int8)
    scales = jax.ShapeDtypeStruct((E, K // 128, 1, N), jnp.float32)
    return lhs, rhs, scales, grouped_matmul.routed(E, M - 100)


PUZZLE = Puzzle(
    spec=block_scaled_grouped_matmul_spec,
    solution=block_scaled_grouped_matmul,
    inputs=make_inputs,
    cases=[
        dict(M=128, K=256, N=384, sizes=(50, 0, 40, 3)),  # a block of 128 in each step
        dict(M=32, K=2048, N=128, sizes=(12, 0, 9)),  # all blocks in a step
        # several blocks in a step, several steps
        dict(M=96, K=14_336, N=128, sizes=(40, 0, 30), dtype="bfloat16"),
        # many experts; no visit to the last tile, and tiles that hang over
        dict(M=100, K=128, N=200, E=144, dtype="bfloat16"),
    ],
    hints=[
        "Inside a block of 128 terms the scale is constant, so it comes out of that block's sum, "
        "and of no other. How many such sums does a step have?",
        "`rhs_ref[128 * b : 128 * (b + 1), :]` is the weights of block b; the same slice of "
        "`lhs_ref`'s columns belongs to it. `scales_ref[b]` is (1, bn). The BlockSpec has the "
        "expert's axis squeezed, all scales of a step, the one row, and the output block's "
        "columns.",
        "For each block of the step: cast its integers, one dot with an f32 result, times its "
        "scales, added to the accumulator. The BlockSpec: `None`, bk // 128, 1, bn; group of the "
        "visit, k, 0, j.",
    ],
    explain="""A factor leaves a sum only as far as it is constant: here for 128 terms. So the
    reference makes one product for each block, scales it in f32 while it is still apart, and adds
    it to the others. The weights still cross from HBM as single bytes.""",
    waivers={"signed": "a scale is a positive number: signs are the integers' matter"},
    scale=scale,
    par=grouped_matmul.par,
    fresh=fresh,
)
