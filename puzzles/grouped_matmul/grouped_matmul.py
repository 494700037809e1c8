"""Puzzle 8: groups of any size."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET, find

# %% [markdown]
# ## grouped_matmul: tiles that groups share
#
# From now on a group has any number of rows, or none. So **a tile may belong to several groups**. It is
# visited once for each, with that expert's weights, and each visit stores only its own rows:
#
# ```text
# group_sizes = (50, 0, 80, 30, 3), bm = 64, M = 256
#
# rows    0         50   64             128 130    160 163     192            255
# group   [    0    )[          2           )[   3   )[4)   unassigned rows
# tile    |      0       |      1       |           2          |       3       |
#
# step       0   1   2   3   4   5
# tile       0   0   1   2   2   2
# group      0   2   2   2   3   4       six visits; 5 experts × 4 tiles would be twenty
# ```
#
# ![Two visits to tile 0: the first stores group 0's rows and zeros in the others, the second, with the weights of group 2, stores its rows and keeps the first's; only then is the block written. Then tile 1.](diagrams/grouped_matmul/grouped_matmul.svg)
#
# **The grid.** `num_steps` below is traced: the length of this axis is known only when the launch
# runs.
#
# **Which rows a visit writes.** A visit sums over `k` (in the picture K is one block), and stores as
# `masked_store` did, by `offsets`. But at a tile's *first* visit the other rows hold garbage: write
# **zeros** there. A visit is first if the step before had another tile. (Step 0 has no step before it, and no
# `tile_ids_ref[-1]`.)
#
# **Tiles without a visit**, like tile 3. With `input_output_aliases` the output **is** an array of
# zeros that you pass in: blocks that no step writes stay zero. With `memory_space=pl.ANY` the array stays in HBM:
# leave `zeros_ref` alone.
#
# Write the code for a visit's last `k`. (Unassigned rows may hold NaN; so may everything beyond
# the last row or column.)
#
# <details><summary>More: why that array does not clear the tiles that are visited</summary>
#
# Output blocks are never fetched, so a block that is visited gets none of the zeros; it starts
# uninitialised. (On the CPU you would find the zeros there; the check also runs the TPU simulator.)
# The 5 in `input_output_aliases` is the index of the zeros among all operands; the three prefetched
# arrays have 0 to 2.
#
# </details>


# %%
def grouped_matmul_spec(
    lhs: Float[Array, "M K"], rhs: Float[Array, "E K N"], group_sizes: Int[Array, " E"]
) -> Float[Array, "M N"]:
    row, ends = jnp.arange(lhs.shape[0]), jnp.cumsum(group_sizes)
    group = jnp.sum(row[:, None] >= ends, axis=1)  # of each row; E if it has no group
    # all rows times every expert: E times the work
    each = jnp.einsum("mk,ekn->emn", lhs, rhs, preferred_element_type=jnp.float32)
    return each.at[group, row].get(mode="fill", fill_value=0).astype(lhs.dtype)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The tiles (given): those that cost a v5e least (contains the answer to choose_tiles)
import itertools


def tiles(M, K, N, dtype, weights=1, E=1):
    """Return (bm, bk, bn) for E experts; `weights` counts a visit's arrays of weights."""
    # equal blocks of K: beyond K's edge there is garbage, which would enter the sum
    equal = [K // n for n in range(1, K // 128 + 1) if K % (128 * n) == 0] or [K]
    if K * N < 512 * 512:  # small weights, as in the check, take small blocks
        some = [(64, equal[-1], 128)]
    else:  # the last rows and columns may hang over: elements beyond the edge are not written
        some = itertools.product((128, 256, 512), equal, range(128, 2049, 128))
    size, least, chosen = dtype.itemsize, (2,), None
    for bm, bk, bn in ((min(bm, M), bk, min(bn, N)) for bm, bk, bn in some):
        experts, columns = min(E, M), pl.cdiv(N, bn)
        visits = pl.cdiv(M, bm) + experts - 1  # at most
        rows, often = (M, experts) if bk == K else (visits * bm, visits)
        moved = columns * rows * K + weights * often * K * N + M * N
        # by libtpu's estimate, loading a visit's weights takes as long as 64 more rows
        products = weights * visits * (bm + 64) * K * columns * bn
        steps = columns * visits * (K // bk)
        seconds = size * moved / 820e9, 2 * products / 197e12, steps * 0.4e-6
        # with a small bk, the additions to the sum take a larger share of the time
        price = bk < min(K, 512), max(seconds), sum(seconds)
        # two buffers for each block, and one for each sum in f32; the rest of 16 MiB is for the body
        buffers = 2 * (bm * bk + weights * bk * bn + bm * bn) * size + 4 * weights * bm * bn
        if buffers <= 11.5 * 2**20 and price < least:
            least, chosen = price, (bm, bk, bn)
    if chosen is None:
        padded = pl.cdiv(K, 512) * 512
        raise ValueError(f"bk={K}, all of K, does not fit into VMEM: pad K to {padded}, with zeros")
    return chosen


def work(M, K, N, E, dtype):
    """Return the cost of each row times its expert's weights, without padding."""
    numbers = M * K + min(E, M) * K * N + M * N
    return pl.CostEstimate(
        flops=2 * M * K * N, transcendentals=0, bytes_accessed=numbers * dtype.itemsize
    )


# %%
from puzzles.grouped_matmul._sizes import check_sizes


def grouped_matmul_kernel(
    offsets_ref, group_ids_ref, tile_ids_ref, lhs_ref, rhs_ref, zeros_ref, o_ref, acc_ref
):
    step, k = pl.program_id(1), pl.program_id(2)

    @pl.when(k == 0)
    def _():
        acc_ref[...] = jnp.zeros_like(acc_ref)

    acc_ref[...] += jnp.dot(lhs_ref[...], rhs_ref[...], preferred_element_type=jnp.float32)

    @pl.when(k == pl.num_programs(2) - 1)
    def _():
        ### BEGIN SOLUTION
        group, tile = group_ids_ref[step], tile_ids_ref[step]
        row = tile * o_ref.shape[0] + jax.lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
        mine = (offsets_ref[group] <= row) & (row < offsets_ref[group + 1])
        first = (step == 0) | (tile != tile_ids_ref[jnp.maximum(step - 1, 0)])
        others = jnp.where(first, 0.0, o_ref[...].astype(jnp.float32))
        o_ref[...] = jnp.where(mine, acc_ref[...], others).astype(o_ref.dtype)
        ### END SOLUTION


def grouped_matmul(
    lhs: Float[Array, "M K"], rhs: Float[Array, "E K N"], group_sizes: Int[Array, " E"]
) -> Float[Array, "M N"]:
    (M, K), (E, rows, N) = lhs.shape, rhs.shape
    if (E, rows) != (len(group_sizes), K):
        raise ValueError(f"{len(group_sizes)} groups and K={K} do not fit rhs of shape {rhs.shape}")
    check_sizes(group_sizes, M)
    bm, bk, bn = tiles(M, K, N, lhs.dtype, E=E)
    offsets = find("group_offsets").solution(group_sizes)
    whole = pl.cdiv(M, bm) * bm  # the last tile may hang over
    group_ids, tile_ids, num_steps = find("tile_metadata").solution(group_sizes, whole, bm)
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
        cost_estimate=work(M, K, N, E, lhs.dtype),
        interpret=INTERPRET,
    )(offsets, group_ids, tile_ids, lhs, rhs, jnp.zeros((M, N), lhs.dtype))


# %% [markdown]
# **What do more experts cost?** Here are 32,768 rows times weights of 4096 × 1024, in tiles of 512 rows. In two
# lines K is one block; in the other two it is cut into four. How often is a weight fetched, and for how many rows
# each time?

# %% active="ipynb"
# from puzzles.grouped_matmul.choose_tiles import launched
#
# M, K, N = 32_768, 4096, 1024
# print("K            E    weights    fetched   each weight   rows a fetch")
# for bk, bn in ((4096, 128), (1024, 1024)):
#     for E in (8, 64):
#         one = launched(M, K, N, E, 512, bk, bn)
#         weights, fetched = E * K * N * 2, one.inputs[1].hbm_bytes
#         cut = "whole" if bk == K else f"in {K // bk}"
#         print(f"{cut:8}{E:6}{weights / 2**20:7.0f} MiB{fetched / 2**20:7.0f} MiB", end="")
#         print(f"{fetched // weights:8} times{one.dot_flops // fetched:14}")

# %% [markdown]
# **K whole**: the block of weights stays while the visits of its group follow one
# another, so each weight is fetched once, for *all* rows of its expert. Eight times as many experts
# have eight times the bytes, and each fetch serves an eighth of the rows. **K cut**: every visit
# walks through all blocks of K, from the first, so no block stays, and a fetch serves one tile of
# 512 rows, however many rows the expert has.
#
# So keep K whole if experts have few rows: then most bytes are weights. With many rows, cutting K
# can pay: it leaves room for wide blocks, so the rows are read fewer times. `tiles` computes both
# costs. When a batch is decoded, an expert may have 8 rows: 8 FLOPs for each byte
# of bf16 weights, while a v5e can do 240. A visit's other rows are padding. `cost_estimate` in the
# launch, a `pl.CostEstimate`, tells XLA's scheduler the useful work, without padding: `flops`,
# `transcendentals`, `bytes_accessed`. The receipt names the padding:

# %% active="ipynb"
# M, K, N, E = 512, 7168, 2048, 256  # DeepSeek-V3's first product; 64 sequences decode, 8 experts for each
# lhs, rhs = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((M, K), (E, K, N)))
# receipt(find("grouped_matmul").solution, lhs, rhs, jnp.full(E, M // E))

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng


def rows_of(r, M, width, sizes, dtype):
    """Rows of data; of those that belong to no group, every other one is NaN."""
    x = r.normal(size=(M, width))
    x[sum(sizes) :: 2] = np.nan
    return array(x, dtype)


def crowd(E, M):
    """Sizes of E groups: most are empty, many of one row, three share what is left of
    two fifths.
    """
    r = np.random.default_rng(E)
    sizes = (r.random(E) < 0.2).astype(int)
    few = r.choice(E, 3, replace=False)
    sizes[few] += r.multinomial(M * 2 // 5 - sizes.sum(), np.full(3, 1 / 3))
    return tuple(int(n) for n in sizes)


def make_inputs(key, M, K, N, sizes=(), dtype="float32", E=0):
    r, sizes = rng(key), sizes or crowd(E, M)
    rhs = array(r.normal(size=(len(sizes), K, N)), dtype)
    return rows_of(r, M, K, sizes, dtype), rhs, array(sizes, jnp.int32)


def scale(M=70_000, K=8192, N=4096, E=160):
    lhs, rhs = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((M, K), (E, K, N)))
    return lhs, rhs, routed(E, M - 100)


def routed(E, rows):
    """Sizes of E groups as a router has them: unequal, some empty."""
    r = np.random.default_rng(0)
    return array(r.multinomial(rows, r.dirichlet(np.full(E, 0.3))), jnp.int32)


def par(launch: Launch) -> str:
    """How many of the steps multiply."""
    ran = np.any([dot.executed > 0 for dot in launch.dots], axis=0)
    return f"dots in {int(ran.sum()):,} of {launch.steps:,} steps"


def fresh(r):
    # the shapes of the first case, whose programs are compiled by now: sizes are data. A group that
    # begins on a tile's edge and does not fill it; one that ends a row before, on, or behind an edge
    behind, more = int(r.integers(-1, 2)), int(r.integers(2))
    return dict(M=256, K=256, N=384, sizes=(64, 10, 0, 54 + behind, 64 * more))


PUZZLE = Puzzle(
    spec=grouped_matmul_spec,
    solution=grouped_matmul,
    inputs=make_inputs,
    cases=[
        dict(M=256, K=256, N=384, sizes=(50, 0, 80, 30, 3)),
        dict(M=1024, K=1024, N=512, sizes=(0, 512, 200, 312), dtype="bfloat16"),  # large tiles
        # less than a tile: nobody's rows in tile 0; and tiles that hang over
        dict(M=120, K=128, N=200, E=144),
        dict(M=1160, K=128, N=128, sizes=(3, 0, 1040, 60)),  # more than 16 tiles
    ],
    hints=[
        "At the last k you do a masked store. Only the other rows are new: they get zeros at a "
        "tile's first visit, and at later visits they keep their numbers in o_ref.",
        "`group_ids_ref[step]`, `tile_ids_ref[step]` and `offsets_ref[group]` are scalars. Row "
        "0 of the block is row tile · bm of the array; `jax.lax.broadcasted_iota(jnp.int32, "
        "o_ref.shape, 0)` counts from there. A visit is the first of its tile if the step "
        "before had another tile, or if there is no step before.",
        "Which group and which tile is this, which rows are mine, is this the first visit, what "
        "do the other rows get (a `jnp.where`), and one store (another `jnp.where`). Cast to "
        "`o_ref.dtype` at the very end.",
    ],
    explain="""Each visit of a tile fills in its own group's rows, and the first visit clears
    the rest. It works because the visits of one tile are consecutive: between them the output
    block stays in VMEM. Tiles without a visit keep the zeros of the array that the output is
    aliased to. So the grid has exactly the steps that the group sizes need.""",
    scale=scale,
    par=par,
    fresh=fresh,
    # whoever masks rows of lhs and adds is right, and a weight that is NaN would reach other groups' rows
)
