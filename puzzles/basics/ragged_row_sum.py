"""Rung 8: a last block that hangs over the edge."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## ragged_row_sum: keep garbage out of a sum
#
# A reduction mixes what lies beyond the edge into good numbers:
#
# ```text
# N = 300, bn = 128        |←──── 128 ────→|←──── 128 ────→|← 44 →|· garbage ·|
# ```
#
# So mask the block first: find each element's **column in the array**, and replace what lies at `N`
# or beyond by zero, with `jnp.where(mask, x, 0.0)`. Multiplying by the mask is not enough, since
# garbage may be NaN (here it is), and NaN × 0 is NaN. Nor is dropping NaNs: on a TPU, garbage may
# be any number.
#
# ![The third block of a row hangs over the right edge of x; what lies beyond the array is marked.](diagrams/basics/ragged_row_sum.svg)
#
# `jax.lax.broadcasted_iota(jnp.int32, shape, 1)` gives a block of column numbers 0, 1, 2, ... `N`
# is a Python int: `functools.partial` binds it. The rest is `row_sum`. Do the ragged rows need a
# mask?

# %%
def ragged_row_sum_spec(x: Float[Array, "M N"]) -> Float[Array, "M 1"]:
    return jnp.sum(x, axis=1, keepdims=True)


# %%
def ragged_row_sum_kernel(x_ref, o_ref, *, N):
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _():
        o_ref[...] = jnp.zeros_like(o_ref)

    ### BEGIN SOLUTION
    bn = x_ref.shape[1]
    column = j * bn + jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
    x = jnp.where(column < N, x_ref[...], 0.0)
    o_ref[...] += jnp.sum(x, axis=1, keepdims=True)
    ### END SOLUTION


def ragged_row_sum(x: Float[Array, "M N"]) -> Float[Array, "M 1"]:
    M, N = x.shape
    bm, bn = 64, 128
    return pl.pallas_call(
        functools.partial(ragged_row_sum_kernel, N=N),
        grid=(pl.cdiv(M, bm), pl.cdiv(N, bn)),
        in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((bm, 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((M, 1), x.dtype),
        interpret=INTERPRET,
    )(x)


# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle, array, rng
from puzzles.basics._audits import counted


def make_inputs(key, M, N):
    # One NaN belongs to the data: whoever drops NaNs instead of masking columns loses it, too.
    x = rng(key).normal(0.5, 1, (M, N))
    x[M // 2, N // 3] = float("nan")
    return (array(x, jnp.float32),)


def scale(M=1000, N=262100):
    # Eight of these rows, with a second buffer, are more than 16 MiB.
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


def fresh(r):
    return dict(M=int(r.choice([40, 72])), N=int(r.choice([129, 640, 1000, 1151])))


_MASK = "jnp.where(column < N, x_ref[...], 0.0)"

PUZZLE = Puzzle(
    spec=ragged_row_sum_spec,
    solution=ragged_row_sum,
    inputs=make_inputs,
    # In the second nothing is garbage, in the third every row is one ragged block: what gives NaN in
    # the first differs there.
    cases=[dict(M=100, N=300), dict(M=64, N=128), dict(M=136, N=511)],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # x is needed once
    par=lambda launch: f"{counted(launch.outputs[0].transfers, 'block of sums')} in {counted(launch.steps, 'step')}",
    hints=[
        "It is row_sum, with a mask before the sum. Which elements of a block do not exist in the array?",
        "An element's column in the array is j × bn plus its column in the block, which "
        "`jax.lax.broadcasted_iota` gives. `jnp.where` chooses between the element and zero.",
        "Compute the block of columns, compare it with N, choose by `jnp.where`; then sum, as in "
        "row_sum. Rows beyond the edge produce sums that are dropped when they are written.",
    ],
    explain="""The reference's mask compares columns of the array, not of the block, so only the last
    block loses anything. Ragged rows need no mask: their sums are garbage, and writes beyond the edge
    are dropped.""",
    mistakes=[
        Mistake(
            "adds garbage to its sum",
            old=_MASK,
            new="x_ref[...]",
            says="one of these: nothing is masked; the mask multiplies, and NaN × 0 is NaN, where "
            "`jnp.where` would choose; it lets column N through, by `<=`",
        ),
        Mistake(
            "multiplies by its mask",
            old=_MASK,
            new="x_ref[...] * (column < N)",
            says="the garbage beyond the edge may be NaN, as it is here, and NaN × 0 is NaN: choose by "
            "`jnp.where`",
        ),
        Mistake(
            "lets column N through",
            old="column < N",
            new="column <= N",
            says="the columns of the array are 0 to N - 1, so column N is garbage already: `<`, not `<=`",
        ),
        Mistake(
            "counts every block's columns from bn",
            old="column = j * bn",
            new="column = bn",
            says="block j begins at column j * bn",
        ),
        Mistake(
            "compares columns of the block with N",
            old="column = j * bn + ",
            new="column = ",
            says="`broadcasted_iota` counts from 0 in every block, so in the last one nothing is masked: "
            "add j * bn before you compare",
        ),
        Mistake(
            "swaps the two choices of `jnp.where`",
            old=_MASK,
            new="jnp.where(column < N, 0.0, x_ref[...])",
            says="the first is taken where the condition holds, so what lies beyond the edge is kept and "
            "the array is dropped",
        ),
        Mistake(
            "never sets its sum to zero",
            old="o_ref[...] = jnp.zeros_like(o_ref)",
            new="pass",
            says="a fresh output block holds garbage (NaN here), and the sum is added to it",
        ),
        Mistake(
            "masks one column too many",
            old="column < N",
            new="column < N - 1",
            says="column N - 1 is the last one that exists",
        ),
        Mistake(
            "counts its blocks from one",
            old="column = j * bn",
            new="column = (j + 1) * bn",
            says="block 0 begins at column 0: its columns are j * bn and up",
        ),
        Mistake(
            "masks every block like the last one",
            old="jnp.where(column < N,",
            new="jnp.where(column - j * bn < (N - 1) % bn + 1,",
            says="compare the column in the array, j * bn + column in the block, with N",
        ),
        Mistake(
            "masks rows instead of columns",
            old="jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)",
            new="jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)",
            says="dimension 1 of a block runs along the columns",
        ),
        Mistake(
            "rounds the grid down",
            old="pl.cdiv(N, bn))",
            new="N // bn)",
            says="the columns of the last, ragged block are missing from every sum",
        ),
        Mistake(
            "compares the column with the width of a block",
            old="column < N",
            new="column < bn",
            says="`bn` is how wide a block is, and only the first block lies left of it; the array is "
            "`N` wide",
        ),
        Mistake(
            "keeps only the last block's sum",
            old="o_ref[...] += jnp.sum(x,",
            new="o_ref[...] = jnp.sum(x,",
            says="every step stores its own sum over the sum so far: add, by `+=`",
        ),
        Mistake(
            "keeps N % bn columns of the last block",
            old="column < N",
            new="(j < pl.num_programs(1) - 1) | (column - j * bn < N % bn)",
            says="where bn divides N, as in 256 columns, N % bn is 0, and a whole block is lost; "
            "compare columns of the array with N instead",
        ),
        Mistake(
            "drops sums that are NaN",
            old="+= jnp.sum(x, axis=1, keepdims=True)",
            new="+= jnp.nan_to_num(jnp.sum(x_ref[...], axis=1, keepdims=True))",
            says="the good columns of the last block are lost with the garbage, and a NaN in the data "
            "belongs in its row's sum. Mask the block before you sum it",
        ),
        Mistake(
            "fills the padding with ones",
            old="x_ref[...], 0.0)",
            new="x_ref[...], 1.0)",
            says="what is masked must not count: zero is what a sum does not notice",
        ),
        Mistake(
            "drops every NaN instead of masking the columns",
            old=_MASK,
            new="jnp.nan_to_num(x_ref[...])",
            says="a NaN in the data belongs in its row's sum, and garbage on a TPU may be any number",
        ),
        Mistake(
            "pads the array in HBM first",
            old="    )(x)",
            new="    )(jnp.pad(x, ((0, -M % bm), (0, -N % bn))))[:M]",
            says="`pad` in `)(jnp.pad(x,",
            stage="work",
        ),
        Mistake(
            "zeroes with jax.numpy before the launch",
            old="    )(x)",
            new="    )(jnp.where(jnp.isnan(x), 0.0, x))",
            says="works on the data outside the kernel",
            stage="pallas",
        ),
        Mistake(
            "takes whole rows in one block",
            old="bm, bn = 64, 128",
            new="bm, bn = 64, N",
            says="`x_ref` takes 128 MiB, for blocks of (64, 262100)",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative(
            "masks the last block only",
            edits=(
                (
                    f"    x = {_MASK}\n    o_ref[...] += jnp.sum(x, axis=1, keepdims=True)",
                    """    last = pl.num_programs(1) - 1

    @pl.when(j < last)
    def _():
        o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)

    @pl.when(j == last)
    def _():
        o_ref[...] += jnp.sum(jnp.where(column < N, x_ref[...], 0.0), axis=1, keepdims=True)""",
                ),
            ),
        ),
        Alternative(
            "compares with what is left of the row",
            old="jnp.where(column < N,",
            new="jnp.where(column - j * bn < N - j * bn,",
        ),
        Alternative(
            "chooses start and mask by jnp.where, in a kernel from a factory, under jit",
            code="""
@jax.jit
def ragged_row_sum(x):
    rows, columns = x.shape
    block = 40, 128

    def kernel(x_ref, o_ref):
        start = pl.program_id(1) * block[1]
        left = jnp.minimum(columns - start, block[1])
        inside = jax.lax.broadcasted_iota(jnp.int32, block, 1) < left
        part = jax.lax.select(inside, x_ref[...], jnp.zeros(block)).sum(1, keepdims=True)
        o_ref[...] = part + jnp.where(start == 0, 0.0, o_ref[...])

    return pl.pallas_call(
        kernel,
        grid=(-(-rows // block[0]), -(-columns // block[1])),
        in_specs=[pl.BlockSpec(block, lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((block[0], 1), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((rows, 1), jnp.float32),
        interpret=INTERPRET,
    )(x)
""",
        ),
    ],
)
