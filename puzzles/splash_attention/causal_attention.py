"""Puzzle 7: compute only below the diagonal."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## causal_attention: skip the blocks that the mask hides
#
# A language model must not look ahead: **row t attends to column s only if s ≤ t**, even if `T` and `S` differ. The
# spec computes all scores and throws about half of them away. Before your kernel computes a block, it knows on
# which side of the diagonal the block is:
#
# ```text
#  bq = 64, bk = 128      columns 0-127   128-255   256-383
#  i = 0   rows   0-63         ◣             ·         ·
#  i = 1   rows  64-127        ◣             ·         ·
#  i = 2   rows 128-191        ■             ◣         ·
#  i = 3   rows 192-255        ■             ◣         ·
#
#  ■ all of it counts     ◣ some of it counts: mask     · none of it counts: skip
# ```
#
# **Skip** means: no dot, no exponential. `pl.when` is a branch, so the code that it jumps over costs no arithmetic.
#
# **Mask** means: a score that must not count becomes `-inf`, *before* it enters the running maximum. Then `exp(s - m)` is
# exactly zero, and the rest of the kernel does not notice. Compare positions in the arrays, not in the block, as in
# `ragged_row_sum`.
#
# ![A map of score blocks: those on and below the diagonal are computed, those above it are dashed, skipped.](diagrams/splash_attention/causal_attention.svg)
#
# Here is `flash_attention`'s kernel under a condition. Fill in the condition and the mask, for any `bq` and `bk`:
# compare rows with columns, not `i` with `j`.


# %%
def causal_attention_spec(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    scores = jnp.dot(q, k.T) / H**0.5
    seen = jnp.arange(S)[None, :] <= jnp.arange(T)[:, None]
    return jnp.dot(jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=1), v)


# %%
from puzzles.splash_attention.flash_attention import spread


def causal_attention_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
    i, j = pl.program_id(0), pl.program_id(1)
    (bq, H), bk = q_ref.shape, k_ref.shape[0]

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    # needed: is there a score in this block that counts?
    ### BEGIN SOLUTION
    needed = j * bk <= (i + 1) * bq - 1
    ### END SOLUTION

    @pl.when(needed)
    def _():
        s = jax.lax.dot_general(
            q_ref[...],
            k_ref[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        # s: scaled by 1/√H, and masked
        ### BEGIN SOLUTION
        row = i * bq + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        column = j * bk + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        s = jnp.where(column <= row, s * H**-0.5, -jnp.inf)
        ### END SOLUTION
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


def causal_attention(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    bq, bk = (64, 128) if T < S else (128, 64)  # for practice: bq < bk, and bq > bk
    return pl.pallas_call(
        causal_attention_kernel,
        grid=(T // bq, S // bk),
        in_specs=[
            pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
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


# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array, rng
from puzzles.splash_attention.attention import root


def draw(key, T, S, H, offsets=(1,)):
    """q, k, v with small and large rows of products, all exact in f32 even where a dot rounds to bf16.

    q and k are eighths of small integers. Of every four queries, number
    n + 1 is 32 times larger than the others and loves one key that it must not see: the one at
    `offsets[n]` from it, whose score is about 32 √H. Number 0, on a block's edge, stays small, but
    all its scores lie far above 0 or far below; a few have scores up to ±2^21 or more, alike or hundreds
    apart.
    """
    r = rng(key)
    q, k = (np.round(8 * r.normal(size=(n, H))) / 8 for n in (T, S))
    for n, offset in enumerate(offsets):
        t = np.arange(n + 1, T, 4)
        t = t[(t + offset >= 0) & (t + offset < S)]
        k[t + offset] = q[t]
        q[n + 1 :: 4] *= 32
    k[:, 0], q[::4, 0] = root(H), r.integers(-150, 151, len(q[::4]))
    for n, (size, column) in enumerate(((2**21, 0), (-(2**21), 0), (2**21, 1))):
        q[8 * n + 8 :: 32] = 0
        q[8 * n + 8 :: 32, column] = size
    v = r.normal(0.5, 1, (S, H))
    return tuple(array(x, jnp.float32) for x in (q, k, v))


def make_inputs(key, T, S, H):
    return draw(key, T, S, H)


def scale(T=16384, S=16384, H=128):
    return tuple(jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=256, S=384, H=64)
    T, S, H = r.choice([(64, 1152, 32), (640, 128, 32), (256, 256, 128), (192, 512, 8)])
    return dict(T=int(T), S=int(S), H=int(H))


def dots(launch):
    """In how many steps of the grid there is anything to multiply."""
    busy = sum(dot.executed for dot in launch.dots) > 0
    return f"dots in {busy.sum():,} of {launch.steps:,} {'step' if launch.steps == 1 else 'steps'}"


PUZZLE = Puzzle(
    spec=causal_attention_spec,
    solution=causal_attention,
    inputs=make_inputs,
    cases=[
        dict(T=256, S=384, H=64),
        dict(T=384, S=320, H=16),
        dict(T=128, S=64, H=16),
        dict(T=1152, S=1088, H=16),
    ],
    fresh=fresh,
    scale=scale,
    par=dots,
    tolerance=2e-4,
    hints=[
        "Of all the rows in block i, which one attends to the most columns? Of all the columns in "
        "block j, which one is attended to by the most rows? If this row does not reach this "
        "column, no score in the block counts.",
        "Put `@pl.when(condition)` around the work of a block; `q_ref.shape` and `k_ref.shape` "
        "hold bq and bk. `jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)` numbers the rows of "
        "a block, and with 1 as the last argument its columns; `jnp.where` masks.",
        "Needed: compare the block's first column with its last row. Mask: number the rows and "
        "the columns of the block, each from where the block begins in the arrays. Take the "
        "scaled score if the column is no later than the row, and -inf otherwise.",
    ],
    explain="""A block has work exactly if its first column is no later than its last row,
    whatever bq and bk. Blocks that fail this test are jumped over. Only the blocks that the
    diagonal crosses need the mask; applying it to the ones below as well changes nothing.""",
)
