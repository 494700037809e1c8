"""Puzzle 5: several steps share an output block, each with rows of its own."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## masked_store: write your rows, keep the others
#
# If two groups share a tile, it is visited twice, and each visit computes all of it. So **each visit
# writes the rows of its group, and keeps the block's other rows**:
#
# ![Three steps bring three groups' results to one output block. Each stores its own rows and keeps the others; the first writes zeros there. The block stays in VMEM until the third is done.](diagrams/grouped_matmul/masked_store.svg)
#
# Here is that store by itself. `x[g]` has numbers for *every* row, but only the rows from `starts[g]` up to,
# but not including, `ends[g]` count; the rest is garbage, some of it NaN. Ranges do not overlap, and
# rows of no group become zero. The grid is `(M // bm, G)`, so all visits to a block are consecutive.
#
# `starts` and `ends` are prefetched: `starts_ref[g]` is a number. Mind three things:
#
# * A row's number in the *array* decides. `jax.lax.broadcasted_iota(jnp.int32, shape, 0)` numbers the
#   rows of a block.
# * Choose with `jnp.where`: **NaN times 0 is NaN**, so a mask must not multiply.
# * A fresh output block holds garbage: write zeros first, and only once.


# %%
def masked_store_spec(
    x: Float[Array, "G M N"], starts: Int[Array, " G"], ends: Int[Array, " G"]
) -> Float[Array, "M N"]:
    m = jnp.arange(x.shape[1])
    meant = (m >= starts[:, None]) & (m < ends[:, None])  # (G, M)
    return jnp.sum(jnp.where(meant[:, :, None], x, 0.0), axis=0)


# %%
def masked_store_kernel(starts_ref, ends_ref, x_ref, o_ref):
    ### BEGIN SOLUTION
    i, g = pl.program_id(0), pl.program_id(1)
    bm = o_ref.shape[0]

    @pl.when(g == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    row = i * bm + jax.lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)
    mine = (starts_ref[g] <= row) & (row < ends_ref[g])
    o_ref[...] = jnp.where(mine, x_ref[...], o_ref[...])
    ### END SOLUTION


def masked_store(
    x: Float[Array, "G M N"], starts: Int[Array, " G"], ends: Int[Array, " G"]
) -> Float[Array, "M N"]:
    G, M, N = x.shape
    bm = 64
    if M % bm:
        raise ValueError(f"blocks of {bm} rows do not divide M = {M}: pad to {-(-M // bm) * bm}")
    return pl.pallas_call(
        masked_store_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(M // bm, G),
            in_specs=[pl.BlockSpec((None, bm, N), lambda i, g, starts_ref, ends_ref: (g, i, 0))],
            out_specs=pl.BlockSpec((bm, N), lambda i, g, starts_ref, ends_ref: (i, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((M, N), x.dtype),
        interpret=INTERPRET,
    )(starts, ends, x)


# %% [markdown]
# <details><summary>More: the limits of a green tick</summary>
#
# The check runs your kernel, simulates a TPU, and lowers the kernel for a TPU with Mosaic. The compiler behind
# Mosaic, in libtpu, has the last word: only it knows how much VMEM a body needs besides its blocks. If
# libtpu is installed, as on a TPU, start Jupyter with `PUZZLES_TPU=1`, and the check also compiles with libtpu, for
# every chip that it knows.
#
# </details>

# %% tags=["author"]
import numpy as np

from puzzles import Launch, Puzzle, array, rng


def make_inputs(key, G, M, N, ranges=None):
    """Results of G groups for all rows; outside a group's own range some elements are NaN."""
    r = rng(key)
    if ranges is None:  # in any order, with gaps, and an empty one
        ranges = np.sort(r.integers(0, M + 1, 2 * G)).reshape(G, 2)
        ranges[1] = ranges[1, 0]
        ranges = ranges[r.permutation(G)]
    x = r.normal(size=(G, M, N))
    for g, (start, end) in enumerate(ranges):
        x[g, :start, g::7] = x[g, end:, g::7] = float("nan")
    starts, ends = np.asarray(ranges, np.int32).T
    return array(x, jnp.float32), array(starts, jnp.int32), array(ends, jnp.int32)


def scale(G=160, M=35_200, N=512):
    starts = np.arange(G) * (M // G)
    ranges = (array(edges, jnp.int32) for edges in (starts, starts + min(30, M // G)))
    return jax.ShapeDtypeStruct((G, M, N), jnp.float32), *ranges


def par(launch: Launch) -> str:
    return f"{launch.outputs[0].transfers:,} blocks written back in {launch.steps:,} visits"


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(G=4, M=192, N=256)
    shapes = ((9, 576, 128), (8, 640, 256), (12, 128, 128), (10, 512, 128))
    return dict(zip("GMN", shapes[r.integers(len(shapes))], strict=True))


PUZZLE = Puzzle(
    spec=masked_store_spec,
    solution=masked_store,
    inputs=make_inputs,
    cases=[
        dict(G=4, M=192, N=256, ranges=((4, 50), (50, 50), (50, 128), (128, 170))),
        # none at first and at last; one that fills a block and goes on at both sides
        dict(
            G=7,
            M=256,
            N=128,
            ranges=((0, 0), (10, 63), (63, 65), (66, 193), (193, 194), (227, 256), (256, 256)),
        ),
        dict(G=144, M=128, N=128),
        dict(G=2, M=65 * 64, N=128),
    ],
    hints=[
        "A step has a block of new numbers and, in the output block, the numbers that earlier "
        "steps have left. For each row, which of the two should be stored? And what does the "
        "first step find there?",
        "`jax.lax.broadcasted_iota(jnp.int32, shape, 0)` numbers the rows of a block; program "
        "id 0 gives the number of rows before it. SMEM Refs are indexed by a number, as in "
        "`ends_ref[g]`. `jnp.where(mask, a, b)` chooses.",
        "At the first g, store zeros under `pl.when`. Then, at every step: row numbers; a mask "
        "of two comparisons joined by `&`; store a choice between the block of x and the output "
        "block itself.",
    ],
    explain="""The output block stays in VMEM while g runs, so a step can keep the rows that
    others have written. The first visit starts from zeros, so rows of no group end as zeros. In
    the reference's grouped matmul, this store is the only part of the kernel that deals with
    groups.""",
    scale=scale,
    par=par,
    fresh=fresh,
)
