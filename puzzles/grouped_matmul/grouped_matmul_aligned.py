"""Puzzle 7: a grouped matmul for groups of whole tiles."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## grouped_matmul_aligned: routing by the index map
#
# Rows of `lhs` are tokens, sorted by expert; `rhs[e]` are the weights of expert `e`. Each row is
# multiplied by its own expert's weights. (The spec uses the weights of all experts: `E` times the
# work.)
#
# Here every group is a multiple of `bm` = 64, or empty. So **each tile of rows belongs to one expert**,
# visit `i` is to tile `i`, and you need only `group_ids` of the list:
#
# ```text
# group_sizes = [64, 0, 128, 192]
#
# tile, visit   0   1   2   3   4   5
# group_ids     0   2   2   3   3   3      rhs[1] is never fetched
# ```
#
# In the first puzzle, `perm` chose weights for a matrix; here `group_ids` chooses them for a tile. The kernel is
# `tiled_matmul`'s, with a Ref in front that it ignores: **the body does not change**.
#
# Write the grid, with k as its last axis, and the specs. The sizes add up to `M`.


# %%
def grouped_matmul_aligned_spec(
    lhs: Float[Array, "M K"], rhs: Float[Array, "E K N"], group_sizes: Int[Array, " E"]
) -> Float[Array, "M N"]:
    ends = jnp.cumsum(group_sizes)
    expert = jnp.sum(jnp.arange(len(lhs))[:, None] >= ends, axis=1)  # of each row
    own = expert == jnp.arange(len(rhs))[:, None]  # (E, M)
    each = jnp.einsum("mk,ekn->emn", lhs, rhs)
    return jnp.sum(jnp.where(own[:, :, None], each, 0.0), axis=0)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (contains the answer to tiled_matmul)
def grouped_matmul_aligned_kernel(group_ids_ref, lhs_ref, rhs_ref, o_ref, acc_ref):
    k = pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        o_ref[...] = acc_ref[...]


# %%
from puzzles.grouped_matmul._sizes import check_sizes


def grouped_matmul_aligned(
    lhs: Float[Array, "M K"], rhs: Float[Array, "E K N"], group_sizes: Int[Array, " E"]
) -> Float[Array, "M N"]:
    (M, K), (_, _, N) = lhs.shape, rhs.shape
    bm, bk, bn = 64, 128, 256  # all group sizes are multiples of bm
    if K % bk or N % bn:
        whole = -(-K // bk) * bk, -(-N // bn) * bn
        raise ValueError(
            f"blocks of {bk, bn} do not divide K, N = {K, N}: pad to {whole}, with zeros"
        )
    check_sizes(group_sizes, M)
    group_ids, _, _ = find("tile_metadata").solution(group_sizes, M, bm)
    return pl.pallas_call(
        grouped_matmul_aligned_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            ### BEGIN SOLUTION
            grid=(M // bm, N // bn, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, k, group_ids: (i, k)),
                pl.BlockSpec((None, bk, bn), lambda i, j, k, group_ids: (group_ids[i], k, j)),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda i, j, k, group_ids: (i, j)),
            ### END SOLUTION
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), jnp.float32),
        interpret=INTERPRET,
    )(group_ids, lhs, rhs)


# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng


def make_inputs(key, K, N, tiles=(), E=0):
    """Groups of so many tiles of 64 rows; or E groups, of which every eighth has one."""
    r, tiles = rng(key), tiles or [int(e % 8 == 7) for e in range(E)]
    sizes = [64 * n for n in tiles]
    return (
        array(r.normal(size=(sum(sizes), K)), jnp.float32),
        array(r.normal(size=(len(sizes), K, N)), jnp.float32),
        array(sizes, jnp.int32),
    )


def scale(M=12_288, K=8192, N=512, E=160):
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((M, K), (E, K, N)))
    r = np.random.default_rng(0)
    tiles = r.multinomial(M // 64, r.dirichlet(np.full(E, 0.3)))
    return lhs, rhs, array(64 * tiles, jnp.int32)


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(tiles=(1, 0, 2, 3), K=256, N=768)
    tiles = ((0, 1, 0, 0, 2, 0, 1, 1), (5, 0, 3))[r.integers(2)]
    return dict(tiles=tiles, K=128, N=int(r.choice([256, 768])))


def par(launch: Launch) -> str:
    return f"dots in {int(launch.busy.sum()):,} of {launch.steps:,} steps"


PUZZLE = Puzzle(
    spec=grouped_matmul_aligned_spec,
    solution=grouped_matmul_aligned,
    inputs=make_inputs,
    cases=[dict(tiles=(1, 0, 2, 3), K=256, N=768), dict(E=144, K=128, N=256)],
    hints=[
        "Write tiled_matmul's call first. Only one of the three operands has an axis that "
        "tiled_matmul's operand did not have.",
        "`None` squeezes the expert axis out of a block. The index map gets i, j, k and then "
        "the Ref with the group of each tile.",
        "lhs and the output are tiled as in tiled_matmul, with one more parameter in their "
        "maps. The map of rhs returns three indices: the group of tile i, then k and j.",
    ],
    explain="""A grouped matmul of whole tiles is a matmul whose index map looks up which
    weights to fetch. In the reference the kernel's body does not change, and the grid has no
    axis of experts. Weights that no token needs are never fetched.""",
    scale=scale,
    par=par,
    fresh=fresh,
)
