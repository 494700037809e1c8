"""Puzzle 9: all of a grouped matmul's call."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## launch_grouped_matmul: the whole call, and which axis goes where
#
# Write the whole call. The kernel below (it contains the answer to `grouped_matmul`)
# takes its operands in another order:
#
# ```text
# prefetched   groups_ref (group of each step), tiles_ref (tile of each step), offsets_ref
# inputs       lhs_ref, rhs_ref
# output       o_ref          scratch   acc_ref, f32
# keywords     K, and step_axis: the grid axis that counts the visits
# ```
#
# Here the groups reach into the last tile, so every output block is written, and no zeros are needed.
#
# **K and N need not be multiples of their blocks.** Beyond the edge of K there is garbage, so this kernel masks
# both operands there, and needs `K` for that. You make sure that the grid reaches the partial blocks:
# `pl.cdiv(a, b)` divides and rounds up.
#
# **The order of the grid** is the question. `k` is innermost. Columns of blocks, `j`, and visits, `s`,
# can be in either order, but one order works only under `interpret=True`. Say visits 3 and 4 share a tile.
# Stars mark two visits to one output block. What comes between them?
#
# ```text
# (s, j, k)    s = 3:  j = *0  1  2      s = 4:  j = *0  1  2
# (j, s, k)    j = 0:  s = *3 *4         j = 1:  s =  3  4         j = 2:  s =  3  4
# ```
#
# Then you know which axis is `"parallel"`: declare it in
# `pltpu.CompilerParams(dimension_semantics=...)`.
#
# <details><summary>More: unassigned rows, in production</summary>
#
# JAX's own grouped matmul, Megablox, passes no zeros. Unless the experts are sharded, it leaves garbage in rows that belong to
# no group, even in tiles that it visits. tokamax's `gmm_v2` (2026) clears them by default.
#
# </details>


# %%
def launch_grouped_matmul_spec(
    lhs: Float[Array, "M K"], rhs: Float[Array, "E K N"], group_sizes: Int[Array, " E"]
) -> Float[Array, "M N"]:
    row, ends = jnp.arange(lhs.shape[0]), jnp.cumsum(group_sizes)
    group = jnp.sum(row[:, None] >= ends, axis=1)  # of each row; E if it has no group
    each = jnp.einsum("mk,ekn->emn", lhs, rhs, preferred_element_type=jnp.float32)
    return each.at[group, row].get(mode="fill", fill_value=0).astype(lhs.dtype)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (contains the answer to grouped_matmul)
def launch_grouped_matmul_kernel(
    groups_ref, tiles_ref, offsets_ref, lhs_ref, rhs_ref, o_ref, acc_ref, *, K, step_axis
):
    step, k = pl.program_id(step_axis), pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    def inside(x_ref, axis):  # elements beyond K become 0
        at = k * x_ref.shape[axis] + jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, axis)
        return jnp.where(at < K, x_ref[...].astype(jnp.float32), 0.0).astype(x_ref.dtype)

    acc_ref[...] += jnp.dot(
        inside(lhs_ref, 1), inside(rhs_ref, 0), preferred_element_type=jnp.float32
    )

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        group, tile = groups_ref[step], tiles_ref[step]
        row = tile * o_ref.shape[0] + jax.lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
        mine = (offsets_ref[group] <= row) & (row < offsets_ref[group + 1])
        first = (step == 0) | (tile != tiles_ref[jnp.maximum(step - 1, 0)])
        others = jnp.where(first, 0.0, o_ref[...].astype(jnp.float32))
        o_ref[...] = jnp.where(mine, acc_ref[...], others).astype(o_ref.dtype)


# %%
from puzzles.grouped_matmul._sizes import check_sizes


def launch_grouped_matmul(
    lhs: Float[Array, "M K"], rhs: Float[Array, "E K N"], group_sizes: Int[Array, " E"]
) -> Float[Array, "M N"]:
    (M, K), (E, rows, N) = lhs.shape, rhs.shape
    if (E, rows) != (len(group_sizes), K):
        raise ValueError(f"{len(group_sizes)} groups and K={K} do not fit rhs of shape {rhs.shape}")
    check_sizes(group_sizes, M)
    bm, bk, bn = 128, 128, 256
    offsets = find("group_offsets").solution(group_sizes)
    groups, tiles, num_steps = find("tile_metadata").solution(group_sizes, M, bm)
    ### BEGIN SOLUTION
    return pl.pallas_call(
        functools.partial(launch_grouped_matmul_kernel, K=K, step_axis=1),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(pl.cdiv(N, bn), num_steps, pl.cdiv(K, bk)),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda j, s, k, groups, tiles, offsets: (tiles[s], k)),
                pl.BlockSpec(
                    (None, bk, bn), lambda j, s, k, groups, tiles, offsets: (groups[s], k, j)
                ),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda j, s, k, groups, tiles, offsets: (tiles[s], j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), lhs.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary")
        ),
        interpret=INTERPRET,
    )(groups, tiles, offsets, lhs, rhs)
    ### END SOLUTION


# %% tags=["author"]
from puzzles import Launch, Puzzle
from puzzles.grouped_matmul import grouped_matmul


def make_inputs(key, M, K, N, sizes=(), dtype="float32", E=0):
    if not sizes:  # the last group ends with the last tile
        some = grouped_matmul.crowd(E - 1, M)
        sizes = (*some, M - sum(some))
    return grouped_matmul.make_inputs(key, M, K, N, sizes, dtype)


def scale(M=48_000, K=2100, N=4200, E=160):
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (E, K, N)))
    return lhs, rhs, grouped_matmul.routed(E, M)  # into the last tile


def fresh(r):
    # the shapes of the first case, whose programs are compiled by now: sizes are data. A group that
    # begins on a tile's edge and does not fill it; one that ends a row before, on, or behind an edge
    behind = int(r.integers(-1, 2))
    return dict(M=384, K=300, N=384, sizes=(20, 0, 236 + behind, 128 - behind))


def audit(launch: Launch) -> None:
    assert launch.dimension_semantics is not None, (
        "the launch promises nothing about its axes: pass "
        "compiler_params=pltpu.CompilerParams(dimension_semantics=...)"
    )
    words = launch.dimension_semantics
    assert words == ("parallel", "arbitrary", "arbitrary"), (
        f"dimension_semantics is {words}: columns of blocks do not depend on each other and "
        "can be shared out among cores; visits and k have to stay in order"
    )


PUZZLE = Puzzle(
    spec=launch_grouped_matmul_spec,
    solution=launch_grouped_matmul,
    inputs=make_inputs,
    cases=[
        dict(M=384, K=300, N=384, sizes=(150, 0, 100, 134)),
        dict(M=256, K=72, N=136, E=144, dtype="bfloat16"),
        dict(M=128, K=256, N=256, sizes=(100, 28)),  # the blocks divide K and N,
        dict(M=2304, K=8, N=128, sizes=(1000, 0, 1204, 100)),  # more than 16 tiles
    ],
    hints=[
        "An output block may be visited again only by the very next step. A tile that two "
        "groups share is visited twice. With the columns inside, what comes between the two "
        "visits of its first column? And if the order of two visits matters, may two cores "
        "divide them?",
        "`pltpu.PrefetchScalarGridSpec(num_scalar_prefetch=..., grid=..., in_specs=..., "
        "out_specs=..., scratch_shapes=...)` goes to `grid_spec=`. Index maps get the grid's "
        "indices first, then the prefetched refs. `functools.partial` gives the kernel its "
        "keywords.",
        "Three grid axes: columns by `pl.cdiv`, num_steps, blocks of K by `pl.cdiv`. lhs: the "
        "step's tile and k. rhs: `None` for the axis of the experts, and the step's group, k, "
        "j. The output: the step's tile and j.",
    ],
    explain="""Columns are outermost: only then are the visits of one output block consecutive,
    so that the second finds the rows that the first stored. Megablox uses the same order. In
    the reference lhs is read again for each column of blocks. The other order would read it as
    often if K has several blocks. So wide columns pay off.""",
    audit=audit,
    scale=scale,
    par=grouped_matmul.par,
    fresh=fresh,
)
