"""Puzzle 10: a grouped matmul with the weights transposed."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## grouped_matmul_transposed: the gradient of the rows
#
# A layer that trains needs two gradients of `y = grouped_matmul(x, w, group_sizes)`. For a row of
# group `e`, `y = x @ w[e]`, so `dy`, the gradient with respect to `y`, gives
#
# $$dx = dy \cdot w_e^T$$
#
# That is a grouped matmul again, with the same groups and the same array of weights. Only its axes swap names:
#
# ```text
#             lhs            rhs               result         summed over
# forward     x   M × K      w  E × K × N      y   M × N      K: columns of lhs, rows of rhs
# backward    dy  M × K      w  E × N × K      dx  M × N      K: columns of lhs, columns of rhs
# ```
#
# Backward, `K` is the forward's `N`, and vice versa.
#
# Do not transpose `w` in HBM: that would read and write the weights of all experts, used or not.
# Take the blocks as they are stored. The kernel is given, except for its product: write that, and
# the `BlockSpec` of `rhs`. `jax.lax.dot_general` lets you choose the summed axis of each factor.


# %%
def grouped_matmul_transposed_spec(
    lhs: Float[Array, "M K"], rhs: Float[Array, "E N K"], group_sizes: Int[Array, " E"]
) -> Float[Array, "M N"]:
    row, ends = jnp.arange(lhs.shape[0]), jnp.cumsum(group_sizes)
    group = jnp.sum(row[:, None] >= ends, axis=1)  # of each row; E if it has no group
    each = jnp.einsum("mk,enk->emn", lhs, rhs, preferred_element_type=jnp.float32)
    return each.at[group, row].get(mode="fill", fill_value=0).astype(lhs.dtype)


# %%
from puzzles.grouped_matmul._sizes import check_sizes
from puzzles.grouped_matmul.grouped_matmul import tiles  # given there


def grouped_matmul_transposed_kernel(
    offsets_ref, group_ids_ref, tile_ids_ref, lhs_ref, rhs_ref, zeros_ref, o_ref, acc_ref
):
    step, k = pl.program_id(1), pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    ### BEGIN SOLUTION
    last_axes = (((1,), (1,)), ((), ()))
    acc_ref[...] += jax.lax.dot_general(
        lhs_ref[...], rhs_ref[...], last_axes, preferred_element_type=jnp.float32
    )
    ### END SOLUTION

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        group, tile = group_ids_ref[step], tile_ids_ref[step]
        row = tile * o_ref.shape[0] + jax.lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
        mine = (offsets_ref[group] <= row) & (row < offsets_ref[group + 1])
        first = (step == 0) | (tile != tile_ids_ref[jnp.maximum(step - 1, 0)])
        others = jnp.where(first, 0.0, o_ref[...].astype(jnp.float32))
        o_ref[...] = jnp.where(mine, acc_ref[...], others).astype(o_ref.dtype)


def grouped_matmul_transposed(
    lhs: Float[Array, "M K"], rhs: Float[Array, "E N K"], group_sizes: Int[Array, " E"]
) -> Float[Array, "M N"]:
    (M, K), (E, N, columns) = lhs.shape, rhs.shape
    if (E, columns) != (len(group_sizes), K):
        raise ValueError(f"{len(group_sizes)} groups and K={K} do not fit rhs of shape {rhs.shape}")
    check_sizes(group_sizes, M)
    bm, bk, bn = tiles(M, K, N, lhs.dtype, E=E)
    offsets = find("group_offsets").solution(group_sizes)
    whole = pl.cdiv(M, bm) * bm  # the last tile may hang over
    group_ids, tile_ids, num_steps = find("tile_metadata").solution(group_sizes, whole, bm)
    return pl.pallas_call(
        grouped_matmul_transposed_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(pl.cdiv(N, bn), num_steps, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda j, s, k, offsets, groups, tiles: (tiles[s], k)),
                ### BEGIN SOLUTION
                pl.BlockSpec(
                    (None, bn, bk), lambda j, s, k, offsets, groups, tiles: (groups[s], j, k)
                ),
                ### END SOLUTION
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda j, s, k, offsets, groups, tiles: (tiles[s], j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), lhs.dtype),
        input_output_aliases={5: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
        interpret=INTERPRET,
    )(offsets, group_ids, tile_ids, lhs, rhs, jnp.zeros((M, N), lhs.dtype))


# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array
from puzzles.grouped_matmul import grouped_matmul


def make_inputs(key, **dims):
    lhs, rhs, sizes = grouped_matmul.make_inputs(key, **dims)
    return lhs, array(np.swapaxes(rhs, 1, 2), rhs.dtype), sizes


def scale(M=70_000, K=8192, N=4096, E=160):
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((M, K), (E, N, K)))
    return lhs, rhs, grouped_matmul.routed(E, M - 100)


PUZZLE = Puzzle(
    spec=grouped_matmul_transposed_spec,
    solution=grouped_matmul_transposed,
    inputs=make_inputs,
    cases=[
        dict(M=256, K=256, N=384, sizes=(50, 0, 80, 30, 3)),
        # large tiles; step 1 begins tile 1, in which most rows are nobody's
        dict(M=1024, K=1024, N=512, sizes=(0, 512, 20), dtype="bfloat16"),
        # less than a tile: nobody's rows in tile 0; and tiles that hang over
        dict(M=120, K=72, N=136, E=144),
    ],
    hints=[
        "Which axes of the two blocks are summed over? And in which order does rhs, as it is "
        "stored, have its axes?",
        "`jax.lax.dot_general` takes the summed axes, then the batch axes: `((axes of a, axes of "
        "b), (batch axes of a, of b))`. Each is a tuple; here the last two are empty. Request an "
        "f32 result as with `jnp.dot`. A block of rhs has `None`, then rows of N, then columns of "
        "K.",
        "Add one product of the two blocks, at every step. The BlockSpec: `None`, bn, bk; the "
        "map returns the step's group, the column block of the output, and k.",
    ],
    explain="""The matrix unit can contract the last axis of both factors, so a transposed
    product costs the reference an index map and a line in the dot, but no copy of the weights.
    Everything about groups, visits and masks is as before: it concerns the rows, and those did
    not change.""",
    scale=scale,
    par=grouped_matmul.par,
    fresh=grouped_matmul.fresh,
)
