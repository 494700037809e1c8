"""Puzzle 2: the statistics of a softmax, from two launches."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## softmax_two_pass: read everything, then read it again
#
# `attention` holds all the scores at once. With 131,072 queries and keys that is 64 GiB in f32 for a single head. So the
# scores have to be processed in blocks. The trouble is the two numbers that normalise a row:
#
# $$m = \max_s x_s \qquad\qquad l = \sum_s e^{x_s - m}$$
#
# `l` needs `m`, and `m` needs the *whole* row. The obvious way is to read the row twice:
#
# ```text
# launch 1     x₀   x₁   x₂   ──→  m
# launch 2     x₀   x₁   x₂   ──→  l      (m is an input: a block of one column)
# ```
#
# Each launch is a `row_sum` in disguise: an output block that stays in VMEM while `j` runs. The first keeps a running
# maximum, the second a running sum.
#
# A sum starts at 0. Where does a maximum start, if all numbers of a row may be negative? Take **-1e30**, far below any score.


# %%
def softmax_two_pass_spec(
    x: Float[Array, "M N"],
) -> tuple[Float[Array, "M 1"], Float[Array, "M 1"]]:
    m = jnp.max(x, axis=1, keepdims=True)
    l = jnp.sum(jnp.exp(x - m), axis=1, keepdims=True)
    return m, l


# %%
def softmax_two_pass_max_kernel(x_ref, m_ref):
    ### BEGIN SOLUTION
    @pl.when(pl.program_id(1) == 0)
    def _():
        m_ref[...] = jnp.full_like(m_ref, -1e30)

    m_ref[...] = jnp.maximum(m_ref[...], jnp.max(x_ref[...], axis=1, keepdims=True))
    ### END SOLUTION


def softmax_two_pass_sum_kernel(x_ref, m_ref, l_ref):
    ### BEGIN SOLUTION
    @pl.when(pl.program_id(1) == 0)
    def _():
        l_ref[...] = jnp.zeros_like(l_ref)

    l_ref[...] += jnp.sum(jnp.exp(x_ref[...] - m_ref[...]), axis=1, keepdims=True)
    ### END SOLUTION


def softmax_two_pass(
    x: Float[Array, "M N"],
) -> tuple[Float[Array, "M 1"], Float[Array, "M 1"]]:
    M, N = x.shape
    bm, bn = 64, 128
    grid = (M // bm, N // bn)
    block = pl.BlockSpec((bm, bn), lambda i, j: (i, j))
    column = pl.BlockSpec((bm, 1), lambda i, j: (i, 0))
    m = pl.pallas_call(
        softmax_two_pass_max_kernel,
        grid=grid,
        in_specs=[block],
        out_specs=column,
        out_shape=jax.ShapeDtypeStruct((M, 1), jnp.float32),
        interpret=INTERPRET,
    )(x)
    l = pl.pallas_call(
        softmax_two_pass_sum_kernel,
        grid=grid,
        in_specs=[block, column],
        out_specs=column,
        out_shape=jax.ShapeDtypeStruct((M, 1), jnp.float32),
        interpret=INTERPRET,
    )(x, m)
    return m, l


# %% tags=["author"]
import numpy as np

from puzzles import Puzzle, array, rng


def lower(x, other, distance):
    """Shift rows of `x` down to where their maxima lie at least `distance` below those
    of `other`.
    """
    if x.size:
        highest = other.max(axis=1, keepdims=True) - distance
        x -= np.maximum(0, x.max(axis=1, keepdims=True) - highest)


def make_inputs(key, M, N, large=False):
    """Rows around ±150 that drift along N, up or down, or jump by 128; `large`: some around ±2^21.

    Those are whole numbers, and the runner-up is the maximum once more or at least 4 below it.
    Of the first 64 rows, block 0 lies 4 or more below block 1; of all others, block 1 lies 4 or more below
    block 0, and no maximum grows after that. Some rows have a flat block and a number 10 above it, first
    the one or first the other.
    """
    r = rng(key)
    x = r.normal(0, 2, (M, N)) + r.uniform(-150, 150, (M, 1))
    x += r.normal(0, 5, (M, 1)) * np.linspace(-1, 1, N)
    x[1::8, N // 2 :] += 128
    x[5::8, N // 2 :] -= 128
    if large:
        x[3::8], x[7::8] = (sign * 2**21 - 128 * r.integers(0, 9, x[::8].shape) for sign in (1, -1))
    if N > 128:
        early, late = x[:64], x[64:]
        lower(early[:, :128], early[:, 128:256], 4)
        lower(late[:, 128:256], late[:, :128], 4)
        lower(late[:, 256:], late[:, :128], 0)
        late[:, -1] = late[:, :128].max(
            axis=1
        )  # from right to left, too, block 1 raises no maximum
    x[2::8], x[2:64:8, 128:] = x[2::8, :1], x[2:64:8, :1] - 20
    x[2:64:8, min(128, N - 1)] = x[2:64:8, 0] + 10
    x[66::8, 0] += 10
    return (array(x, jnp.float32),)


def scale(M=2048, N=131072):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


def fresh(r):
    if r.integers(4):  # mostly the first case, which is traced by now, with other data
        return dict(M=128, N=384, large=bool(r.integers(2)))
    M, N = r.choice([(64, 1152), (256, 128), (320, 640)])
    return dict(M=int(M), N=int(N), large=bool(r.integers(2)))


def times_read(*launches):
    """How often x is read: the number that this puzzle and the next are about."""
    read = [o for one in launches for o in one.inputs if o.shape[1] > 1]
    often = sum(o.hbm_bytes for o in read) / (4 * np.prod(read[0].shape))
    return f"x is read {often:g} time{'' if often == 1 else 's'}"


PUZZLE = Puzzle(
    spec=softmax_two_pass_spec,
    solution=softmax_two_pass,
    results=("m", "l"),
    inputs=make_inputs,
    cases=[
        dict(M=128, N=384),
        dict(M=192, N=128, large=True),
        dict(M=64, N=17 * 128),
    ],
    fresh=fresh,
    scale=scale,
    par=times_read,
    tolerance=2e-4,
    hints=[
        "Both kernels are row_sum. For each: at which value does the running number start, and "
        "how does a block change it?",
        "`jnp.full_like(ref, value)` makes a block that holds one value everywhere. "
        "`jnp.maximum` compares two columns; `jnp.max(..., axis=1, keepdims=True)` gives the "
        "column of one block.",
        "First kernel: under `pl.when`, store a very negative start; then store the larger of "
        "the old value and this block's maximum. Second kernel: under `pl.when`, store zeros; "
        "then add the block's sum of exponentials, each shifted by the row's finished maximum.",
    ],
    explain="""There are two launches because the sum needs the finished maximum: every
    exponential is then at most 1, and the largest is 1. The price is that x is read from HBM
    twice, which the receipt shows.""",
)
