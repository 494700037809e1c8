"""Puzzle 8: do not fetch what is not computed."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## causal_prefetch: the index map decides what is fetched
#
# Your causal kernel skips the arithmetic above the diagonal. But according to its receipt, it reads as many bytes
# as a kernel that skips nothing. Why?
#
# Because `pl.when` acts inside the kernel, and the blocks are fetched outside it. While one
# step computes, the **pipeline** is already copying the next step's blocks from HBM. It calls the index map, compares
# the result with the block that it already has, and fetches if they differ:
#
# ```text
# rows of block i = 1, bq = 64, bk = 128, four blocks of k
# step (i, j)           (1,0)   (1,1)   (1,2)   (1,3)
# the kernel            works   skips   skips   skips
# map returns (j, 0)      0       1       2       3       three blocks fetched for nothing
# you want                0       0       0       0       an index that does not change: nothing to fetch
# ```
#
# So the way to fetch nothing is to **name the same block again**. The kernel reads `j` from `pl.program_id`, not from the
# map, and does not change.
#
# ![In the first row of steps only key block 0 is fetched; at the steps that are skipped it is reused.](diagrams/splash_attention/causal_prefetch.svg)
#
# Write the index map that `k` and `v` share. Up to the last block that the queries in block `i` need, it returns `j`; then
# it keeps returning that block. An index map runs on traced numbers, so use `jnp`'s functions.


# %%
def causal_prefetch_spec(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    scores = jnp.dot(q, k.T) / H**0.5
    seen = jnp.arange(S)[None, :] <= jnp.arange(T)[:, None]
    return jnp.dot(jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=1), v)


# %% jupyter={"source_hidden": true} cellView="form"
# @title The kernel (contains the answer to causal_attention)
from puzzles.splash_attention.flash_attention import spread


def causal_prefetch_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    (bq, H), bk = q_ref.shape, k_ref.shape[0]

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(j * bk < (i + 1) * bq)
    def _():
        s = jax.lax.dot_general(
            q_ref[...],
            k_ref[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        row = i * bq + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        column = j * bk + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        s = jnp.where(column <= row, s * H**-0.5, -jnp.inf)
        m_new = jnp.maximum(m_ref[...], jnp.max(s, axis=1, keepdims=True))
        p = jnp.exp(s - spread(m_new, s))
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = spread(alpha, acc_ref) * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...] / l_ref[:, :1]


# %%
def causal_prefetch(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    bq, bk = (64, 128) if T < S else (128, 64)  # for practice: bq < bk, and bq > bk

    def kv_map(i, j):
        ### BEGIN SOLUTION
        last_needed = ((i + 1) * bq - 1) // bk
        return jnp.minimum(j, last_needed), 0
        ### END SOLUTION

    return pl.pallas_call(
        causal_prefetch_kernel,
        grid=(T // bq, S // bk),
        in_specs=[
            pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
            pl.BlockSpec((bk, H), kv_map),
            pl.BlockSpec((bk, H), kv_map),
        ],
        out_specs=pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((T, H), jnp.float32),
        scratch_shapes=[
            pltpu.VMEM((bq, 128), jnp.float32),
            pltpu.VMEM((bq, 128), jnp.float32),
            pltpu.VMEM((bq, H), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(q, k, v)


# %% [markdown]
# What is it worth? Here are the two reference launches on longer sequences. The index map saves
# about half of the traffic, as `pl.when` saved about half of the arithmetic. The grid is still as
# long as it was. To shorten it, you have to tell the kernel which blocks to visit. That is what Part III is about.

# %% active="ipynb"
# print("  T = S   blocks with work   MiB read: causal_attention   causal_prefetch")
# for n in (1024, 2048, 4096, 8192):
#     x = jax.ShapeDtypeStruct((n, 128), jnp.float32)
#     (plain,) = trace(find("causal_attention").solution, x, x, x)
#     (clamped,) = trace(find("causal_prefetch").solution, x, x, x)
#     work = f"{(plain.dots[0].executed > 0).sum()} of {plain.steps}"
#     bytes_read = f"{plain.hbm_bytes_read / 2**20:28.1f}{clamped.hbm_bytes_read / 2**20:18.1f}"
#     print(f"{n:7}{work:>19}{bytes_read}")

# %% tags=["author"]
import numpy as np

from puzzles import Puzzle
from puzzles.splash_attention.attention_one_block import fetches
from puzzles.splash_attention.causal_attention import draw, fresh, scale


def make_inputs(key, T, S, H):
    return draw(key, T, S, H)


def audit(launch):
    q, *moved = launch.inputs
    (bq, _), (bk, _), (T, _), (S, _) = q.block, moved[0].block, q.shape, moved[0].shape
    needed = sum(min(((i + 1) * bq - 1) // bk + 1, S // bk) for i in range(T // bq))
    for name, one in zip("kv", moved, strict=True):
        if one.transfers <= needed + 1:  # the last row may skip ahead to a row that is not there
            continue
        steps = ((launch.at(n), one.blocks[n][0]) for n in np.flatnonzero(one.fetched))
        vain = (step for step in steps if (step[0][0] + 1) * bq <= step[0][-1] * bk)
        step, block = next(vain, ("", ""))
        raise AssertionError(
            f"blocks of `{name}` are fetched {one.transfers} times, where {needed} have work: "
            "in steps that are skipped, name a block that is needed, the last one or the next"
            + (f"; step {step} is skipped, and the map returns {block}" if step else "")
        )


PUZZLE = Puzzle(
    spec=causal_prefetch_spec,
    solution=causal_prefetch,
    inputs=make_inputs,
    cases=[dict(T=256, S=384, H=64), dict(T=384, S=320, H=16)],
    fresh=fresh,
    scale=scale,
    par=fetches,
    audit=audit,
    tolerance=2e-4,
    hints=[
        "Which is the last row in block i of the queries? It attends to all columns up to its "
        "own number. In which block of k is that column?",
        "Integer division finds the block of a column; `jnp.minimum` keeps an index from going "
        "further. Both work on traced numbers; Python's `min` does not.",
        "Two lines: compute the number of the last block that is needed, from i, bq and bk; "
        "then return the smaller of j and that number, and the block index along H, which never "
        "changes.",
    ],
    explain="""A skipped step that names the previous step's block again costs no traffic. The
    reference's clamp is right for any bq and bk: the last row of block i is (i + 1)·bq - 1 and
    attends to columns up to its own number, which is in block ((i + 1)·bq - 1) // bk. If that
    is beyond the end of k, j never gets there and the clamp does nothing. A map that names
    block 0 in skipped steps is right as well: it fetches the next row's first block early, and
    one block for nothing if the last row skips steps.""",
)
