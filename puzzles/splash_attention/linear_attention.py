"""Puzzle 23: a state is carried from chunk to chunk."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## linear_attention: move the brackets
#
# Leave out the softmax: $o_t = \sum_{s \le t} (q_t k_s^\top)\, v_s$. Now the brackets may move: $q_t \sum_{s \le t} (k_s^\top v_s)$. One matrix
# of H × Hv numbers takes the place of all earlier keys and values. The spec carries this **state** from token to token, with `jax.lax.scan`:
#
# $$S_t = S_{t-1} + k_t^\top v_t \qquad\qquad o_t = q_t\, S_t$$
#
# That needs the same memory for any `T`. But it takes `T` tiny steps, and a matrix unit wants large products. So cut the
# tokens into **chunks** of C, and sum in two ways:
#
# ```text
#               k₀ v₀     k₁ v₁     k₂ v₂
#    q₀           ◣                              ◣  in its own chunk: a masked (C, C) block
#    q₁         state       ◣                       of scores, times v
#    q₂         state     state       ◣          state  before its chunk: q @ state
# ```
#
# The grid is (heads, chunks). `state_ref` is scratch, so it keeps its numbers from step to step.
#
# ![In every grid step the state in VMEM is read and replaced, while one chunk of q, k and v comes and one chunk of o leaves; the next head starts again at zero.](diagrams/splash_attention/linear_attention.svg)
#
# Write the kernel. Which tokens has the state seen when a chunk reads it? And what happens at the next head?


# %%
def linear_attention_spec(
    q: Float[Array, "N T H"], k: Float[Array, "N T H"], v: Float[Array, "N T Hv"]
) -> Float[Array, "N T Hv"]:
    def step(state, token):
        q, k, v = token  # one row of each head
        state = state + k[:, :, None] * v[:, None, :]
        return state, jnp.einsum("nh,nhv->nv", q, state)

    start = jnp.zeros((len(q), q.shape[2], v.shape[2]))
    _, o = jax.lax.scan(step, start, [x.swapaxes(0, 1) for x in (q, k, v)])
    return o.swapaxes(0, 1)


# %%
def linear_attention_kernel(q_ref, k_ref, v_ref, o_ref, state_ref):
    ### BEGIN SOLUTION
    @pl.when(pl.program_id(1) == 0)
    def _():
        state_ref[...] = jnp.zeros_like(state_ref)

    q, k, v, state = q_ref[...], k_ref[...], v_ref[...], state_ref[...]
    s = jax.lax.dot_general(q, k, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    row = jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
    column = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
    s = jnp.where(column <= row, s, 0.0)
    o_ref[...] = jnp.dot(s, v) + jnp.dot(q, state)
    kv = jax.lax.dot_general(k, v, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    state_ref[...] = state + kv
    ### END SOLUTION


def linear_attention(
    q: Float[Array, "N T H"],
    k: Float[Array, "N T H"],
    v: Float[Array, "N T Hv"],
    *,
    C: int = 128,
) -> Float[Array, "N T Hv"]:
    (N, T, H), Hv = q.shape, v.shape[2]
    return pl.pallas_call(
        linear_attention_kernel,
        grid=(N, T // C),
        in_specs=[
            pl.BlockSpec((None, C, H), lambda n, c: (n, c, 0)),
            pl.BlockSpec((None, C, H), lambda n, c: (n, c, 0)),
            pl.BlockSpec((None, C, Hv), lambda n, c: (n, c, 0)),
        ],
        out_specs=pl.BlockSpec((None, C, Hv), lambda n, c: (n, c, 0)),
        out_shape=jax.ShapeDtypeStruct((N, T, Hv), jnp.float32),
        scratch_shapes=[pltpu.VMEM((H, Hv), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=INTERPRET,
    )(q, k, v)


# %% [markdown]
# Nothing here grows with T²: k and v are read once, and a step always takes the same four products. The table
# compares it with `flash_attention`, for one head with H = 128. A causal mask would halve the dots of
# `flash_attention`.

# %% active="ipynb"
# linear, flash = find("linear_attention").solution, find("flash_attention").solution
# print("  tokens   GFLOP of dots: flash    linear   MiB moved: flash    linear")
# for T in (1024, 8192, 65536):
#     x = jax.ShapeDtypeStruct((T, 128), jnp.float32)
#     (a,) = trace(functools.partial(flash, bq=512, bk=512), x, x, x)
#     (b,) = trace(linear, *3 * [jax.ShapeDtypeStruct((1, T, 128), jnp.float32)])
#     print(f"{T:8}{a.dot_flops / 1e9:23.1f}{b.dot_flops / 1e9:10.2f}{a.hbm_bytes / 2**20:19.1f}{b.hbm_bytes / 2**20:10.1f}")

# %% [markdown]
# Decoding gains most. For every new token, a softmax looks at all earlier keys and values again. (A puzzle of `pipelines.ipynb`
# keeps them in pages.) Here a head keeps H × Hv numbers. The price is that they have to be enough: at most H keys can be
# orthogonal, so with more keys, a query also gets parts of values that it does not look for.
#
# <details><summary>More: how large is a chunk?</summary>
#
# For each token the masked product takes C (H + Hv) multiplications, and the state 2 H Hv. For H = Hv = C both are equal. A larger
# chunk means fewer steps, and more work in the masked product, half of which is above the diagonal. With C = 1 the kernel is the
# spec, and with C = T it is attention without a softmax.
#
# </details>
#
# <details><summary>More: where it comes from</summary>
#
# [Katharopoulos et al. (2020)](https://arxiv.org/abs/2006.16236) call it linear attention. They apply a positive function to q and k first, so
# that they can divide by a sum of weights. [Lightning Attention-2](https://arxiv.org/abs/2401.04658) (2024) works in such chunks, with a
# fixed decay per head. [MiniMax-01](https://arxiv.org/abs/2501.08313) (2025) uses it in seven of eight layers.
#
# </details>

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng


def make_inputs(key, N, T, H, Hv):
    r = rng(key)
    sizes = (H, H, Hv)
    return tuple(array(r.normal(0.2, 1, size=(N, T, size)), jnp.float32) for size in sizes)


def scale(N=32, T=8192, H=128, Hv=128):
    return tuple(jax.ShapeDtypeStruct((N, T, size), jnp.float32) for size in (H, H, Hv))


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(N=3, T=512, H=64, Hv=32)
    N, T, H, Hv = r.choice([(1, 640, 16, 128), (5, 256, 128, 8), (2, 384, 8, 256)])
    return dict(N=int(N), T=int(T), H=int(H), Hv=int(Hv))


def work_of_a_token(launch: Launch) -> str:
    """FLOPs of dots for each row of q."""
    N, T, _ = launch.inputs[0].shape
    return f"{launch.dot_flops / (N * T):,.0f} FLOPs of dots for each token of a head"


PUZZLE = Puzzle(
    spec=linear_attention_spec,
    solution=linear_attention,
    inputs=make_inputs,
    cases=[
        dict(N=3, T=512, H=64, Hv=32),
        dict(N=2, T=256, H=8, Hv=128, C=64),
        dict(N=1, T=17 * 64, H=16, Hv=8, C=64),
    ],
    fresh=fresh,
    scale=scale,
    par=work_of_a_token,
    tolerance=2e-4,  # the spec is in float64
    hints=[
        "A query has met all tokens of earlier chunks in the state, and those of its own chunk in "
        "a block of scores. So it must read the state before its own chunk is added. A new head "
        "begins with an empty state.",
        "`jax.lax.dot_general` contracts the axes that you name: the last axes give q @ k.T, the "
        "first axes give k.T @ v. `jax.lax.broadcasted_iota` counts rows and columns for the mask. "
        "Here a masked score is 0, because there is no exponential.",
        "Zero the state at the first chunk of each head. Compute the scores of the chunk, and keep "
        "those at or below the diagonal. The output is the scores times v, plus q times the state. "
        "Then add k.T @ v to the state.",
    ],
    explain="""A sum over all earlier tokens splits into those of earlier chunks, which the state has
    added up already, and those of the chunk itself. The steps along the chunks run in order
    ("arbitrary"), so scratch may carry the state; heads are independent.""",
)
