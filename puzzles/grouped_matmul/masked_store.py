"""Rung 5: several steps share an output block, each with rows of its own."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## masked_store: write your rows, keep the others
#
# When two groups share a tile, it is visited twice, and each visit computes all of it. So **each visit
# writes the rows of its group, and keeps what the block holds in the others**:
#
# ![Three steps bring three groups' results to one output block. Each stores its own rows and keeps the others; the first writes zeros there. The block stays in VMEM until the third is done.](diagrams/grouped_matmul/masked_store.svg)
#
# Here is that store by itself. `x[g]` has numbers for *every* row, but only rows `starts[g]` up to,
# not including, `ends[g]` are meant; the rest is rubbish, some of it NaN. Ranges do not overlap, and
# rows of no group become zero. The grid is `(M // bm, G)`, so all visits to a block are consecutive.
#
# `starts` and `ends` are prefetched: `starts_ref[g]` is a number. Mind three things:
#
# * A row's number in the *array* decides. `jax.lax.broadcasted_iota(jnp.int32, shape, 0)` numbers the
#   rows of a block.
# * Choose with `jnp.where`: **NaN times 0 is NaN**, so a mask must not multiply.
# * A fresh output block holds garbage: write zeros first, and once.

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
# <details><summary>More: what a green tick does not cover</summary>
#
# The check runs your kernel, simulates a TPU, and asks Mosaic for the kernel's TPU form. The last word
# has libtpu, the compiler behind it: how much VMEM a body takes beside its blocks, only it knows. Where
# it is installed, as on a TPU, start Jupyter with `PUZZLES_TPU=1`, and the check asks it, too, for
# every chip that it knows.
#
# </details>

# %% tags=["author"]
import numpy as np

from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng


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


_ZERO = """    @pl.when(g == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

"""
_ROW = "row = i * bm + jax.lax"
_MINE = "mine = (starts_ref[g] <= row) & (row < ends_ref[g])"
_STORE = "o_ref[...] = jnp.where(mine, x_ref[...], o_ref[...])"

PUZZLE = Puzzle(
    spec=masked_store_spec,
    solution=masked_store,
    inputs=make_inputs,
    cases=[
        dict(G=4, M=192, N=256, ranges=((4, 50), (50, 50), (50, 128), (128, 170))),
        # none at first and at last; one that fills a block and goes on at both sides
        dict(G=7, M=256, N=128, ranges=((0, 0), (10, 63), (63, 65), (66, 193), (193, 194), (227, 256), (256, 256))),
        dict(G=144, M=128, N=128),
    ],
    hints=[
        "A step has a block of new numbers and, in the output block, what the steps before it have left. "
        "For each row, which of the two does it want? And what does the first step find there?",
        "`jax.lax.broadcasted_iota(jnp.int32, shape, 0)` numbers the rows of a block; program id 0 tells how many "
        "rows came before. SMEM Refs are indexed by a number, as in `ends_ref[g]`. `jnp.where(mask, a, b)` chooses.",
        "At the first g, zeros under `pl.when`. Then, at every step: row numbers; a mask of two comparisons "
        "joined by `&`; store a choice between the block of x and the output block itself.",
    ],
    explain="""The output block stays in VMEM while g runs, so a step can keep what others have written.
    The first visit starts from zeros, and so rows of no group end as zeros. In the reference's
    grouped matmul this store is all of the kernel that knows of groups.""",
    mistakes=[
        Mistake(
            "slices as many rows as the group has",
            old=_STORE,
            new="""first = jnp.clip(starts_ref[g] - i * bm, 0, bm)
    rows = pl.ds(first, jnp.clip(ends_ref[g] - i * bm, 0, bm) - first)
    o_ref[rows, :] = x_ref[rows, :]""",
            says="How large a slice is must be known while Python runs",
            stage="error",
        ),
        Mistake(
            "stores every row",
            old=_STORE,
            new="o_ref[...] = x_ref[...]",
            says="the last group overwrites all others: store rows starts[g] to ends[g] only",
        ),
        Mistake(
            "stores all rows up to its end",
            old=_MINE,
            new="mine = row < ends_ref[g]",
            says="rows before starts[g] are overwritten: they belong to others",
        ),
        Mistake(
            "stores all rows from its start on",
            old=_MINE,
            new="mine = starts_ref[g] <= row",
            says="rows from ends[g] on are not this group's, and some of them are nobody's",
        ),
        Mistake(
            "relies on zeros in a fresh output block",
            old=_ZERO,
            new="",
            says="rows of no group keep whatever the block held: garbage (NaN here); the first visit has to "
            "write zeros",
        ),
        Mistake(
            "does not keep what other groups have written",
            old=_STORE,
            new="o_ref[...] = jnp.where(mine, x_ref[...], 0.0)",
            says="each step wipes out the rows of the groups before it: zeros belong in the first visit only, and "
            "after that a step keeps what is in o_ref",
        ),
        Mistake(
            "chooses the wrong way round",
            old=_STORE,
            new="o_ref[...] = jnp.where(mine, o_ref[...], x_ref[...])",
            says="`jnp.where(condition, a, b)` takes a where the condition holds, and there it is x that is meant",
        ),
        Mistake(
            "takes program id 0 for the group",
            old="i, g = pl.program_id(0)",
            new="g, i = pl.program_id(0)",
            says="the grid is (M // bm, G): id 0 counts tiles, id 1 groups",
        ),
        Mistake(
            "writes zeros in the first tile only",
            old="pl.when(g == 0)",
            new="pl.when(i == 0)",
            says="i counts tiles; zeros belong in each tile's first visit, where g is 0",
        ),
        Mistake(
            "writes zeros in the very first grid step only",
            old="pl.when(g == 0)",
            new="pl.when((i == 0) & (g == 0))",
            says="every tile has a fresh output block, and each needs its zeros",
        ),
        Mistake(
            "counts rows from the start of the block",
            old=_ROW,
            new="row = jax.lax",
            says="starts and ends are rows of the array, so add the rows of all blocks before, i * bm",
        ),
        Mistake(
            "takes a block's number for its first row",
            old=_ROW,
            new="row = i + jax.lax",
            says="i counts blocks, and each has bm rows: block i begins at row i * bm",
        ),
        Mistake(
            "takes one row too many",
            old="row < ends_ref[g]",
            new="row <= ends_ref[g]",
            says="row ends[g] is not group g's any more",
        ),
        Mistake(
            "leaves its first row out",
            old="starts_ref[g] <= row",
            new="starts_ref[g] < row",
            says="row starts[g] is group g's first",
        ),
        Mistake(
            "multiplies by the mask",
            old=_STORE,
            new="o_ref[...] = jnp.where(mine, 1.0, 0.0) * x_ref[...] + jnp.where(mine, 0.0, 1.0) * o_ref[...]",
            says="NaN times 0 is NaN: choose by `jnp.where`",
        ),
        Mistake(
            "looks up the range of group i",
            old=_MINE,
            new="mine = (starts_ref[i] <= row) & (row < ends_ref[i])",
            says="i counts tiles; the group is g",
        ),
        Mistake(
            "numbers columns instead of rows",
            old="o_ref.shape, 0)",
            new="o_ref.shape, 1)",
            says="dimension 0 of a block runs along its rows",
        ),
        Mistake(
            "makes a column of a 1-D mask",
            edits=(
                (_ROW + ".broadcasted_iota(jnp.int32, o_ref.shape, 0)", "row = i * bm + jnp.arange(bm)"),
                (_MINE, "mine = ((starts_ref[g] <= row) & (row < ends_ref[g]))[:, None]"),
            ),
            says="a 1-D mask does not become a column. Number the rows in two dimensions",
            stage="tpu",
        ),
        Mistake(
            "asks in Python whether the tile is its own",
            old=_STORE,
            new="if starts_ref[g] < (i + 1) * bm:\n        o_ref[...] = jnp.where(mine, x_ref[...], o_ref[...])",
            says="not known while Python runs",
            stage="error",
        ),
        Mistake(
            "slices the Ref by numbers that are data",
            old=_STORE,
            new="o_ref[starts_ref[g]:ends_ref[g]] = x_ref[starts_ref[g]:ends_ref[g]]",
            says="A slice that starts at a traced number",
            stage="error",
        ),
        Mistake(
            "reads all of the prefetched array",
            old=_MINE,
            new="mine = (starts_ref[...][g] <= row) & (row < ends_ref[...][g])",
            says="SMEM holds scalars, which are read one by one",
            stage="tpu",
        ),
        Mistake(
            "takes ends for lengths",
            old="row < ends_ref[g])",
            new="row < starts_ref[g] + ends_ref[g])",
            says="ends[g] is a row, the one after group g's last",
        ),
        Mistake(
            "counts rows by the group's number",
            old="row = i * bm +",
            new="row = g * bm +",
            says="block i begins at row i * bm, whatever group is stored",
        ),
    ],
    alternatives=[
        Alternative(
            "chooses between x, zeros and the block in one store",
            old=_ZERO,
            new="",
            edits=((_STORE, "o_ref[...] = jnp.where(mine, x_ref[...], jnp.where(g == 0, 0.0, o_ref[...]))"),),
        ),
        Alternative(
            "adds its rows to zeros",
            old=_STORE,
            new="o_ref[...] += jnp.where(mine, x_ref[...], 0.0)",
        ),
        Alternative(
            "skips tiles without a row of its own",
            old=_STORE,
            new="""
    @pl.when((starts_ref[g] < (i + 1) * bm) & (i * bm < ends_ref[g]))
    def _():
        o_ref[...] = jnp.where(mine, x_ref[...], o_ref[...])
""",
        ),
        Alternative(
            "stores zeros outside at the first visit, and keeps the rest at the others",
            old=_ZERO,
            new="",
            edits=(
                (
                    _STORE,
                    """
    @pl.when(g == 0)
    def _():
        o_ref[...] = jnp.where(mine, x_ref[...], jnp.zeros_like(x_ref))

    @pl.when(g != 0)
    def _():
        o_ref[...] = jax.lax.select(mine, x_ref[...], o_ref[...])
""",
                ),
            ),
        ),
        Alternative(
            "shifts the range into the block",
            edits=(
                (_ROW, "row = jax.lax"),
                (_MINE, "mine = (row >= starts_ref[g] - i * bm) & (row < ends_ref[g] - i * bm)"),
            ),
        ),
        Alternative(
            "makes a column of row numbers",
            old=_ROW + ".broadcasted_iota(jnp.int32, o_ref.shape, 0)",
            new="row = (i * bm + jnp.arange(bm))[:, None]",
        ),
        Alternative("takes other blocks", old="    bm = 64\n", new="    bm = 32\n"),
    ],
    scale=scale,
    par=par,
    fresh=fresh,
)
