"""Puzzle 3: the same statistics, from one launch."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## online_softmax: change your mind about the maximum
#
# Two passes read `x` twice, only because the sum waits for the finished maximum. Does it have to?
#
# Subtract the largest number *so far*, `m_old`, and sum the exponentials. When a block brings a larger one, `m_new`,
# the terms that you
# have already added are too large: each is $e^{x - m_{old}}$ and should be $e^{x - m_{new}}$. But they are all wrong
# **by the same factor**, so one multiplication corrects their sum, without another look at `x`.
#
# ![The terms of a sum as bars, after each of three blocks: when the maximum grows, all earlier bars shrink by the same factor.](diagrams/splash_attention/online_softmax.svg)
#
# Which factor is it, for any `x`? Call it `alpha`. If the maximum did not change, `alpha` has to be 1. Check your formula on
# these six numbers:
#
# ```text
# block of x     1  3      2  5      4  0
# m so far          3         5         5
# l so far      1.135     1.203     1.578
#
# second block: 1.203 = alpha · 1.135 + e²⁻⁵ + e⁵⁻⁵
# ```
#
# This is the [online softmax](https://arxiv.org/abs/1805.02867) (Milakov and Gimelshein, 2018).
#
# **Where to start.** Start `l` at 0 and `m` at -1e30. In the first step `alpha` is then 0: the
# exponential of a hugely negative number.
#
# <details><summary>More: why not -inf?</summary>
#
# `-inf` would do here as well. But soon masked scores will be `-inf`. If a row has seen only masked scores, its maximum is
# still `-inf`, and $e^{-\infty - (-\infty)}$ is NaN, which never goes away. One
# finite number prevents it: the start of `m`.
#
# </details>


# %%
def online_softmax_spec(
    x: Float[Array, "M N"],
) -> tuple[Float[Array, "M 1"], Float[Array, "M 1"]]:
    m = jnp.max(x, axis=1, keepdims=True)
    l = jnp.sum(jnp.exp(x - m), axis=1, keepdims=True)
    return m, l


# %%
def online_softmax_kernel(x_ref, m_ref, l_ref):
    ### BEGIN SOLUTION
    @pl.when(pl.program_id(1) == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)

    x, m_old = x_ref[...], m_ref[...]
    m_new = jnp.maximum(m_old, jnp.max(x, axis=1, keepdims=True))
    alpha = jnp.exp(m_old - m_new)
    p = jnp.exp(x - m_new)
    l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    m_ref[...] = m_new
    ### END SOLUTION


def online_softmax(
    x: Float[Array, "M N"],
) -> tuple[Float[Array, "M 1"], Float[Array, "M 1"]]:
    M, N = x.shape
    bm, bn = 64, 128
    column = pl.BlockSpec((bm, 1), lambda i, j: (i, 0))
    statistic = jax.ShapeDtypeStruct((M, 1), jnp.float32)
    return pl.pallas_call(
        online_softmax_kernel,
        grid=(M // bm, N // bn),
        in_specs=[pl.BlockSpec((bm, bn), lambda i, j: (i, j))],
        out_specs=(column, column),
        out_shape=(statistic, statistic),
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# How much did it save? Below are the receipts of both puzzles' references, on 4096 rows of 32,768 numbers. Compare
# bytes and steps: with blocks this small, the steps cost more than the bytes. The kernel does more arithmetic now: one
# `alpha` per row and block.

# %% active="ipynb"
# for name in ("softmax_two_pass", "online_softmax"):
#     print(name)
#     receipt(find(name).solution, jax.ShapeDtypeStruct((4096, 32768), jnp.float32))

# %% tags=["author"]
from puzzles import Puzzle
from puzzles.splash_attention.softmax_two_pass import fresh, make_inputs, scale, times_read

PUZZLE = Puzzle(
    spec=online_softmax_spec,
    solution=online_softmax,
    results=("m", "l"),
    inputs=make_inputs,
    cases=[
        dict(M=128, N=384),
        dict(M=192, N=128, large=True),
        dict(M=64, N=17 * 128),
    ],
    fresh=fresh,
    scale=scale,
    par=times_read,
    tolerance=2e-4,
    hints=[
        "$e^{x - m_{new}}$ is $e^{x - m_{old}}$ times a factor that does not depend on x. Which?",
        "Read the old maximum into a variable before you store the new one: the factor needs "
        "both. `jnp.maximum`, `jnp.exp`, `jnp.sum(..., axis=1, keepdims=True)`.",
        "Under `pl.when`, start both outputs. Then compute: the old maximum; the new one; the "
        "factor from the two; the block's exponentials, shifted by the new maximum. l becomes "
        "the corrected old sum plus the block's sum. Finally store the new maximum.",
    ],
    explain="""All terms of the old sum are off by the same factor, exp(m_old - m_new). So one
    multiplication corrects them, and x is read only once. The factor is at most 1: it never
    overflows.""",
)
