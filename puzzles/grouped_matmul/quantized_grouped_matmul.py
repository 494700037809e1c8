"""Puzzle 16: weights of one byte each."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int, Int8

from puzzles import INTERPRET, find

# %% [markdown]
# ## quantized_grouped_matmul: one byte per weight
#
# With few rows per expert, most of the traffic is weights. As **int8** they have a quarter of f32's
# bytes. Quantised means that `w` is nearly `q * s`: an integer `q` for each weight, an f32 scale
# `s` for each *column* of each expert.
#
# All weights of a column have the same scale, so it comes out of the sum over `k`:
#
# $$\sum_k x_{mk}\, (q_{kn} s_n) \;=\; s_n \sum_k x_{mk}\, q_{kn}$$
#
# So the kernel can sum products with the integers, and multiply by the scale **once**, at the last `k`:
#
# ```text
# rhs_ref, int8 ── bf16 ──┐
# lhs_ref ─────────────── × ──→ acc_ref, f32 ──┐
# scales_ref, a row ────────────────────────── × ──→ o_ref, own rows only
# ```
#
# In the kernel, in VMEM, a block of integers becomes bf16. Nothing is lost: bf16 holds integers up to
# 256 exactly.
#
# `scales` is (E, 1, N), not (E, N): a block of one row is legal only if the axis has one row. Write its
# `BlockSpec`, the sum, and the value to store.


# %%
def quantized_grouped_matmul_spec(
    lhs: Float[Array, "M K"],
    rhs_q: Int8[Array, "E K N"],
    scales: Float[Array, "E 1 N"],
    group_sizes: Int[Array, " E"],
) -> Float[Array, "M N"]:
    row, ends = jnp.arange(lhs.shape[0]), jnp.cumsum(group_sizes)
    group = jnp.sum(row[:, None] >= ends, axis=1)  # of each row; E if it has no group
    weights = rhs_q.astype(jnp.float32) * scales
    each = jnp.einsum("mk,ekn->emn", lhs.astype(jnp.float32), weights)
    return each.at[group, row].get(mode="fill", fill_value=0).astype(lhs.dtype)


# %%
# `tiles` also fits: two buffers of int8 and a bf16 copy take as many bytes as two buffers of bf16
from puzzles.grouped_matmul._sizes import check_sizes
from puzzles.grouped_matmul.grouped_matmul import tiles


def quantized_grouped_matmul_kernel(
    offsets_ref, group_ids_ref, tile_ids_ref,
    lhs_ref, rhs_ref, scales_ref, zeros_ref, o_ref, acc_ref,
):  # fmt: skip
    step, k = pl.program_id(1), pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    ### BEGIN SOLUTION
    weights = rhs_ref[...].astype(jnp.bfloat16)
    acc_ref[...] += jnp.dot(lhs_ref[...], weights, preferred_element_type=jnp.float32)
    ### END SOLUTION

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        group, tile = group_ids_ref[step], tile_ids_ref[step]
        row = tile * o_ref.shape[0] + jax.lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
        mine = (offsets_ref[group] <= row) & (row < offsets_ref[group + 1])
        first = (step == 0) | (tile != tile_ids_ref[jnp.maximum(step - 1, 0)])
        others = jnp.where(first, 0.0, o_ref[...].astype(jnp.float32))
        ### BEGIN SOLUTION
        scaled = acc_ref[...] * scales_ref[...]
        o_ref[...] = jnp.where(mine, scaled, others).astype(o_ref.dtype)
        ### END SOLUTION


def quantized_grouped_matmul(
    lhs: Float[Array, "M K"],
    rhs_q: Int8[Array, "E K N"],
    scales: Float[Array, "E 1 N"],
    group_sizes: Int[Array, " E"],
) -> Float[Array, "M N"]:
    (M, K), (E, rows, N) = lhs.shape, rhs_q.shape
    if (E, rows) != (len(group_sizes), K):
        raise ValueError(
            f"{len(group_sizes)} groups and K={K} do not fit rhs_q of shape {rhs_q.shape}"
        )
    if scales.shape != (E, 1, N):
        raise ValueError(
            f"scales of shape {scales.shape}: one for each column, {(E, 1, N)}, as "
            "jnp.broadcast_to makes them"
        )
    check_sizes(group_sizes, M)
    bm, bk, bn = tiles(M, K, N, lhs.dtype, E=E)
    offsets = find("group_offsets").solution(group_sizes)
    whole = pl.cdiv(M, bm) * bm  # the last tile may hang over
    group_ids, tile_ids, num_steps = find("tile_metadata").solution(group_sizes, whole, bm)
    return pl.pallas_call(
        quantized_grouped_matmul_kernel,
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
                    (None, 1, bn), lambda j, s, k, offsets, groups, tiles: (groups[s], 0, j)
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
# 512 requests decode one token each, with 64 experts and 1024 × 4096 weights of 4, 2
# and 1 bytes. The table shows the bytes that the reference's launch moves, and the least time that
# a v5e takes to move them. (With f32 weights, the reference's blocks would need more VMEM than a
# kernel gets by default.)

# %% active="ipynb"
# M, K, N, E, S = 512, 1024, 4096, 64, jax.ShapeDtypeStruct
# lhs, scales, sizes = S((M, K), jnp.bfloat16), S((E, 1, N), jnp.float32), jnp.full(E, M // E)
# for dtype in (jnp.float32, jnp.bfloat16, jnp.int8):
#     quantised = dtype == jnp.int8
#     name = "quantized_grouped_matmul" if quantised else "grouped_matmul"
#     weights = [S((E, K, N), dtype), *([scales] if quantised else [])]
#     (one,) = trace(find(name).solution, lhs, *weights, sizes)
#     moved, fetched = one.hbm_bytes, one.inputs[1].hbm_bytes
#     print(f"{jnp.dtype(dtype).name:9}{moved / 2**20:6.0f} MiB, {fetched / 2**20:5.0f} of them weights;", end="")
#     print(f"{1e3 * moved / 820e9:6.2f} ms at least")

# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array, rng
from puzzles.grouped_matmul import grouped_matmul
from puzzles.grouped_matmul.fused_gate_up import fresh
from puzzles.grouped_matmul.grouped_matmul import rows_of


def quantised(weights):
    """int8 and scales, the largest number of each column being 127."""
    scales = np.abs(weights).max(axis=1, keepdims=True) / 127
    return array(np.round(weights / scales), jnp.int8), array(scales, jnp.float32)


def make_inputs(key, M, K, N, sizes=(), dtype="float32", E=0):
    r, sizes = rng(key), sizes or grouped_matmul.crowd(E, M)
    weights = r.normal(size=(len(sizes), K, N)) * r.uniform(0.5, 2, size=(len(sizes), 1, N))
    rows = rows_of(r, M, K, sizes, dtype)
    return rows, *quantised(weights), array(sizes, jnp.int32)


def scale(M=70_000, K=8192, N=4096, E=160):
    lhs, rhs = jax.ShapeDtypeStruct((M, K), jnp.bfloat16), jax.ShapeDtypeStruct((E, K, N), jnp.int8)
    return lhs, rhs, jax.ShapeDtypeStruct((E, 1, N), jnp.float32), grouped_matmul.routed(E, M - 100)


PUZZLE = Puzzle(
    spec=quantized_grouped_matmul_spec,
    solution=quantized_grouped_matmul,
    inputs=make_inputs,
    cases=[
        dict(M=128, K=256, N=384, sizes=(50, 0, 40, 3)),
        # many experts; no visit to the last tile, and tiles that hang over
        dict(M=100, K=128, N=200, E=144, dtype="bfloat16"),
    ],
    hints=[
        "A factor that does not depend on k can be multiplied once, when the sum is complete. "
        "Whose scales does a visit need, and of which columns?",
        "`x.astype(jnp.bfloat16)` works on a block of int8. A block of `scales` has the "
        "expert's axis squeezed, the one row, and the columns of the output's block; (1, bn) "
        "broadcasts along the rows of a sum.",
        "At every k: cast, dot with an f32 result, add. At the last k: sum times scales, a "
        "`jnp.where` between that and the others, a cast, one store. The BlockSpec: `None`, 1, "
        "bn; group of the visit, 0, j.",
    ],
    explain="""One byte per weight crosses from HBM to VMEM, and only there it becomes a float.
    The scales do not depend on k, so they can leave the sum: the reference multiplies one block
    of sums by them instead of every block of weights.""",
    waivers={"signed": "a scale is a positive number: signs are the integers' matter"},
    scale=scale,
    par=grouped_matmul.par,
    fresh=fresh,
)
