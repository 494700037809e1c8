"""Puzzle 11: capped scores."""

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
# models ([Gemma 2](https://arxiv.org/abs/2408.00118), with a cap of 50) therefore squash them
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
# A library's attention hides its scores: if it takes no cap, you cannot add one.
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
from puzzles.splash_attention.flash_attention import spread


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
        p = jnp.exp(s - spread(m_new, s))
        alpha = jnp.exp(m_ref[...] - m_new)
        l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
        pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] = spread(alpha, acc_ref) * acc_ref[...] + pv
        m_ref[...] = m_new

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...] / l_ref[:, :1]


def soft_cap_attention(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"], cap: float
) -> Float[Array, "T H"]:
    (T, H), (S, _) = q.shape, k.shape
    bq, bk = (64, 128) if T < S else (128, 64)  # for practice: bq < bk, and bq > bk
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
            pltpu.VMEM((bq, 128), jnp.float32),
            pltpu.VMEM((bq, 128), jnp.float32),
            pltpu.VMEM((bq, H), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(q, k, v)


# %% tags=["author"]
import numpy as np

from puzzles import Puzzle
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
    T, S, H, cap = r.choice(
        [(64, 1152, 32, 30), (640, 128, 32, 100), (256, 256, 128, 4), (192, 512, 8, 12)]
    )
    return dict(T=int(T), S=int(S), H=int(H), cap=float(cap))


PUZZLE = Puzzle(
    spec=soft_cap_attention_spec,
    solution=soft_cap_attention,
    inputs=make_inputs,
    cases=[
        dict(T=256, S=384, H=64, cap=50.0),
        dict(T=256, S=64, H=16, cap=200.0),
        dict(T=128, S=64, H=16, cap=2.0),
    ],
    fresh=fresh,
    scale=scale,
    par=dots,
    tolerance=2e-4,
    hints=[
        "The cap applies to scores as the model defines them. Is a raw dot product such a "
        "score? Is -inf?",
        "`jnp.tanh` works on a whole block; `cap` is a Python float, so you can multiply and "
        "divide by it directly.",
        "Two lines: scale, divide, tanh, multiply; then the mask, as in causal_attention.",
    ],
    explain="""Scale, cap, mask, in this order: the cap applies to true scores, and masked
    scores stay at -inf, so their exponentials are zero. Nothing else in the kernel changes, and
    no byte of traffic is added. In Part IV a gradient goes through the cap, and you will need
    its slope: 1 near 0, and 0 where it levels off.""",
)
