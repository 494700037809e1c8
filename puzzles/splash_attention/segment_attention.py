"""Rung 10: several documents in one sequence."""

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
# not see each other. So each position has the number of its document, its **segment id**, and row t
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
# In the row with no `x` all scores are `-inf` to the end, so `l` and `acc` stay 0. What attends to nothing
# should give **zeros**, and 0 / 0 is for you to decide.
#
# Fill in the scale 1/√H and the mask, the store, and the specs of the ids.
#
# <details><summary>More: blocks between two documents</summary>
#
# The reference computes blocks between two documents, and masks them. A kernel may compare its ids first and skip the dots. The
# fetches stay here: index maps see i and j, not the ids.
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
        p = jnp.exp(s - m_new)
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = alpha * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        ### BEGIN SOLUTION
        l = l_ref[...]
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
    bq, bk = (64, 128) if T < S else (256, 128)  # for practice: both orders
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
            pltpu.VMEM((bq, 1), jnp.float32),
            pltpu.VMEM((bq, 1), jnp.float32),
            pltpu.VMEM((bq, H), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(q, k, v, q_segments.reshape(T, 1), kv_segments.reshape(1, S))


# %% [markdown]
# ### A length that blocks do not divide
#
# Every length so far was a multiple of its block. For all others **pad** the sequence to the next multiple, and cut off the padded
# queries: rows that nobody asked for. The padded keys come after all others, so where T ≤ S this causal mask hides them already.
# Elsewhere, ids do it: give these keys an id that no query has.

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

from puzzles import Alternative, Mistake, Puzzle, array, rng
from puzzles.splash_attention.attention_one_block import ONES
from puzzles.splash_attention.causal_attention import dots, draw


def make_inputs(key, T, S, H):
    """Five documents; the queries of the middle one have an id of their own.

    Ids are any 32-bit numbers: two are neighbours that f32 does not tell apart, two differ in their
    sign alone, others are alike in their lowest bits.
    """
    q, k, v = draw(key, T, S, H, offsets=(1, -64))
    r = rng(key)
    cuts = np.sort(np.array([0.2, 0.42, 0.64, 0.83]) * min(T, S) + r.integers(-9, 10, 4))
    names = np.insert(r.permutation([-(2**24), 0, 2**24, 2**24 + 1]), 2, 300)
    ids = names[np.searchsorted(cuts, np.arange(max(T, S)), side="right")]
    q_segments = np.where(ids == 300, 44, ids)[:T]
    return q, k, v, array(q_segments, jnp.int32), array(ids[:S], jnp.int32)


def scale(T=16384, S=16384, H=128):
    floats = (jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))
    return *floats, *(jax.ShapeDtypeStruct((n,), jnp.int32) for n in (T, S))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=256, S=384, H=64)
    T, S, H = r.choice([(128, 1152, 32), (768, 256, 32), (256, 256, 128), (192, 512, 8)])
    return dict(T=int(T), S=int(S), H=int(H))


_SKIP = "@pl.when(j * bk <= (i + 1) * bq - 1)"
_MASK = "mask = (column <= row) & (q_segments_ref[...] == kv_segments_ref[...])"
_SCORES = "s = jnp.where(mask, s * H**-0.5, -jnp.inf)"
_GUARD = "acc_ref[...] / jnp.where(l == 0.0, 1.0, l)"
_Q_SPEC = "pl.BlockSpec((bq, 1), lambda i, j: (i, 0)),\n            pl"
_KV_SPEC = "pl.BlockSpec((1, bk), lambda i, j: (0, j))"

PUZZLE = Puzzle(
    spec=segment_attention_spec,
    solution=segment_attention,
    inputs=make_inputs,
    cases=[dict(T=256, S=384, H=64), dict(T=512, S=128, H=16)],
    fresh=fresh,
    keeps=dict.fromkeys("qkv", "finite"),
    scale=scale,
    par=dots,
    tolerance=2e-4,
    hints=[
        "Two conditions, both of which must hold, for each pair of a row and a column. And think of a row "
        "for which they never do: what are m, l and acc when it gets to the end?",
        "Comparing a (bq, 1) block with a (1, bk) block gives (bq, bk) answers; `&` joins them with the causal "
        "ones. `jnp.where` masks scores before the maximum. A BlockSpec's map for an array of one column, or one row, "
        "returns 0 for that axis.",
        "causal_attention's mask with one more condition; the scaled score where it holds, -inf where not. At the store, replace an l of zero by "
        "anything else before dividing. The ids of the queries move with i, those of the keys with j.",
    ],
    explain="""A column of ids compared with a row of ids is a whole block of answers. Masked with -inf, a row that attends to
    nothing has exp(-inf - m) = 0 throughout, so it ends with acc = 0 and l = 0. The reference divides by 1 in place of 0, which leaves the
    zeros that it should have.""",
    mistakes=[
        Mistake(
            "masks by segment only",
            old=_MASK,
            new="mask = q_segments_ref[...] == kv_segments_ref[...]",
            says="within a document, too, no row may look ahead: join both conditions",
        ),
        Mistake(
            "compares ids as floats",
            old=_MASK,
            new="mask = (column <= row) & (\n"
            "            q_segments_ref[...].astype(jnp.float32) == kv_segments_ref[...].astype(jnp.float32)\n        )",
            says="f32 does not tell neighbours above 2^24 apart, nor bf16 those above 256: compare the ids as the "
            "integers that they are",
        ),
        Mistake(
            "masks by position only",
            old=_MASK,
            new="mask = column <= row",
            says="the ids are never compared, so every document sees those before it",
        ),
        Mistake(
            "lets one of the two conditions be enough",
            old="(column <= row) & (",
            new="(column <= row) | (",
            says="a score counts only if both hold: `&`, not `|`",
        ),
        Mistake(
            "fetches the keys' ids by the block of queries",
            old=_KV_SPEC,
            new="pl.BlockSpec((1, bk), lambda i, j: (0, i))",
            says="ids belong to the keys in the same step, and those are block j",
        ),
        Mistake(
            "fetches the queries' ids by the block of keys",
            old=_Q_SPEC,
            new=_Q_SPEC.replace("(i, 0)", "(j, 0)"),
            says="ids belong to the queries in the same step, and those are block i",
        ),
        Mistake(
            "takes the first block of ids for all keys",
            old=_KV_SPEC,
            new="pl.BlockSpec((1, bk), lambda i, j: (0, 0))",
            says="the ids are cut along their columns, and the map has to return j there",
        ),
        Mistake(
            "takes the first block of ids for all queries",
            old=_Q_SPEC,
            new=_Q_SPEC.replace("(i, 0)", "(0, 0)"),
            says="the ids are cut along their rows, and the map has to return i there",
        ),
        Mistake(
            "leaves garbage in rows that attend to nothing",
            old=_SCORES,
            new=_SCORES.replace("-jnp.inf", "-1e30"),
            says="where all scores are -1e30, each exponential is 1, and the row becomes a mean of values that "
            "it must not see: mask with -inf",
        ),
        Mistake(
            "divides zero by zero",
            old=_GUARD,
            new="acc_ref[...] / l",
            says="a row that attends to nothing has l = 0, and 0 / 0 is NaN; give it zeros",
        ),
        Mistake(
            "masks with -10000",
            old=_SCORES,
            new=_SCORES.replace("-jnp.inf", "-1e4"),
            says="a score that counts may lie lower, and then a masked one is the maximum: take -inf, below any score",
        ),
        Mistake(
            "takes both kinds of ids as columns",
            edits=(
                (_KV_SPEC, "pl.BlockSpec((bk, 1), lambda i, j: (j, 0))"),
                ("kv_segments.reshape(1, S))", "kv_segments.reshape(S, 1))"),
            ),
            says="eq got incompatible shapes for broadcasting",
            stage="error",
        ),
        Mistake(
            "cuts blocks of 64 keys",
            old="else (256, 128)",
            new="else (128, 64)",
            says="block (1, 64) of an array",
            stage="tpu",
        ),
        Mistake(
            "masks with zero",
            old=_SCORES,
            new=_SCORES.replace("-jnp.inf", "0.0"),
            says="a score of 0 is a score like any other: its exponential is not zero",
        ),
        Mistake(
            "forgets the scale",
            old=_SCORES,
            new=_SCORES.replace("s * H**-0.5", "s"),
            says="the scores are not multiplied by 1/√H",
        ),
        Mistake(
            "looks ahead instead of back",
            old="mask = (column <= row)",
            new="mask = (column >= row)",
            says="s ≤ t: the comparison of positions is the wrong way round",
        ),
        Mistake(
            "keeps the other documents and masks its own",
            old="q_segments_ref[...] == kv_segments_ref[...]",
            new="q_segments_ref[...] != kv_segments_ref[...]",
            says="a score counts where the ids are equal",
        ),
        Mistake(
            "takes one id for all queries of the block",
            old="q_segments_ref[...] ==",
            new="q_segments_ref[:1, :] ==",
            says="a block may hold rows of several documents: compare the whole column of ids",
        ),
        Mistake(
            "does not divide by l",
            old=_GUARD,
            new="acc_ref[...]",
            says="acc is the numerator alone: only where l is 0 there is nothing to divide by",
        ),
        Mistake(
            "lets later documents see earlier ones",
            old="q_segments_ref[...] == kv",
            new="q_segments_ref[...] >= kv",
            says="a query sees keys of its own document: the ids are equal, `==`",
        ),
        Mistake(
            "divides by 1 where there is a sum",
            old="jnp.where(l == 0.0, 1.0, l)",
            new="jnp.where(l == 0.0, l, 1.0)",
            says="`jnp.where(condition, x, y)` takes x where the condition holds: 1 where l is 0, else "
            "l",
        ),
        Mistake(
            "adds 1 to l",
            old="jnp.where(l == 0.0, 1.0, l)",
            new="(l + 1.0)",
            says="every row's weights change by that: replace l where it is 0, and leave it elsewhere",
        ),
    ],
    alternatives=[
        ONES,
        Alternative(
            "masks with a finite number, and asks the maximum at the end",
            edits=(
                (_SCORES, _SCORES.replace("-jnp.inf", "-1e30")),
                (_GUARD, "jnp.where(m_ref[...] > -1e29, acc_ref[...] / l, 0.0)"),
            ),
        ),
        Alternative(
            "divides by no less than 1, for the largest exponential of a row is 1",
            old=_GUARD,
            new="acc_ref[...] / jnp.maximum(l, 1.0)",
        ),
        Alternative(
            "masks the exponentials as well",
            old="p = jnp.exp(s - m_new)",
            new="p = jnp.where(mask, jnp.exp(s - m_new), 0.0)",
        ),
        Alternative(
            "divides by no less than a tiny number",
            old=_GUARD,
            new="acc_ref[...] / jnp.maximum(l, 1e-30)",
        ),
        Alternative(
            "masks twice, once for each reason",
            old=_SCORES,
            new="s = jnp.where(column <= row, s * H**-0.5, -jnp.inf)\n"
            "        s = jnp.where(q_segments_ref[...] == kv_segments_ref[...], s, -jnp.inf)",
        ),
        Alternative(
            "also skips blocks in which no ids are equal",
            code="""
def segment_attention_kernel(
    q_ref, k_ref, v_ref, q_segments_ref, kv_segments_ref, o_ref, m_ref, l_ref, acc_ref
):
    i, j = pl.program_id(0), pl.program_id(1)
    (bq, H), (bk, _) = q_ref.shape, k_ref.shape

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full(m_ref.shape, -1e30)
        l_ref[...] = jnp.zeros(l_ref.shape)
        acc_ref[...] = jnp.zeros(acc_ref.shape)

    ahead = jax.lax.broadcasted_iota(jnp.int32, (bq, bk), 1) - jax.lax.broadcasted_iota(
        jnp.int32, (bq, bk), 0
    )
    seen = (q_segments_ref[...] == kv_segments_ref[...]) & (ahead <= i * bq - j * bk)

    @pl.when(j * bk < (i + 1) * bq)
    def _():
        @pl.when(jnp.max(seen.astype(jnp.float32)) > 0.0)
        def _():
            s = jnp.dot(q_ref[...] * H**-0.5, k_ref[...].T, preferred_element_type=jnp.float32)
            s = jnp.where(seen, s, -1e30)
            old, m = m_ref[...], jnp.maximum(m_ref[...], s.max(axis=1, keepdims=True))
            p = jnp.exp(s - m) * seen
            m_ref[...] = m
            l_ref[...] = l_ref[...] * jnp.exp(old - m) + p.sum(axis=1, keepdims=True)
            acc_ref[...] = acc_ref[...] * jnp.exp(old - m) + jnp.dot(p, v_ref[...])

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        empty = l_ref[...] == 0
        o_ref[...] = jnp.where(empty, 0.0, acc_ref[...] / jnp.where(empty, 1.0, l_ref[...]))
""",
        ),
        Alternative(
            "asks for the diagonal and for equal ids in one condition",
            edits=(
                (_SKIP, """some = jnp.max(
        (q_segments_ref[...] == kv_segments_ref[...]).astype(jnp.float32)
    )

    @pl.when((j * bk < (i + 1) * bq) & (some > 0.0))"""),
            ),
        ),
        Alternative("takes other blocks", old="else (256, 128)", new="else (128, 128)"),
    ],
)
