"""Puzzle 15: one chip's experts, and only their visits."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## local_experts: one chip's piece of the list
#
# The experts of a large layer do not fit on one chip. **Expert parallelism** gives each chip `L` of
# them: this chip holds `rhs`, the weights of experts `first` to `first + L - 1`. It sees all rows, and
# returns zeros for those of other experts, so that a sum over chips is the full result.
#
# A chip's groups are next to each other, and so are their visits: its work is **a piece of the list**.
#
# ```text
# group_sizes = (50, 30, 100, 0, 30, 20), bm = 64, first = 2, L = 3
#
# visit   0   1   2 │ 3   4   5   6 │ 7
# group   0   1   1 │ 2   2   4   4 │ 5      rhs[0] holds the weights of group 2
# tile    0   0   1 │ 1   2   2   3 │ 3
# step              │ 0   1   2   3 │        no step for the other chips
# ```
#
# `grouped_matmul`'s kernel and call **do not change**. Step 0 is again a tile's first visit, and
# stores zeros in the rows of other groups. Pass this chip's piece: its `num_steps` and `offsets`,
# and `group_ids` and `tile_ids` from its first visit on. (Entries after its last visit do not
# count.) Number the groups as in `rhs`, from 0.
#
# `first` is traced. `jax.lax.dynamic_slice(x, (start,), (length,))` cuts a piece of fixed length.


# %%
def local_experts_spec(
    lhs: Float[Array, "M K"],
    rhs: Float[Array, "L K N"],
    group_sizes: Int[Array, " E"],
    first: Int[Array, ""],  # first + L is at most E
) -> Float[Array, "M N"]:
    row, ends = jnp.arange(lhs.shape[0]), jnp.cumsum(group_sizes)
    group = jnp.sum(row[:, None] >= ends, axis=1)  # of each row
    number = jnp.where(group < first, len(rhs), group - first)  # in rhs, if this chip has the group
    each = jnp.einsum("mk,lkn->lmn", lhs, rhs, preferred_element_type=jnp.float32)
    return each.at[number, row].get(mode="fill", fill_value=0).astype(lhs.dtype)


# %%
from puzzles.grouped_matmul._sizes import check_first, check_sizes
from puzzles.grouped_matmul.grouped_matmul import grouped_matmul_kernel, tiles  # unchanged


def local_experts(
    lhs: Float[Array, "M K"],
    rhs: Float[Array, "L K N"],
    group_sizes: Int[Array, " E"],
    first: Int[Array, ""],
) -> Float[Array, "M N"]:
    (M, K), (L, rows, N) = lhs.shape, rhs.shape
    if rows != K or len(group_sizes) < L:
        raise ValueError(f"{len(group_sizes)} groups and K={K} do not fit rhs of shape {rhs.shape}")
    check_sizes(group_sizes, M)
    check_first(first, L, len(group_sizes))
    bm, bk, bn = tiles(M, K, N, lhs.dtype, E=len(group_sizes))
    offsets = find("group_offsets").solution(group_sizes)
    counts = find("tiles_per_group").solution(group_sizes, bm)
    whole = pl.cdiv(M, bm) * bm  # the last tile may hang over
    group_ids, tile_ids, _ = find("tile_metadata").solution(group_sizes, whole, bm)
    # for this chip alone: offsets, group_ids, tile_ids and num_steps
    ### BEGIN SOLUTION
    visits = find("group_offsets").solution(counts)  # at which visit each group begins
    begin, num_steps = visits[first], visits[first + L] - visits[first]
    group_ids = jnp.roll(group_ids, -begin) - first
    tile_ids = jnp.roll(tile_ids, -begin)
    offsets = jax.lax.dynamic_slice(offsets, (first,), (L + 1,))
    ### END SOLUTION
    return pl.pallas_call(
        grouped_matmul_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(pl.cdiv(N, bn), num_steps, K // bk),
            in_specs=[
                pl.BlockSpec((bm, bk), lambda j, s, k, offsets, groups, tiles: (tiles[s], k)),
                pl.BlockSpec(
                    (None, bk, bn), lambda j, s, k, offsets, groups, tiles: (groups[s], k, j)
                ),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((bm, bn), lambda j, s, k, offsets, groups, tiles: (tiles[s], j)),
            scratch_shapes=[pltpu.VMEM((bm, bn), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), lhs.dtype),
        input_output_aliases={5: 0},
        interpret=INTERPRET,
    )(offsets, group_ids, tile_ids, lhs, rhs, jnp.zeros((M, N), lhs.dtype))


# %% [markdown]
# Now run your function on several devices. The first cell split your CPU into four;
# on a TPU, its chips are used. Under `jax.shard_map` each device runs the function on its own
# experts, and `jax.lax.psum` adds up their results. (The reference runs until your function passes
# its check.) For every row, at most one device contributes a non-zero value, so the sum is exact.
# Every chip waits for the chip with the most visits, so the router should spread its tokens evenly.
#
# Here every chip sees every row. The other way is to send each row to the chips of its experts, and the
# results back:
# [`jax.lax.ragged_all_to_all`](https://docs.jax.dev/en/latest/_autosummary/jax.lax.ragged_all_to_all.html)
# moves pieces of unequal length. MaxText (2025) has both ways.

# %% active="ipynb"
# from puzzles import checked
#
# M, K, N, E = 512, 128, 256, 8
# chips = np.array(jax.devices()[:4])
# L = E // len(chips)  # experts on each
# r = np.random.default_rng(0)
# lhs, rhs = (jnp.asarray(r.normal(size=s), jnp.float32) for s in ((M, K), (E, K, N)))
# sizes = jnp.array([100, 0, 30, 200, 7, 90, 0, 60])
# P, (product, whose) = jax.sharding.PartitionSpec, checked("local_experts")
#
#
# def on_each(lhs, rhs, sizes):
#     return jax.lax.psum(product(lhs, rhs, sizes, L * jax.lax.axis_index("expert")), "expert")
#
#
# layer = jax.shard_map(
#     on_each,
#     mesh=jax.sharding.Mesh(chips, ("expert",)),
#     in_specs=(P(), P("expert"), P()),  # rhs is cut along its first axis
#     out_specs=P(),
#     check_vma=False,  # a kernel's result does not state over which chips it is replicated
# )
# got = np.asarray(jax.jit(layer)(lhs, rhs, sizes))
# whole = np.asarray(find("grouped_matmul").solution(lhs, rhs, sizes))
# assert np.array_equal(got, whole)
# print(f"{whose}: the sum over {len(chips)} devices equals the whole")
# for n in range(0, E, L):
#     (one,) = trace(product, lhs, rhs[n : n + L], sizes, jnp.int32(n))
#     print(f"experts {n} to {n + L - 1}: {sizes[n : n + L].sum():3} rows, {one.grid[1]} visits")

# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array
from puzzles.grouped_matmul import grouped_matmul


def make_inputs(key, first, L, **dims):
    lhs, rhs, group_sizes = grouped_matmul.make_inputs(key, **dims)
    return lhs, array(np.asarray(rhs)[first : first + L], rhs.dtype), group_sizes, jnp.int32(first)


def scale(M=70_000, K=8192, N=4096, E=160, L=20):
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((M, K), (L, K, N)))
    return lhs, rhs, grouped_matmul.routed(E, M - 100), jnp.int32(40)


def fresh(r):
    # the shapes of the first case, whose programs are compiled by now: sizes and `first` are data
    sizes, first = [
        ((0, 7, 64, 1, 0, 120), 3),
        ((70, 10, 0, 40, 0, 60), 1),
        ((3, 100, 0, 0, 0, 17), 2),  # nothing to do
        ((128, 30, 64, 9, 0, 20), 0),
    ][r.integers(4)]
    return dict(M=256, K=256, N=384, sizes=sizes, first=first, L=3)


PUZZLE = Puzzle(
    spec=local_experts_spec,
    solution=local_experts,
    inputs=make_inputs,
    cases=[
        dict(M=256, K=256, N=384, sizes=(150, 40, 20, 0, 25, 5), first=2, L=3),
        # the last chip of four, and tiles that hang over
        dict(M=124, K=72, N=136, E=144, first=108, L=36, dtype="bfloat16"),
        dict(M=256, K=256, N=384, sizes=(3, 100, 0, 0, 0, 17), first=2, L=3),  # nothing to do
        dict(M=256, K=256, N=384, sizes=(128, 30, 64, 9, 0, 20), first=0, L=3),  # the first chip
    ],
    hints=[
        "At which visit do this chip's visits begin, and at which do the next chip's? `counts` "
        "holds how many visits each group has.",
        "`group_offsets` turns counts into starts, of visits as of rows. An array may be "
        "indexed by the traced `first`, but a slice from it needs `jax.lax.dynamic_slice`, "
        "since its length must be static; `jnp.roll` brings any entry to the front.",
        "Starts of all groups' visits; the entry at `first`, and the entry at `first + L`: their "
        "difference is the number of steps. Roll both lists back by the first of these entries, "
        "and subtract `first` from the groups. Take L + 1 entries of the offsets, from `first` "
        "on.",
    ],
    explain="""The list of visits is sorted by group, so one chip's work is a piece of it, and
    the rest of a grouped matmul works on a piece as on the whole. A chip spends steps, rows and
    weights on its own experts only.""",
    scale=scale,
    par=grouped_matmul.par,
    fresh=fresh,
)
