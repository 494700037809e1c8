"""Puzzle 1: attention in plain JAX, without overflow."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# %% [markdown]
# ## attention: a softmax that does not overflow
#
# Each query `q[t]` is compared with every key `k[s]`. Its output is the mean of the values `v[s]`, weighted by the
# exponentials of the scores ([Vaswani et al., 2017](https://arxiv.org/abs/1706.03762)):
#
# $$s_{ts} = \frac{q_t \cdot k_s}{\sqrt H} \qquad\qquad
#   o_t = \frac{\sum_s e^{s_{ts}} \, v_s}{\sum_s e^{s_{ts}}}$$
#
# ```text
#             S                  S
#        ┌─────────┐        ┌─────────┐   H         H
#        │         │  exp   │         │ ┌───┐     ┌───┐
#      T │ scores  │ ─────→ │ weights │ │ v │ = T │ o │
#        │         │ ÷ sum  │         │ │   │ S   └───┘
#        └─────────┘        └─────────┘ └───┘
#
#   T queries, S keys and S values, H numbers in each
#   1/√H: scores of standard normal vectors have variance 1, for any H
# ```
#
# The spec is this definition, one query at a time, in float64. There `exp` overflows above a score of 709.
# TPU kernels have no f64, and **f32 overflows above 88**. Scores do grow that large in training:
# [ViT-22B](https://arxiv.org/abs/2302.05442) normalises queries and keys to keep them small.
#
# The way out: add the same number `c` to all scores of a row. Numerator and denominator are both multiplied by $e^c$, so the
# output does not change. Which `c`, row by row, makes overflow impossible and keeps the denominator away from zero?
#
# Write it in plain JAX, in f32, for all queries at once. `jax.nn.softmax` would do it in one line; spell it out.


# %%
def attention_spec(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    o = np.zeros_like(q)
    for t in range(len(q)):
        weights = np.exp(k @ q[t] / np.sqrt(q.shape[1]))
        o[t] = weights @ v / weights.sum()
    return o.astype(np.float32)


# %%
def attention(
    q: Float[Array, "T H"], k: Float[Array, "S H"], v: Float[Array, "S H"]
) -> Float[Array, "T H"]:
    ### BEGIN SOLUTION
    s = jnp.dot(q, k.T) * q.shape[1] ** -0.5
    p = jnp.exp(s - jnp.max(s, axis=1, keepdims=True))
    return jnp.dot(p, v) / jnp.sum(p, axis=1, keepdims=True)
    ### END SOLUTION


# %% tags=["author"]
from puzzles import Puzzle, array, rng


def root(H):
    """The square root of H in eighths: exact in bf16, whatever H is."""
    return np.round(8 * H**0.5) / 8


def make_inputs(key, T, S, H, large=False):
    """Scores around ±150 that drift along S, up or down by row, or jump by 128.

    All numbers are few bits wide: exact in bf16, and every product of a query and a key exact in f32 in
    any order of summation. Where H is a power of 4, as in all `cases`, the scores are, too: no chip and
    no block size changes one. `large`: rows of scores up to ±2^21, where the runner-up equals the
    maximum or lies more than 100 below it.
    """
    r = rng(key)

    def eighths(x):
        return np.clip(np.round(8 * x), -127, 127) / 8

    q, k, v = (eighths(r.normal(size=(n, H))) for n in (T, S, S))
    k[:, 0], q[:, 0] = root(H), r.integers(-150, 151, T)  # the whole row up or down
    k[:, 1], q[:, 1] = eighths(np.linspace(-1, 1, S) * root(H)), eighths(r.normal(0, 4, T))
    q[::8, 1], q[4::8, 1] = 96, -96  # some rows drift far enough to overflow on the way
    k[::2, 2], k[1::2, 2], q[2::8, 2] = root(H), -root(H), 64  # others within every block
    q[3::8, 3], k[: S // 2, 3], k[S // 2 :, 3] = 64, -root(H), root(H)  # or from block to block
    k[:, 4], k[-1, 4], q[5::8, 4] = -root(H), root(H), 64  # or at the last key alone
    if large:
        for n in range(3):  # all scores of a row alike; drifting; two kinds in turn
            q[6 + 16 * n :: 48] = 0
            q[6 + 16 * n :: 48, n] = (-(2**21), 2**21, -(2**21))[n]
    return tuple(array(x, jnp.float32) for x in (q, k, v))


def fresh(r):
    T, S, H = r.choice([(40, 200, 32), (72, 136, 128), (24, 56, 8), (200, 72, 32)])
    return dict(T=int(T), S=int(S), H=int(H))


PUZZLE = Puzzle(
    spec=attention_spec,
    solution=attention,
    inputs=make_inputs,
    fresh=fresh,
    tolerance=2e-4,
    cases=[dict(T=64, S=384, H=256), dict(T=192, S=128, H=64)],
    hints=[
        "Shift every row of scores so that its largest becomes 0. Then all exponentials lie "
        "between 0 and 1, and one of them is 1.",
        "`jnp.max` and `jnp.sum` take `axis=1, keepdims=True`: one number per row, as a column "
        "that broadcasts against the scores. `q.shape[1]` is H.",
        "Three lines: the scaled scores (T, S); the exponentials of the shifted scores; their "
        "product with `v`, divided by their sum over each row.",
    ],
    explain="""Subtracting a row's maximum multiplies numerator and denominator by the same
    factor, so the result does not change and nothing overflows. The largest exponential of a
    row is then 1, so the denominator is never 0.""",
    kernel=False,
    jit=True,
)
