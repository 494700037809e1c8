"""Puzzle 24: the state decays from token to token."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## gated_linear_attention: a state that forgets
#
# After H independent keys, no new key is orthogonal to all of them. So models let the state **decay**: each token has a factor of its
# own, at most 1 and computed from its data. It comes as a logarithm $g_t$, never above 0:
#
# $$S_t = e^{g_t} S_{t-1} + k_t^\top v_t \qquad\qquad o_t = q_t\, S_t$$
#
# How much of token s is left at token t? Multiply the factors of tokens s + 1 to t. Their logarithms add: what is left is e to
# the power of a **difference of two running sums**. The launch sums from the start of each chunk:
#
# ```text
#          the chunk begins       s           t      the chunk ends
#                 ├───────────────┼───────────┼────────────┤
#    sum          0            sums[s]     sums[t]     sums[C-1]
#
#                                 ├──────────▶│                key s, on its way to query t
#                 ├──────────────────────────▶│                the state, on its way to query t
#                                 ├───────────────────────▶│   key s, on its way into the new state
#                 ├───────────────────────────────────────▶│   the state, on its way into the new state
# ```
#
# `row` holds these sums, (1, C), and `column` is its transpose. So `column - row` has a difference for each query and key.
#
# Fill in the rest of `linear_attention`, with the decay of each of the four arrows. Head 0 forgets fast: within a chunk it
# loses a factor of e⁸⁹ or more, and e⁸⁹ overflows float32. Where might your kernel compute it by mistake?


# %%
def gated_linear_attention_spec(
    q: Float[Array, "N T H"],
    k: Float[Array, "N T H"],
    v: Float[Array, "N T Hv"],
    log_decay: Float[Array, "N T"],
) -> Float[Array, "N T Hv"]:
    def step(state, token):
        q, k, v, g = token  # one row of each head, and one number
        state = jnp.exp(g)[:, None, None] * state + k[:, :, None] * v[:, None, :]
        return state, jnp.einsum("nh,nhv->nv", q, state)

    start = jnp.zeros((len(q), q.shape[2], v.shape[2]))
    _, o = jax.lax.scan(step, start, [x.swapaxes(0, 1) for x in (q, k, v, log_decay)])
    return o.swapaxes(0, 1)


# %%
def gated_linear_attention_kernel(q_ref, k_ref, v_ref, sums_ref, o_ref, state_ref):
    @pl.when(pl.program_id(1) == 0)
    def _():
        state_ref[...] = jnp.zeros_like(state_ref)

    q, k, v, state = q_ref[...], k_ref[...], v_ref[...], state_ref[...]
    row = sums_ref[...]
    column = row.T
    s = jax.lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    query = jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
    key = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
    ### BEGIN SOLUTION
    last = row[:, -1:]
    s = jnp.where(key <= query, s * jnp.exp(column - row), 0.0)
    o_ref[...] = jnp.dot(s, v) + jnp.dot(q * jnp.exp(column), state)
    k = k * jnp.exp(last - column)
    kv = jax.lax.dot_general(k, v, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    state_ref[...] = state * jnp.exp(last) + kv
    ### END SOLUTION


def gated_linear_attention(
    q: Float[Array, "N T H"],
    k: Float[Array, "N T H"],
    v: Float[Array, "N T Hv"],
    log_decay: Float[Array, "N T"],
    *,
    C: int = 128,
) -> Float[Array, "N T Hv"]:
    (N, T, H), Hv = q.shape, v.shape[2]
    sums = jnp.cumsum(log_decay.reshape(N, T // C, 1, C), axis=3)
    return pl.pallas_call(
        gated_linear_attention_kernel,
        grid=(N, T // C),
        in_specs=[
            pl.BlockSpec((None, C, H), lambda n, c: (n, c, 0)),
            pl.BlockSpec((None, C, H), lambda n, c: (n, c, 0)),
            pl.BlockSpec((None, C, Hv), lambda n, c: (n, c, 0)),
            pl.BlockSpec((None, None, 1, C), lambda n, c: (n, c, 0, 0)),
        ],
        out_specs=pl.BlockSpec((None, C, Hv), lambda n, c: (n, c, 0)),
        out_shape=jax.ShapeDtypeStruct((N, T, Hv), jnp.float32),
        scratch_shapes=[pltpu.VMEM((H, Hv), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(q, k, v, sums)


# %% [markdown]
# The products are those of `linear_attention`, and a row of sums adds less than 1 % to the bytes. A decay for each token costs so
# little because it is a single factor of each score: after the dot, the score is multiplied by e to the power of the difference. In
# exact arithmetic two factors would do as well, $e^{a - b} = e^a e^{-b}$. But here one of them underflows and the other overflows:

# %% active="ipynb"
# sums = -1.5 * np.arange(1, 129, dtype=np.float32)  # a chunk loses a factor of e¹⁹²; in the check, head 0 loses about e²⁵⁶
# with np.errstate(over="ignore", invalid="ignore"):
#     for query, key in ((50, 49), (100, 99)):
#         apart = np.exp(sums[query]) * np.exp(-sums[key])
#         print(f"from key {key} to query {query}: {np.exp(sums[query] - sums[key]):.4f}, by two factors {apart:.4f}")

# %% [markdown]
# <details><summary>More: a decay for each channel</summary>
#
# [Gated linear attention](https://arxiv.org/abs/2312.06635) (Yang et al., 2023) has a decay for each of the H channels. A score
# is a sum over the channels, so the decay has to be multiplied in before the sum, as two factors. The authors cut each chunk into
# smaller ones against the overflow. [Mamba-2](https://arxiv.org/abs/2405.21060) (Dao and Gu, 2024) has one decay for
# each token and head, as here, so that all the work is in products of matrices.
#
# </details>
#
# <details><summary>More: the delta rule</summary>
#
# [Gated DeltaNet](https://arxiv.org/abs/2412.06464) (Yang et al., 2024) also subtracts from $v_t$ the value that the state already
# returns for $k_t$. So the state replaces a value, and does not add a second. Three of four layers of Qwen3-Next (2025)
# work this way. But now the tokens of a chunk depend on each other: C equations, with a triangular matrix. tpu-inference's kernel (2026)
# inverts that matrix in blocks of 16 rows. This is an idea of its own, and much code, so you read it instead of writing it. The rest of
# the kernel is yours: in `compute_gdn.py`, your four decays are `gating_map`, `gating_forward`, `gating_backward` and `gating_last`.
#
# </details>

# %% tags=["author"]
from puzzles import Puzzle, array, rng
from puzzles.splash_attention.linear_attention import work_of_a_token


def make_inputs(key, N, T, H, Hv):
    r = rng(key)
    sizes = (H, H, Hv)
    q, k, v = (array(r.normal(0.2, 1, size=(N, T, size)), jnp.float32) for size in sizes)
    rates = 2.0 * 0.1 ** np.arange(N)  # each head forgets ten times as slowly as the one before
    decay = -rates[:, None] * r.uniform(0.1, 1.9, size=(N, T))
    return q, k, v, array(decay, jnp.float32)


def scale(N=32, T=8192, H=128, Hv=128):
    q, k, v = (jax.ShapeDtypeStruct((N, T, size), jnp.float32) for size in (H, H, Hv))
    return q, k, v, jax.ShapeDtypeStruct((N, T), jnp.float32)


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(N=3, T=512, H=64, Hv=32)
    N, T, H, Hv = r.choice([(4, 640, 16, 128), (5, 256, 128, 8), (2, 384, 8, 256)])
    return dict(N=int(N), T=int(T), H=int(H), Hv=int(Hv))


PUZZLE = Puzzle(
    spec=gated_linear_attention_spec,
    solution=gated_linear_attention,
    inputs=make_inputs,
    cases=[dict(N=3, T=512, H=64, Hv=32), dict(N=2, T=256, H=8, Hv=128, C=64)],
    fresh=fresh,
    scale=scale,
    par=work_of_a_token,
    outside=("cumsum",),
    tolerance=2e-4,  # the spec is in float64
    hints=[
        "Go through the four arrows of the drawing. Each is e to the power of the sum at its end "
        "minus the sum at its start. No such difference is above 0, because an arrow points "
        "forward in time.",
        "The index `[:, -1:]` takes the last number of a row as (1, 1). Above the diagonal the "
        "column minus the row is positive, so its exponential may be infinite: `jnp.where` drops "
        "it, and a multiplication by 0 makes NaN of it.",
        "Multiply the scores by the exponentials of the column minus the row, then mask them. "
        "Multiply q by the exponentials of the column, for its product with the state. Multiply k "
        "by the exponentials of the last sum minus the column, for the new state. Multiply the old "
        "state by the exponential of the last sum.",
    ],
    explain="""Running sums of logarithms turn a product of decays between any two tokens into one
    difference. Only differences along the direction of time are exponentiated, so no factor is above 1.
    The scores take a (C, C) matrix of factors, the other three arrows a column or a single number.""",
)
