"""Puzzle 11: the gradient of the experts' weights."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## grouped_outer: the gradient of the weights
#
# The other gradient is that of the weights. Every row of group `e` adds an outer product to the gradient of `w[e]`:
#
# $$dw_e = \sum_{m \,\in\, \text{group } e} x_m^T \, dy_m$$
#
# So for each group it is `lhs[rows].T @ rhs[rows]`: now the **rows** are summed over, and each
# group has its own output, `K` × `N`. A group's visits are consecutive, like a tile's. So put the
# visits *innermost*, where `k` was, and the accumulator lives as long as a group does:
#
# ```text
# group_sizes = (50, 0, 80, 30, 3), bm = 64, as in grouped_matmul
#
# step       0   1   2   3   4   5
# tile       0   0   1   2   2   2
# group      0   2   2   2   3   4
# zero       *   *           *   *      the step before has another group, or there is none
# store      *           *   *   *      the next step has another group, or there is none
# ```
#
# ![Five visits: group 0 is summed and stored, then group 2 over three tiles of rows, while its output block stays, then group 3; group 1's block is never visited.](diagrams/grouped_matmul/grouped_outer.svg)
#
# Careful: the last visit is step `pl.num_programs(2) - 1`, and list entries after it do not
# count.
#
# In a shared tile, rows of other groups would be *in the sum*. So the mask moves to the inputs, to
# **both**: unassigned rows may be NaN in `lhs` and in `rhs`.
#
# Group 1, empty, has no visit: the alias makes its gradient zero.
#
# <details><summary>More: empty groups in production</summary>
#
# Megablox's `tgmm` gives each empty group one visit that stores zeros. If few experts are empty, that costs less than
# clearing all weight gradients first.
#
# </details>


# %%
def grouped_outer_spec(
    lhs: Float[Array, "M K"], rhs: Float[Array, "M N"], group_sizes: Int[Array, " E"]
) -> Float[Array, "E K N"]:
    row, ends = jnp.arange(lhs.shape[0]), jnp.cumsum(group_sizes)
    group = jnp.sum(row[:, None] >= ends, axis=1)  # of each row; E if it has no group
    mine = (group == jnp.arange(len(group_sizes))[:, None])[:, :, None]  # (E, M, 1)
    x, y = jnp.where(mine, lhs, 0), jnp.where(mine, rhs, 0)
    return jnp.einsum("emk,emn->ekn", x, y, preferred_element_type=jnp.float32).astype(lhs.dtype)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The tiles (given): they fit into VMEM
def tiles(M, K, N, dtype, E=1):
    large = K * N >= 512 * 512  # small weights, as in the check, take small blocks
    most = 2048 // dtype.itemsize if large else 128
    # the last rows and columns of a result may hang over: elements beyond the edge are not written
    bk, bn = (min(128 * pl.cdiv(n, 128 * pl.cdiv(n, most)), n) for n in (K, N))
    # a visit computes bm rows, however few its group has: take the largest bm with at most 1.2 × M rows in all
    computed = {bm: bm * (pl.cdiv(M, bm) + min(E, M) - 1) for bm in (512, 256, 128)}
    bm = min(computed, key=lambda bm: max(computed[bm], 1.2 * M)) if large else 64
    return min(bm, M), bk, bn


# %%
from puzzles.grouped_matmul._sizes import check_sizes


def grouped_outer_kernel(
    offsets_ref, group_ids_ref, tile_ids_ref, lhs_ref, rhs_ref, zeros_ref, o_ref, acc_ref
):
    ### BEGIN SOLUTION
    step, steps = pl.program_id(2), pl.num_programs(2)
    group, tile = group_ids_ref[step], tile_ids_ref[step]
    opens = (step == 0) | (group != group_ids_ref[jnp.maximum(step - 1, 0)])
    closes = (step == steps - 1) | (group != group_ids_ref[jnp.minimum(step + 1, steps - 1)])

    @pl.when(opens)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def mine(x_ref):
        row = tile * x_ref.shape[0] + jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        inside = (offsets_ref[group] <= row) & (row < offsets_ref[group + 1])
        return jnp.where(inside, x_ref[...].astype(jnp.float32), 0.0).astype(x_ref.dtype)

    rows = (((0,), (0,)), ((), ()))
    acc_ref[...] += jax.lax.dot_general(
        mine(lhs_ref), mine(rhs_ref), rows, preferred_element_type=jnp.float32
    )

    @pl.when(closes)
    def _():
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)

    ### END SOLUTION


def grouped_outer(
    lhs: Float[Array, "M K"], rhs: Float[Array, "M N"], group_sizes: Int[Array, " E"]
) -> Float[Array, "E K N"]:
    (M, K), (rows, N), E = lhs.shape, rhs.shape, group_sizes.shape[0]
    if rows != M:
        raise ValueError(f"lhs has {M} rows, and rhs {rows}")
    check_sizes(group_sizes, M)
    bm, bk, bn = tiles(M, K, N, lhs.dtype, E=E)
    offsets = find("group_offsets").solution(group_sizes)
    whole = pl.cdiv(M, bm) * bm  # the last tile may hang over
    group_ids, tile_ids, num_steps = find("tile_metadata").solution(group_sizes, whole, bm)
    return pl.pallas_call(
        grouped_outer_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(pl.cdiv(K, bk), pl.cdiv(N, bn), num_steps),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, s, offsets, groups, tiles: (tiles[s], i)),
                pl.BlockSpec((bm, bn), lambda i, j, s, offsets, groups, tiles: (tiles[s], j)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec(
                (None, bk, bn), lambda i, j, s, offsets, groups, tiles: (groups[s], i, j)
            ),
            scratch_shapes=[pltpu.VMEM((bk, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((E, K, N), lhs.dtype),
        input_output_aliases={5: 0},
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
        interpret=INTERPRET,
    )(offsets, group_ids, tile_ids, lhs, rhs, jnp.zeros((E, K, N), lhs.dtype))


# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.grouped_matmul.grouped_matmul import crowd, fresh, par, routed, rows_of


def make_inputs(key, M, K, N, sizes=(), dtype="float32", E=0):
    r, sizes = rng(key), sizes or crowd(E, M)
    lhs, rhs = (rows_of(r, M, width, sizes, dtype) for width in (K, N))
    return lhs, rhs, array(sizes, jnp.int32)


def scale(M=70_000, K=8192, N=4096, E=160):
    lhs, rhs = (jax.ShapeDtypeStruct((M, width), jnp.bfloat16) for width in (K, N))
    return lhs, rhs, routed(E, M - 100)


PUZZLE = Puzzle(
    spec=grouped_outer_spec,
    solution=grouped_outer,
    inputs=make_inputs,
    cases=[
        dict(M=256, K=256, N=384, sizes=(65, 0, 62, 1, 100)),  # single rows at the edges of tiles
        dict(M=1024, K=512, N=640, sizes=(0, 370, 0, 654), dtype="bfloat16"),
        # blocks hang over, every entry of the list is a visit, and some rows are nobody's
        dict(M=120, K=200, N=128, sizes=(50, 10, 50)),
        dict(M=120, K=136, N=128, E=144),
        dict(
            M=1160, K=128, N=136, sizes=17 * (0,) + (3, 0, 1000, 150)
        ),  # more than 16 tiles and groups
    ],
    hints=[
        "A group's visits are consecutive, as the steps of one output block were in "
        "tiled_matmul. There k showed where a sum begins and ends. What shows it here?",
        "Compare `group_ids_ref[step]` with its neighbours; `jnp.maximum` and `jnp.minimum` "
        "keep an index in the list. `jax.lax.dot_general` can sum over the rows of both "
        "factors: axis 0 of each, as in launch_matmul.",
        "Zero the accumulator when a group opens. Mask the rows of both blocks with "
        "`jnp.where`, by the group's offsets, and add their product. Store when the group "
        "closes, including at the last step of the grid.",
    ],
    explain="""In the reference the accumulator lives as long as a group: it is zeroed when the step
    before has another group, and stored when the next step has. Because each group's visits are
    consecutive, one accumulator is enough for all of them. Only rows of a tile that belong to
    another group, or to none, are masked.""",
    scale=scale,
    par=par,
    fresh=fresh,
)
