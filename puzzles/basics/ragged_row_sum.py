"""Puzzle 8: a last block that hangs over the edge."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## ragged_row_sum: keep garbage out of a sum
#
# A reduction mixes the garbage beyond the edge with good numbers:
#
# ```text
# N = 300, bn = 128        |←──── 128 ────→|←──── 128 ────→|← 44 →|· garbage ·|
# ```
#
# So mask the block first: find each element's **column in the array**, and replace every element at
# column `N` or beyond by zero, with `jnp.where(mask, x, 0.0)`. Multiplying by the mask is not
# enough, since garbage may be NaN (on a CPU it is), and NaN × 0 is NaN. Nor is it enough to replace
# NaNs: on a TPU, garbage may be any number.
#
# ![The third block of a row hangs over the right edge of x; what lies beyond the array is marked.](diagrams/basics/ragged_row_sum.svg)
#
# `jax.lax.broadcasted_iota(jnp.int32, shape, 1)` gives a block of column numbers, from 0. `N`, the
# array's width, is a Python int, bound by `functools.partial`. The rest is `row_sum`. Do
# rows beyond M need a mask?


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
from puzzles import Puzzle, array, rng
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


PUZZLE = Puzzle(
    spec=ragged_row_sum_spec,
    solution=ragged_row_sum,
    inputs=make_inputs,
    # In the second nothing is garbage, in the third every row is one ragged block: what gives NaN in
    # the first differs there.
    cases=[
        dict(M=100, N=300),
        dict(M=64, N=128),
        dict(M=136, N=511),
        dict(M=64, N=17 * 128 + 5),
    ],
    fresh=fresh,
    scale=scale,
    slack={"bytes": 1.0},  # x is needed once
    par=lambda launch: (
        f"{counted(launch.outputs[0].transfers, 'block of sums')} in "
        f"{counted(launch.all_steps, 'step')}"
    ),
    hints=[
        "It is row_sum, with a mask before the sum. Which elements of a block do not exist in "
        "the array?",
        "An element's column in the array is j × bn plus its column in the block, which "
        "`jax.lax.broadcasted_iota` gives. `jnp.where` chooses between the element and zero.",
        "Compute the block of columns, compare it with N, choose by `jnp.where`; then sum, as in "
        "row_sum. Rows beyond the edge produce sums that are dropped when they are written.",
    ],
    explain="""The reference's mask compares columns of the array, not of the block, so only the last
    block loses anything. Ragged rows need no mask: their sums are garbage, and writes beyond the edge
    are dropped.""",
)
