"""Puzzle 10: several documents in one sequence."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## segment_attention: a mask that comes as data
#
# Many documents are shorter than a training sequence, so several are **packed** into one. They must
# not attend to each other. So each position has the number of its document, its **segment id**, and row t
# attends to column s only if s ≤ t *and* their ids are equal:
#
# ```text
#             kv_segments   4 4 4 7 7 1 1 1
#   q_segments  4           x
#               4           x x
#               4           x x x
#               7                 x
#               7                 x x
#               3                            <- no key has this id: attends to nothing
#               1                     x x
#               1                     x x x
# ```
#
# Segments are known only when the kernel runs, so the ids are operands like any other: a
# **column**, (T, 1), and a **row**, (1, S). Compare a (bq, 1) block with a (1, bk) block, and broadcasting gives you all
# bq × bk answers, with nothing to transpose in the kernel.
#
# In the row with no `x` all scores are `-inf` to the end, so `l` and `acc` stay 0. A row that attends to nothing
# should give **zeros**: handle the 0 / 0 yourself.
#
# Fill in the scale 1/√H and the mask, the store, and the specs of the ids.
#
# <details><summary>More: blocks between two documents</summary>
#
# The reference computes blocks between two documents, and masks them. A kernel may compare their ids first and skip the dots. The
# fetches remain, since index maps see i and j, not the ids.
#
# </details>


# %%
def segment_attention_spec(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    q_segments: Int[Array, " T"],
    kv_segments: Int[Array, " S"],
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    seen = (jnp.arange(S)[None, :] <= jnp.arange(T)[:, None]) & (
        q_segments[:, None] == kv_segments[None, :]
    )
    scores = jnp.where(seen, jnp.dot(q, k.T) / H**0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=1)
    return jnp.dot(jnp.where(seen, weights, 0.0), v)  # a row of NaNs becomes a row of zeros


# %%
from puzzles.splash_attention.flash_attention import spread


def segment_attention_kernel(
    q_ref, k_ref, v_ref, q_segments_ref, kv_segments_ref, o_ref, m_ref, l_ref, acc_ref
):
    i, j = pl.program_id(0), pl.program_id(1)
    (bq, H), bk = q_ref.shape, k_ref.shape[0]

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    @pl.when(j * bk <= (i + 1) * bq - 1)
    def _():
        s = jax.lax.dot_general(
            q_ref[...],
            k_ref[...],
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
        )
        row = i * bq + jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        column = j * bk + jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        # s: scaled, and masked
        ### BEGIN SOLUTION
        mask = (column <= row) & (q_segments_ref[...] == kv_segments_ref[...])
        s = jnp.where(mask, s * H**-0.5, -jnp.inf)
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
        l = l_ref[:, :1]
        ### BEGIN SOLUTION
        o_ref[...] = acc_ref[...] / jnp.where(l == 0.0, 1.0, l)
        ### END SOLUTION


def segment_attention(
    q: Float[Array, "T H"],
    k: Float[Array, "S H"],
    v: Float[Array, "S H"],
    q_segments: Int[Array, " T"],
    kv_segments: Int[Array, " S"],
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    bq, bk = (64, 128) if T < S else (256, 128)  # for practice: bq < bk, and bq > bk
    return pl.pallas_call(
        segment_attention_kernel,
        grid=(T // bq, S // bk),
        in_specs=[
            pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            ### BEGIN SOLUTION
            pl.BlockSpec((bq, 1), lambda i, j: (i, 0)),
            pl.BlockSpec((1, bk), lambda i, j: (0, j)),
            ### END SOLUTION
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
    )(q, k, v, q_segments.reshape(T, 1), kv_segments.reshape(1, S))


# %% [markdown]
# ### A length that is not a multiple of the block
#
# Every length so far was a multiple of its block. For any other length, **pad** the sequence to the next multiple, and cut the padded
# queries off the result. The padded keys come after all others, so if T ≤ S this causal mask hides them already.
# Otherwise use the ids: give these keys an id that no query has.

# %% active="ipynb"
# T, H = 300, 64
# q, k, v = np.random.default_rng(0).normal(size=(3, T, H)).astype(np.float32)
# ids = np.arange(T, dtype=np.int32) // 120
# longer = (0, -T % 256)  # 212 more
# padded = [np.pad(x, (longer, (0, 0))) for x in (q, k, v)]
# q_ids, kv_ids = (np.pad(ids, longer, constant_values=nobody) for nobody in (-1, -2))
# attend, spec = map(jax.jit, (find("segment_attention").solution, segment_attention_spec))
# out = np.asarray(attend(*padded, q_ids, kv_ids))[:T]
# print("largest difference:", abs(out - spec(q, k, v, ids, ids)).max())

# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array, rng
from puzzles.splash_attention.causal_attention import dots, draw


def make_inputs(key, T, S, H, nan=False):
    """Five documents; the queries of the middle one have an id of their own.

    Ids are any 32-bit numbers: two are neighbours that f32 does not tell apart, two differ in their
    sign alone, others are alike in their lowest bits.

    nan: a column of v is NaN, which belongs to the result, and every query sees a key.
    """
    q, k, v = draw(key, T, S, H, offsets=(1, -64))
    r = rng(key)
    cuts = np.sort(np.array([0.2, 0.42, 0.64, 0.83]) * min(T, S) + r.integers(-9, 10, 4))
    names = np.insert(r.permutation([-(2**24), 0, 2**24, 2**24 + 1]), 2, 300)
    ids = names[np.searchsorted(cuts, np.arange(max(T, S)), side="right")]
    q_segments = ids[:T] if nan else np.where(ids == 300, 44, ids)[:T]
    v = v.at[:, -1].set(jnp.nan) if nan else v
    return q, k, v, array(q_segments, jnp.int32), array(ids[:S], jnp.int32)


def scale(T=16384, S=16384, H=128):
    floats = (jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))
    return *floats, *(jax.ShapeDtypeStruct((n,), jnp.int32) for n in (T, S))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=256, S=384, H=64)
    T, S, H = r.choice([(128, 1152, 32), (768, 256, 32), (256, 256, 128), (192, 512, 8)])
    return dict(T=int(T), S=int(S), H=int(H))


PUZZLE = Puzzle(
    spec=segment_attention_spec,
    solution=segment_attention,
    inputs=make_inputs,
    cases=[
        dict(T=256, S=384, H=64),
        dict(T=512, S=128, H=16),
        dict(T=256, S=256, H=16, nan=True),
    ],
    fresh=fresh,
    scale=scale,
    par=dots,
    tolerance=2e-4,
    hints=[
        "Two conditions must both hold for a pair of a row and a column. Then think of a row "
        "for which they never do: what are m, l and acc when it gets to the end?",
        "Comparing a (bq, 1) block with a (1, bk) block gives (bq, bk) answers; `&` joins them "
        "with the causal ones. `jnp.where` masks scores before the maximum. For an array of one "
        "column, or one row, a BlockSpec's map returns 0 for that axis.",
        "Mask: causal_attention's, with one more condition; the scaled score if it holds, -inf "
        "otherwise. Store: replace an l of zero by anything else before you divide. Specs: the "
        "ids of the queries move with i, those of the keys with j.",
    ],
    explain="""A column of ids compared with a row of ids gives a whole block of answers.
    Because masked scores are -inf, a row that attends to nothing has exp(-inf - m) = 0
    throughout, so it ends with acc = 0 and l = 0. The reference divides by 1 instead of 0,
    which leaves zeros, as required.""",
)
