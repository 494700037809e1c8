"""Rung 3: the same statistics, from one launch."""

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
# Sum with the largest number *so far*, `m_old`. When a block brings a larger one, `m_new`, the terms that you have added
# up are too large: each is $e^{x - m_{old}}$, and should be $e^{x - m_{new}}$. But they are all wrong **by the same
# factor**, so one multiplication corrects their sum, without another look at `x`.
#
# ![The terms of a sum as bars, after each of three blocks: when the maximum grows, all earlier bars shrink by the same factor.](diagrams/splash_attention/online_softmax.svg)
#
# Which factor is it, whatever `x` is? Call it `alpha`. Where the maximum did not change it has to be 1. Check yourself on
# these six numbers:
#
# ```text
# block of x     1  3      2  5      4  0
# m so far          3         5         5
# l so far      1.135     1.203     1.578      1.203 = alpha · 1.135 + e²⁻⁵ + e⁵⁻⁵
# ```
#
# This is the [online softmax](https://arxiv.org/abs/1805.02867) (Milakov and Gimelshein, 2018).
#
# **Where to start.** `l` at 0 and `m` at -1e30. In the first step `alpha` is then the exponential of a hugely negative
# number, which is 0.
#
# <details><summary>More: why not -inf?</summary>
#
# `-inf` would do here as well. But soon masked scores will be `-inf`, and
# a maximum that has seen nothing else would give $e^{-\infty - (-\infty)}$, which is NaN, and NaN never goes away. One
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
# What did it save? Below are the receipts of both references on 4096 rows of 32,768 numbers. Compare
# bytes and steps: in blocks this small the steps cost more. The kernel does more arithmetic now, one
# `alpha` a row and block.

# %% active="ipynb"
# for name in ("softmax_two_pass", "online_softmax"):
#     print(name)
#     receipt(find(name).solution, jax.ShapeDtypeStruct((4096, 32768), jnp.float32))

# %% tags=["author"]
from puzzles import Alternative, Mistake, Puzzle
from puzzles.splash_attention.softmax_two_pass import fresh, make_inputs, scale, times_read

_START = """    @pl.when(pl.program_id(1) == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)

"""
_NEW = "m_new = jnp.maximum(m_old, jnp.max(x, axis=1, keepdims=True))"
_ALPHA = "alpha = jnp.exp(m_old - m_new)"
_P = "p = jnp.exp(x - m_new)"
_L = "l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)"

PUZZLE = Puzzle(
    spec=online_softmax_spec,
    solution=online_softmax,
    results=("m", "l"),
    inputs=make_inputs,
    cases=[dict(M=128, N=384), dict(M=192, N=128, large=True)],
    fresh=fresh,
    keeps={"x": "finite"},  # a maximum on the CPU may drop NaN
    scale=scale,
    par=times_read,
    tolerance=2e-4,
    hints=[
        "$e^{x - m_{new}}$ is $e^{x - m_{old}}$ times something that does not depend on x. What?",
        "Read the old maximum into a variable before you store the new one: the factor needs both. "
        "`jnp.maximum`, `jnp.exp`, `jnp.sum(..., axis=1, keepdims=True)`.",
        "Under `pl.when`, start both outputs. Then: the old maximum, the new one, the factor from the "
        "two, the block's exponentials shifted by the new one; l becomes the corrected old sum plus the "
        "block's sum; last, store the new maximum.",
    ],
    explain="""All terms of the old sum are off by one common factor, exp(m_old - m_new), so one
    multiplication corrects them and x is read only once. The factor is at most 1: it never
    overflows.""",
    mistakes=[
        Mistake(
            "never corrects the old sum",
            old=_L,
            new=_L.replace("alpha * ", ""),
            says="what was summed before a larger maximum came is too large; if the factor is there, "
            "it was computed after m_ref had been overwritten, and is 1",
        ),
        Mistake(
            "gives NaN for every l",
            old=_ALPHA,
            new="alpha = jnp.exp(m_new - m_old)",
            says="m is right, and l is spoilt. A factor upside down may do that: exp(m_new - m_old) overflows in the "
            "first step. So may new terms that are shifted by m_old and corrected together with the old sum: their exp "
            "overflows there, and 0 · inf is NaN. So does an l that never starts at 0: it holds garbage (NaN here)",
        ),
        Mistake(
            "corrects the new terms, too",
            old=_L,
            new="l_ref[...] = alpha * (l_ref[...] + jnp.sum(p, axis=1, keepdims=True))",
            says="this block's exponentials are already shifted by the new maximum",
        ),
        Mistake(
            "does not subtract a maximum",
            edits=((_P, "p = jnp.exp(x)"), (_L, _L.replace("alpha * ", ""))),
            says="the exponential of a large number overflows to inf",
        ),
        Mistake(
            "shifts the new terms by the old maximum",
            old=_P,
            new="p = jnp.exp(x - m_old)",
            says="the old maximum may lie far below x, in the first step by 1e30: shift by the new "
            "one",
        ),
        Mistake(
            "shifts the new terms by their own block's maximum",
            old=_P,
            new="p = jnp.exp(x - jnp.max(x, axis=1, keepdims=True))",
            says="if an earlier block held the maximum, these terms come out too large: shift by the "
            "larger of both",
        ),
        Mistake(
            "forgets earlier maxima",
            old=_NEW,
            new="m_new = jnp.max(x, axis=1, keepdims=True)",
            says="m is the maximum of the last block, not of the row: keep the larger of old and new",
        ),
        Mistake(
            "starts the sum over where the maximum grows",
            old=_L,
            new="l_ref[...] = jnp.where(m_new > m_old, 0.0, l_ref[...]) + jnp.sum(p, axis=1, keepdims=True)",
            says="a larger maximum makes the old terms smaller, and not 0: multiply their sum by the factor",
        ),
        Mistake(
            "leaves out what raises no maximum",
            old=_L,
            new="l_ref[...] = jnp.where(m_new > m_old, alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True), l_ref[...])",
            says="a block that stays below the maximum so far has terms, too: only the factor is 1 there",
        ),
        Mistake(
            "starts the maximum at zero",
            old="jnp.full_like(m_ref, -1e30)",
            new="jnp.zeros_like(m_ref)",
            says="where all numbers of a row are negative, their maximum is, too",
        ),
        Mistake(
            "starts the maximum at -10000",
            old="m_ref, -1e30)",
            new="m_ref, -1e4)",
            says="a row may lie lower still: start at -1e30, below any score",
        ),
        Mistake(
            "starts m and l where axis 0 begins",
            old="    @pl.when(pl.program_id(1) == 0)",
            new="    @pl.when(pl.program_id(0) == 0)",
            says="axis 0 counts blocks of rows. A row begins where axis 1 does, at `pl.program_id(1) == 0`",
        ),
        Mistake(
            "never starts m and l",
            old=_START,
            new="",
            says="fresh output blocks hold garbage (NaN here)",
        ),
        Mistake(
            "starts over at every step",
            old=_START,
            new="    m_ref[...] = jnp.full_like(m_ref, -1e30)\n    l_ref[...] = jnp.zeros_like(l_ref)\n",
            says="m and l are those of the last block alone",
        ),
        Mistake(
            "still makes two launches",
            code="""
def online_softmax(x):
    from puzzles import find

    return find("softmax_two_pass").solution(x)
""",
            says="2 kernels are launched, where 1 is enough",
            stage="work",
        ),
        Mistake(
            "reads x twice in one launch",
            code="""
def online_softmax_kernel(x_ref, m_ref, l_ref):
    again, j = pl.program_id(1), pl.program_id(2)

    @pl.when((again == 0) & (j == 0))
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)

    @pl.when(again == 0)
    def _():
        m_ref[...] = jnp.maximum(m_ref[...], jnp.max(x_ref[...], axis=1, keepdims=True))

    @pl.when(again == 1)
    def _():
        l_ref[...] += jnp.sum(jnp.exp(x_ref[...] - m_ref[...]), axis=1, keepdims=True)


def online_softmax(x):
    M, N = x.shape
    column = pl.BlockSpec((64, 1), lambda i, again, j: (i, 0))
    statistic = jax.ShapeDtypeStruct((M, 1), jnp.float32)
    return pl.pallas_call(
        online_softmax_kernel,
        grid=(M // 64, 2, N // 128),
        in_specs=[pl.BlockSpec((64, 128), lambda i, again, j: (i, j))],
        out_specs=(column, column),
        out_shape=(statistic, statistic),
        interpret=INTERPRET,
    )(x)
""",
            says="Blocks of `x_ref` are fetched 65,536 times, where 32,768 are enough",
            stage="work",
        ),
        Mistake(
            "takes whole rows in one block",
            old="bm, bn = 64, 128",
            new="bm, bn = 64, N",
            says="for blocks of (64, 131072)",
            stage="work",
        ),
        Mistake(
            "drops the axis it reduces",
            old=_NEW,
            new="m_new = jnp.maximum(m_old, jnp.max(x, axis=1))",
            says="is a column, (rows, 1), as `keepdims=True` gives it",
            stage="error",
        ),
        Mistake(
            "adds the old sum twice",
            old="l_ref[...] = alpha * l_ref",
            new="l_ref[...] += alpha * l_ref",
            says="`+=` adds to what l holds, and alpha times that is added once more: assign, or "
            "correct l before you add",
        ),
        Mistake(
            "swaps the starts of m and l",
            old="""        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)""",
            new="""        m_ref[...] = jnp.zeros_like(m_ref)
        l_ref[...] = jnp.full_like(l_ref, -1e30)""",
            says="a maximum starts far below every number, a sum at 0",
        ),
        Mistake(
            "corrects by a difference",
            old="alpha = jnp.exp(m_old - m_new)",
            new="alpha = m_old - m_new",
            says="each old term is an exponential: it is multiplied by exp(m_old - m_new)",
        ),
        Mistake(
            "never stores the new maximum",
            old="    m_ref[...] = m_new",
            new="    pass",
            says="the next block has to know it, and it is a result: write it into m_ref at every step",
        ),
        Mistake(
            "corrects the new terms instead of the old",
            old="alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)",
            new="l_ref[...] + alpha * jnp.sum(p, axis=1, keepdims=True)",
            says="the new ones are shifted by m_new already: alpha belongs to the old sum",
        ),
        Mistake(
            "takes one maximum for all rows of a block",
            old="    m_new = jnp.maximum(m_old, jnp.max(x, axis=1, keepdims=True))",
            new="    m_new = jnp.maximum(m_old, jnp.max(x))",
            says="each row has its own: reduce along axis 1, and keep that axis",
        ),
        Mistake(
            "keeps the sum of the last block alone",
            old="l_ref[...] = alpha * l_ref[...] + jnp",
            new="l_ref[...] = jnp",
            says="it takes the place of the old sum: add alpha times that",
        ),
        Mistake(
            "adds up the shifted numbers without `exp`",
            old="p = jnp.exp(x - m_new)",
            new="p = x - m_new",
            says="l is a sum of exponentials",
        ),
        Mistake(
            "corrects by exp(m_old)",
            old="alpha = jnp.exp(m_old - m_new)",
            new="alpha = jnp.exp(m_old)",
            says="the old terms were shifted by m_old and are to be shifted by m_new: the factor is "
            "the exponential of the difference, m_old - m_new",
        ),
    ],
    alternatives=[
        Alternative("starts at -inf", old="m_ref, -1e30)", new="m_ref, -jnp.inf)"),
        Alternative(
            "merges the statistics of two parts",
            code="""
def online_softmax_kernel(x_ref, m_ref, l_ref):
    j = pl.program_id(1)
    m_block = x_ref[...].max(axis=1, keepdims=True)
    l_block = jnp.exp(x_ref[...] - m_block).sum(axis=1, keepdims=True)

    @pl.when(j == 0)
    def _():
        m_ref[...] = m_block
        l_ref[...] = l_block

    @pl.when(j > 0)
    def _():
        m = jnp.maximum(m_ref[...], m_block)
        l_ref[...] = l_ref[...] * jnp.exp(m_ref[...] - m) + l_block * jnp.exp(m_block - m)
        m_ref[...] = m
""",
        ),
        Alternative(
            "walks the columns from right to left",
            old="lambda i, j: (i, j)",
            new="lambda i, j: (i, N // bn - 1 - j)",
        ),
        Alternative("takes other blocks", old="bm, bn = 64, 128", new="bm, bn = 32, 128"),
    ],
)
