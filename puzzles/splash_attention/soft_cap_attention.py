"""Rung 11: capped scores."""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## soft_cap_attention: scores that cannot run away
#
# In training, scores may grow very large, and a softmax of huge scores is all or nothing. Some
# models ([Gemma 2](https://arxiv.org/abs/2408.00118), with a cap of 50) therefore bend them
# smoothly into (-cap, cap):
#
# $$s \leftarrow \mathrm{cap} \cdot \tanh(s / \mathrm{cap})$$
#
# ```text
#  capped
#    cap ┤                ╭───────
#        │             ╭──╯           small scores pass almost as they are,
#      0 ┤          ╭──╯              large ones level off at the cap
#        │       ╭──╯
#   -cap ┤───────╯
#        └──────────┴────────────── score
#                   0
# ```
#
# Attention from a library often hides its scores: if it takes no cap, you cannot add one.
# (`jax.nn.dot_product_attention` takes none.) In your kernel each block of scores exists for one step, between two dots.
#
# Three things happen to a score before the running maximum: the scale 1/√H, the cap, the mask. tanh is not linear, so
# their order matters. What does a cap make of `-inf`?
#
# Fill in all three. The mask is causal; `cap` is a Python float.

# %%
def soft_cap_attention_spec(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"], cap: float
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    scores = jnp.dot(q, k.T) / H**0.5
    capped = cap * jnp.tanh(scores / cap)
    seen = jnp.arange(S)[None, :] <= jnp.arange(T)[:, None]
    return jnp.dot(jax.nn.softmax(jnp.where(seen, capped, -jnp.inf), axis=1), v)


# %%
def soft_cap_attention_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref, *, cap):
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
        ### BEGIN SOLUTION
        s = cap * jnp.tanh(s * (H**-0.5 / cap))
        s = jnp.where(column <= row, s, -jnp.inf)
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
        o_ref[...] = acc_ref[...] / l_ref[...]


def soft_cap_attention(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"], cap: float
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    bq, bk = (64, 128) if T < S else (128, 64)  # for practice: both orders
    return pl.pallas_call(
        functools.partial(soft_cap_attention_kernel, cap=cap),
        grid=(T // bq, S // bk),
        in_specs=[
            pl.BlockSpec((bq, H), lambda i, j: (i, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
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
    )(q, k, v)


# %% tags=["author"]
import numpy as np

from puzzles import Alternative, Mistake, Puzzle
from puzzles.splash_attention.attention_one_block import ONES
from puzzles.splash_attention.causal_attention import dots, draw


def make_inputs(key, T, S, H, cap):
    q, k, v = map(np.array, draw(key, T, S, H))
    k[:2, 1:] = -q[1, 1:] / 32  # row 1 sees the lowest scores alone, and not the highest
    return *map(jnp.asarray, (q, k, v)), cap


def scale(T=16384, S=16384, H=128, cap=50.0):
    return *(jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S)), cap


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=256, S=384, H=64, cap=50.0)
    T, S, H, cap = r.choice([(64, 1152, 32, 30), (640, 128, 32, 100), (256, 256, 128, 4), (192, 512, 8, 12)])
    return dict(T=int(T), S=int(S), H=int(H), cap=float(cap))


_SKIP = "@pl.when(j * bk <= (i + 1) * bq - 1)"
_CAP = "        s = cap * jnp.tanh(s * (H**-0.5 / cap))\n"
_MASK = "s = jnp.where(column <= row, s, -jnp.inf)"

PUZZLE = Puzzle(
    spec=soft_cap_attention_spec,
    solution=soft_cap_attention,
    inputs=make_inputs,
    cases=[dict(T=256, S=384, H=64, cap=50.0), dict(T=256, S=64, H=16, cap=200.0)],
    fresh=fresh,
    keeps=dict.fromkeys("qkv", "finite"),
    scale=scale,
    par=dots,
    tolerance=2e-4,
    hints=[
        "The cap is for scores as the model means them. Is a raw dot product one? Is -inf one?",
        "`jnp.tanh` works on a whole block; `cap` is a Python float, so multiply and divide by it as it is.",
        "Two lines: scale, divide, tanh, multiply; then the mask, as in causal_attention.",
    ],
    explain="""Scale, cap, mask, in this order: the cap sees true scores, and what is masked stays at -inf,
    and its exponential is zero. Nothing else in the kernel knows that a score was bent, and no
    byte of traffic is added. In Part IV a gradient goes through the bend, and you will need its slope: 1 near 0, and 0 where it
    levels off.""",
    mistakes=[
        Mistake(
            "caps after the mask",
            edits=((_CAP, "        s = s * H**-0.5\n"), (_MASK, f"{_MASK}\n{_CAP[:-1].replace('s * (H**-0.5 / cap)', 's / cap')}")),
            says="the cap turns -inf into -cap, a score like any other, and the future counts again",
        ),
        Mistake(
            "caps before the scale",
            old=_CAP,
            new="        s = cap * jnp.tanh(s / cap) * H**-0.5\n",
            says="the cap has to see the score with its 1/√H, or it bends them √H times too early",
        ),
        Mistake(
            "does not cap",
            old=_CAP,
            new="        s = s * H**-0.5\n",
            says="`cap` is not used: these are the numbers of causal_attention",
        ),
        Mistake(
            "does not multiply by the cap again",
            old="s = cap * jnp.tanh(",
            new="s = jnp.tanh(",
            says="tanh alone ends at ±1; the cap is where scores should end",
        ),
        Mistake(
            "does not divide by the cap",
            old="(H**-0.5 / cap)",
            new="H**-0.5",
            says="small scores must pass as they are, and cap · tanh(s) makes them cap times larger",
        ),
        Mistake(
            "cuts off instead of bending",
            old=_CAP,
            new="        s = jnp.clip(s * H**-0.5, -cap, cap)\n",
            says="a clip is flat beyond the cap and straight before it; a soft cap bends",
        ),
        Mistake(
            "forgets the scale",
            old="(H**-0.5 / cap)",
            new="(1 / cap)",
            says="1/√H is missing, so the scores reach the cap too soon",
        ),
        Mistake(
            "caps the distance to the maximum",
            edits=(
                (_CAP, "        s = s * H**-0.5\n"),
                ("p = jnp.exp(s - m_new)", "p = jnp.exp(cap * jnp.tanh((s - m_new) / cap))"),
            ),
            says="the cap belongs to the score itself; a masked score's distance is capped too, and counts",
        ),
        Mistake(
            "does not mask",
            old=_MASK,
            new="s = s * 1.0",
            says="in the blocks that the diagonal crosses, rows see columns that come after them",
        ),
        Mistake(
            "does without a running maximum, since no score is beyond the cap",
            code="""
def soft_cap_attention_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref, *, cap):
    i, j = pl.program_id(0), pl.program_id(1)
    (bq, H), (bk, _) = q_ref.shape, k_ref.shape

    @pl.when(j == 0)
    def _():
        l_ref[...] = jnp.zeros(l_ref.shape)
        acc_ref[...] = jnp.zeros(acc_ref.shape)

    @pl.when(j * bk < (i + 1) * bq)
    def _():
        s = jnp.dot(q_ref[...], k_ref[...].T, preferred_element_type=jnp.float32) / H**0.5
        ahead = jax.lax.broadcasted_iota(jnp.int32, (bq, bk), 1) - jax.lax.broadcasted_iota(
            jnp.int32, (bq, bk), 0
        )
        p = jnp.where(ahead <= i * bq - j * bk, jnp.exp(cap * jnp.tanh(s / cap)), 0.0)
        l_ref[...] += p.sum(axis=1, keepdims=True)
        acc_ref[...] += jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...] / l_ref[...]
""",
            says="that holds for small caps: above 88, exp(cap) overflows in f32, and here is one of 100. Keep the running maximum",
        ),
        Mistake(
            "caps the queries before the launch",
            edits=((_CAP, "        s = s * H**-0.5\n"), (")(q, k, v)", ")(cap * jnp.tanh(q / cap), k, v)")),
            says="works on the data outside the kernel",
            stage="pallas",
        ),
        Mistake(
            "masks with zero",
            old=_MASK,
            new=_MASK.replace("-jnp.inf", "0.0"),
            says="a score of 0 is a score like any other: its exponential is not zero",
        ),
        Mistake(
            "masks with -cap",
            old="column <= row, s, -jnp.inf",
            new="column <= row, s, -cap",
            says="that is a score like any other, and the future counts: mask with -inf",
        ),
        Mistake(
            "masks the past instead of the future",
            old=_MASK,
            new=_MASK.replace("<=", ">="),
            says="s ≤ t: the comparison is the wrong way round",
        ),
        Mistake(
            "masks the diagonal, too",
            old=_MASK,
            new=_MASK.replace("<=", "<"),
            says="s ≤ t: every row sees its own column; row 0 would see nothing",
        ),
        Mistake(
            "divides by the cap outside",
            old="s = cap * jnp.tanh(s * (H**-0.5 / cap))",
            new="s = jnp.tanh(s * H**-0.5) / cap",
            says="the scores are divided by the cap, bent by tanh, and multiplied by the cap",
        ),
        Mistake(
            "multiplies inside and divides outside",
            old="s = cap * jnp.tanh(s * (H**-0.5 / cap))",
            new="s = jnp.tanh(s * (H**-0.5 * cap)) / cap",
            says="it is the other way round: divide by the cap, bend, multiply by it",
        ),
        Mistake(
            "scales again after the cap",
            old="jnp.tanh(s * (H**-0.5 / cap))",
            new="jnp.tanh(s * (H**-0.5 / cap)) * H**-0.5",
            says="the cap is set for scaled scores, and what it gives stays as it is",
        ),
        Mistake(
            "cuts off above the cap",
            old="s = cap * jnp.tanh(s * (H**-0.5 / cap))",
            new="s = jnp.minimum(s * H**-0.5, cap)",
            says="tanh bends at both ends, and smoothly: cap · tanh(s / cap)",
        ),
        Mistake(
            "multiplies by √H",
            old="s * (H**-0.5 / cap)",
            new="s / cap / H**-0.5",
            says="dividing by H**-0.5 is multiplying by √H: write `* H**-0.5` or `/ H**0.5`",
        ),
        Mistake(
            "caps the weights",
            edits=(
                ("s = cap * jnp.tanh(s * (H**-0.5 / cap))", "s = s * H**-0.5"),
                ("p = jnp.exp(s - m_new)", "p = cap * jnp.tanh(jnp.exp(s - m_new) / cap)"),
            ),
            says="it is the scores that are capped, before the maximum is taken",
        ),
        Mistake(
            "keeps what is to be hidden",
            old="jnp.where(column <= row, s, -jnp.inf)",
            new="jnp.where(column <= row, -jnp.inf, s)",
            says="`jnp.where(condition, x, y)` takes x where the condition holds: first the score, "
            "then -inf",
        ),
        Mistake(
            "scales by 1/H",
            old="H**-0.5 / cap",
            new="1 / H / cap",
            says="the scale is 1/√H",
        ),
    ],
    alternatives=[
        ONES,
        Alternative(
            "masks once more after the cap, having masked before it",
            old=_CAP,
            new="""        ahead = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1) + j * bk - i * bq
        ahead = ahead - jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
        s = jnp.where(ahead > 0, -jnp.inf, s * H**-0.5)
        s = cap * jnp.tanh(s / cap)
""",
        ),
        Alternative(
            "writes tanh as a fraction",
            old=_CAP,
            new="        s = cap - 2 * cap / (jnp.exp(2 * H**-0.5 / cap * s) + 1)\n",
        ),
        Alternative("takes other blocks", old="else (128, 64)", new="else (64, 64)"),
    ],
)
