"""Puzzle 14: gate and up-projection in one visit."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## fused_gate_up: one visit, two products
#
# An expert begins with two products of the same rows: `silu(x @ w_gate) * (x @ w_up)`. `moe_layer`
# used two launches for them. Both read the rows, both wrote a result to HBM, and XLA read the results
# back to multiply them.
#
# One visit can do it all. Two blocks of weights come with each block of rows, each product has its
# **own accumulator**, and at the last `k` both sums are complete, in VMEM:
#
# ```text
# rows ──┬── × gate ──→ gate_ref ── silu ──┐
#        └── × up ────→ up_ref ─────────── × ──→ o_ref, own rows only
# ```
#
# The activation needs the *whole* sum: do not apply it before the last `k`. The rest of the kernel is
# given. Write the two sums, and the value to store.


# %%
def fused_gate_up_spec(
    lhs: Float[Array, "M K"],
    w_gate: Float[Array, "E K N"],
    w_up: Float[Array, "E K N"],
    group_sizes: Int[Array, " E"],
) -> Float[Array, "M N"]:
    row, ends = jnp.arange(lhs.shape[0]), jnp.cumsum(group_sizes)
    group = jnp.sum(row[:, None] >= ends, axis=1)  # of each row; E if it has no group
    gate, up = (
        jnp.einsum("mk,ekn->emn", lhs, w, preferred_element_type=jnp.float32)
        for w in (w_gate, w_up)
    )
    each = jax.nn.silu(gate) * up
    return each.at[group, row].get(mode="fill", fill_value=0).astype(lhs.dtype)


# %%
from puzzles.grouped_matmul._sizes import check_sizes
from puzzles.grouped_matmul.grouped_matmul import tiles  # given there


def fused_gate_up_kernel(
    offsets_ref, group_ids_ref, tile_ids_ref, lhs_ref, w_gate_ref, w_up_ref, zeros_ref, o_ref,
    gate_ref, up_ref,
):  # fmt: skip
    step, k = pl.program_id(1), pl.program_id(2)

    @pl.when(k == 0)
    def _():
        gate_ref[...] = jnp.zeros_like(gate_ref)
        up_ref[...] = jnp.zeros_like(up_ref)

    ### BEGIN SOLUTION
    x = lhs_ref[...]
    gate_ref[...] += jnp.dot(x, w_gate_ref[...], preferred_element_type=jnp.float32)
    up_ref[...] += jnp.dot(x, w_up_ref[...], preferred_element_type=jnp.float32)
    ### END SOLUTION

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        group, tile = group_ids_ref[step], tile_ids_ref[step]
        row = tile * o_ref.shape[0] + jax.lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
        mine = (offsets_ref[group] <= row) & (row < offsets_ref[group + 1])
        first = (step == 0) | (tile != tile_ids_ref[jnp.maximum(step - 1, 0)])
        others = jnp.where(first, 0.0, o_ref[...].astype(jnp.float32))
        ### BEGIN SOLUTION
        hidden = jax.nn.silu(gate_ref[...]) * up_ref[...]
        o_ref[...] = jnp.where(mine, hidden, others).astype(o_ref.dtype)
        ### END SOLUTION


def fused_gate_up(
    lhs: Float[Array, "M K"],
    w_gate: Float[Array, "E K N"],
    w_up: Float[Array, "E K N"],
    group_sizes: Int[Array, " E"],
) -> Float[Array, "M N"]:
    (M, K), (E, rows, N) = lhs.shape, w_gate.shape
    if (E, rows) != (len(group_sizes), K) or w_up.shape != w_gate.shape:
        weights = f"weights of shapes {w_gate.shape} and {w_up.shape}"
        raise ValueError(f"{len(group_sizes)} groups and K={K} do not fit {weights}")
    check_sizes(group_sizes, M)
    bm, bk, bn = tiles(M, K, N, lhs.dtype, weights=2, E=E)
    offsets = find("group_offsets").solution(group_sizes)
    whole = pl.cdiv(M, bm) * bm  # the last tile may hang over
    group_ids, tile_ids, num_steps = find("tile_metadata").solution(group_sizes, whole, bm)
    weights = pl.BlockSpec(
        (None, bk, bn), lambda j, s, k, offsets, groups, tiles: (groups[s], k, j)
    )
    return pl.pallas_call(
        fused_gate_up_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(pl.cdiv(N, bn), num_steps, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda j, s, k, offsets, groups, tiles: (tiles[s], k)),
                weights,
                weights,
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda j, s, k, offsets, groups, tiles: (tiles[s], j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32), pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), lhs.dtype),
        input_output_aliases={6: 0},
        interpret=INTERPRET,
    )(offsets, group_ids, tile_ids, lhs, w_gate, w_up, jnp.zeros((M, N), lhs.dtype))


# %% [markdown]
# What does the reference save, at the shapes of Mixtral and 8192 tokens? Two launches would read
# the rows twice and write two results. XLA would then read both and write their product.

# %% active="ipynb"
# M, K, N, E = 16384, 4096, 14336, 8
# lhs, w = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((M, K), (E, K, N)))
# sizes = jnp.full(E, M // E)
# (fused,) = trace(find("fused_gate_up").solution, lhs, w, w, sizes)
# (each,) = trace(find("grouped_matmul").solution, lhs, w, sizes)
# print(f"one launch    {fused.hbm_bytes / 2**30:5.2f} GiB")
# print(f"two launches  {2 * each.hbm_bytes / 2**30:5.2f} GiB, and {3 * M * N * 2 / 2**30:.2f} to multiply")

# %% [markdown]
# **And it trains.** The two sums were never stored, so the rule computes them again.
# Then it takes silu's derivative, and calls `grouped_matmul_transposed` and `grouped_outer` for
# each of the two products. Forward and backward, that makes seven launches.


# %%
@jax.custom_vjp
def gated(lhs, w_gate, w_up, group_sizes):
    return find("fused_gate_up").solution(lhs, w_gate, w_up, group_sizes)


def gated_forward(lhs, w_gate, w_up, group_sizes):
    return gated(lhs, w_gate, w_up, group_sizes), (lhs, w_gate, w_up, group_sizes)


def gated_backward(saved, dy):
    lhs, w_gate, w_up, sizes = saved
    product, outer = find("grouped_matmul").solution, find("grouped_outer").solution
    transposed = find("grouped_matmul_transposed").solution
    sums = product(lhs, w_gate, sizes), product(lhs, w_up, sizes)
    _, pullback = jax.vjp(lambda gate, up: jax.nn.silu(gate) * up, *sums)
    d_gate, d_up = pullback(dy)
    d_lhs = transposed(d_gate, w_gate, sizes) + transposed(d_up, w_up, sizes)
    return d_lhs, outer(lhs, d_gate, sizes), outer(lhs, d_up, sizes), None


gated.defvjp(gated_forward, gated_backward)

# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.grouped_matmul import grouped_matmul
from puzzles.grouped_matmul.grouped_matmul import rows_of


def make_inputs(key, M, K, N, sizes=(), dtype="float32", E=0):
    r, sizes = rng(key), sizes or grouped_matmul.crowd(E, M)
    gate, up = (r.normal(size=(len(sizes), K, N)) / K**0.5 for _ in range(2))
    gate[0] *= 40  # beyond what exp takes in f32
    weights = (array(one, dtype) for one in (gate, up))
    return rows_of(r, M, K, sizes, dtype), *weights, array(sizes, jnp.int32)


def scale(M=70_000, K=4096, N=4096, E=160):
    shapes = (M, K), (E, K, N), (E, K, N)
    lhs, gate, up = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    return lhs, gate, up, grouped_matmul.routed(E, M - 100)


def fresh(r):
    # mostly the shapes of the first case, whose programs are compiled by now: sizes are data. A group
    # ends a row before, on, or behind a tile's edge
    if r.integers(4) == 0:
        return dict(M=192, K=256, N=256, sizes=(70, 0, 0, 59, 3))
    behind, more = int(r.integers(-1, 2)), int(r.integers(2))
    return dict(M=128, K=256, N=384, sizes=(10, 0, 54 + behind, 30 * more))


PUZZLE = Puzzle(
    spec=fused_gate_up_spec,
    solution=fused_gate_up,
    inputs=make_inputs,
    cases=[
        dict(M=128, K=256, N=384, sizes=(50, 0, 40, 3)),
        dict(M=120, K=72, N=136, E=144, dtype="bfloat16"),  # tiles that hang over
    ],
    hints=[
        "Two sums run side by side, as a single sum did in grouped_matmul. When is a sum "
        "complete, so that you can apply a function to it?",
        "`jax.nn.silu` works in a kernel. `gate_ref` and `up_ref` are f32 scratch, and the rows "
        "that are not mine get `others`.",
        "At every k: one dot for each accumulator, with f32 results. At the last k: silu of one "
        "sum times the other, a `jnp.where` between that and the others, a cast, one store.",
    ],
    explain="""Both products share the block of rows, and their sums meet in VMEM. So the rows
    are read once, not twice, and neither sum ever goes to HBM. Separate launches would write
    both and read them again.""",
    scale=scale,
    par=grouped_matmul.par,
    fresh=fresh,
)
