"""Puzzle 4: one block of queries against all keys and values."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET, find

# %% [markdown]
# ## attention_one_block: three things that stay
#
# The output of attention is a quotient of two sums over the keys, with the same weights:
#
# $$o = \frac{\sum_s e^{x_s - m} \, v_s}{\sum_s e^{x_s - m}} = \frac{\text{acc}}{l}$$
#
# You can already keep `l` up to date. `acc` is a row of `H` such sums, one for each column of `v`, and a new maximum makes it
# wrong by the same factor. So **the same `alpha` corrects every sum that was made with the old maximum**. This step turns
# online softmax into [FlashAttention](https://arxiv.org/abs/2205.14135)'s forward pass.
#
# ```text
#                     j = 0          j = 1          j = 2
#  q (bq, H) ──┬──→ ┌────────┐ ──→ ┌────────┐ ──→ ┌────────┐
#   (stays)    │    │ s   p  │     │ s   p  │     │ s   p  │    o = acc / l
#              │    └────────┘     └────────┘     └────────┘
#              │     k₀    v₀       k₁    v₁       k₂    v₂     (each is fetched once)
#
#  in scratch:   m (bq, 1)      l (bq, 1)      acc (bq, H)      (stay, and change at every j)
# ```
#
# The scores `s` of one block live in VMEM for one step. The full matrix of scores never exists.
#
# The work has three parts, as in `tiled_matmul`: start at the first j, update at every j, store the
# quotient at the last. The grid is `(1, S // bk)`: j is axis **1**.
#
# `q @ k.T` needs no transpose: `jax.lax.dot_general` contracts any axis with any other.
# `dimension_numbers=(((a,), (b,)), ((), ()))` contracts axis a of the left operand with axis b of the right. Multiply the
# scores by 1/√H, in f32.


# %%
def attention_one_block_spec(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    return find("attention").solution(q, k, v)


# %%
def attention_one_block_kernel(q_ref, k_ref, v_ref, o_ref, m_ref, l_ref, acc_ref):
    ### BEGIN SOLUTION
    j = pl.program_id(1)

    @pl.when(j == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)
        l_ref[...] = jnp.zeros_like(l_ref)
        acc_ref[...] = jnp.zeros_like(acc_ref)

    last_axes = (((1,), (1,)), ((), ()))  # q @ k.T
    s = jax.lax.dot_general(q_ref[...], k_ref[...], last_axes, preferred_element_type=jnp.float32)
    s *= q_ref.shape[-1] ** -0.5

    m_old = m_ref[...]
    m_new = jnp.maximum(m_old, jnp.max(s, axis=1, keepdims=True))
    p = jnp.exp(s - m_new)
    alpha = jnp.exp(m_old - m_new)

    m_ref[...] = m_new
    l_ref[...] = alpha * l_ref[...] + jnp.sum(p, axis=1, keepdims=True)
    pv = jnp.dot(p, v_ref[...], preferred_element_type=jnp.float32)
    acc_ref[...] = alpha * acc_ref[...] + pv

    @pl.when(j == pl.num_programs(1) - 1)
    def _():
        o_ref[...] = acc_ref[...] / l_ref[...]

    ### END SOLUTION


def attention_one_block(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    (bq, H), (S, _) = q.shape, k.shape
    bk = 128
    return pl.pallas_call(
        attention_one_block_kernel,
        grid=(1, S // bk),
        in_specs=[
            pl.BlockSpec((bq, H), lambda i, j: (0, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
            pl.BlockSpec((bk, H), lambda i, j: (j, 0)),
        ],
        out_specs=pl.BlockSpec((bq, H), lambda i, j: (0, 0)),
        out_shape=jax.ShapeDtypeStruct((bq, H), jnp.float32),
        scratch_shapes=[
            pltpu.VMEM((bq, 1), jnp.float32),  # m
            pltpu.VMEM((bq, 1), jnp.float32),  # l
            pltpu.VMEM((bq, H), jnp.float32),  # acc
        ],
        interpret=INTERPRET,
    )(q, k, v)


# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array
from puzzles.splash_attention import attention
from puzzles.splash_attention.attention import root


def make_inputs(key, T, S, H, large=False, stairs=False):
    """As for `attention`; `stairs`: for every query the second of three blocks of keys lies lower,
    the third higher.
    """
    q, k, v = attention.make_inputs(key, T, S, H, large)
    if stairs:
        q, k = np.array(q), np.array(k)
        q[:, 1:5], q[:, 5], k[:, 5] = 0, root(H), np.repeat((0, -4, 4), S // 3)
        q, k = array(q, jnp.float32), array(k, jnp.float32)
    return q, k, v


def scale(T=512, S=65536, H=128):
    return tuple(jax.ShapeDtypeStruct((n, H), jnp.float32) for n in (T, S, S))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(T=64, S=384, H=256, large=bool(r.integers(2)))
    T, S, H = r.choice([(32, 1152, 128), (128, 256, 32), (96, 128, 8)])
    return dict(T=int(T), S=int(S), H=int(H), large=bool(r.integers(2)))


def fetches(launch):
    """How many blocks of keys there are, and how often one is fetched."""
    k = launch.inputs[1]
    blocks = -(-k.shape[-2] // k.block[-2])
    times = f"{k.transfers:,} time{'' if k.transfers == 1 else 's'}"
    return f"{blocks:,} block{'' if blocks == 1 else 's'} of k, fetched {times}"


PUZZLE = Puzzle(
    spec=attention_one_block_spec,
    solution=attention_one_block,
    inputs=make_inputs,
    cases=[
        dict(T=64, S=384, H=256),
        dict(T=192, S=128, H=64, large=True),
        dict(T=64, S=384, H=256, stairs=True),
        dict(T=32, S=17 * 128, H=16),
    ],
    fresh=fresh,
    scale=scale,
    par=fetches,
    tolerance=2e-4,
    waivers={"blocks": "one block of queries is the idea here; flash_attention has all of them"},
    hints=[
        "It is online_softmax on the block of scores, with one more sum to correct. Which shape "
        "does that sum have, and how does alpha, a column, multiply it?",
        "`jax.lax.dot_general` gives the scores, `jnp.dot` the product of the exponentials with "
        "`v_ref[...]`, both with `preferred_element_type=jnp.float32`. `pl.num_programs(1) - 1` "
        "is the last j.",
        "At the first j, start the three scratch Refs. At every j: the scaled scores; the old "
        "and the new maximum; the exponentials and alpha; store the new maximum; l and acc "
        "become alpha times the old value plus the new sum (for acc, a product of two blocks). "
        "At the last j, store the quotient.",
    ],
    explain="""Numerator and denominator of a softmax are sums with the same exponentials, so
    the same alpha corrects both when the maximum changes. The reference divides them once, at
    the end. The scores never leave VMEM.""",
)
