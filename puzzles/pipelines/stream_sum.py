"""Puzzle 2: a long array through one small buffer."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## stream_sum: a long array through one buffer
#
# VMEM is small, so a large `x` stays in HBM and flows through one buffer of 64 rows. There is no
# grid: one kernel, and inside it a loop. `o_ref` has no spec, so all of it is in VMEM.
#
# ```text
# time     -->
# copies    [ rows 0 ]           [ rows 1 ]           [ rows 2 ]
# kernel              [ sum 0 ]            [ sum 1 ]            [ sum 2 ]
# ```
#
# A sum may start only when its rows have arrived, and the next copy only when that sum is done. So
# copies and sums take turns: this is correct, but slow.
#
# `jax.lax.fori_loop(0, n, body, None)` calls `body(i, None)` for `i = 0 … n - 1`. Inside a kernel
# the loop runs on the TPU, so `i` is a traced number. Write one round of the loop.


# %%
def stream_sum_spec(x: Float[Array, "M N"]) -> Float[Array, "1 N"]:
    return jnp.sum(x, axis=0, keepdims=True)


# %%
def stream_sum_kernel(x_ref, o_ref, rows_ref, sem):
    o_ref[...] = jnp.zeros_like(o_ref)

    def add(i, _):
        # Bring in 64 rows, from row 64 * i on, and add their column sums to o_ref.
        ### BEGIN SOLUTION
        rows = x_ref.at[pl.ds(i * 64, 64)]
        copy = pltpu.make_async_copy(rows, rows_ref, sem)
        copy.start()
        copy.wait()
        o_ref[...] += jnp.sum(rows_ref[...], axis=0, keepdims=True)
        ### END SOLUTION

    jax.lax.fori_loop(0, x_ref.shape[0] // 64, add, None)


def stream_sum(x: Float[Array, "M N"]) -> Float[Array, "1 N"]:
    N = x.shape[1]
    return pl.pallas_call(
        stream_sum_kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=jax.ShapeDtypeStruct((1, N), x.dtype),
        scratch_shapes=[pltpu.VMEM((64, N), x.dtype), pltpu.SemaphoreType.DMA],
        interpret=INTERPRET,
    )(x)


# %% [markdown]
# `show` draws your copies: one row for the buffer, time from left to right. In the reference no
# copy is in flight while the kernel computes.

# %% active="ipynb"
# show(stream_sum)

# %% [markdown]
# The receipt counts the copies in flight at each wait: in the reference, never more than one.

# %% active="ipynb"
# receipt(stream_sum, jnp.ones((512, 256)))

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import by_hand


def make_inputs(key, M, N):
    return (array(rng(key).normal(0.5, 1, (M, N)), jnp.float32),)


def audit(launch: Launch) -> None:
    by_hand(launch)


def scale(M=4096, N=2048):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


PUZZLE = Puzzle(
    spec=stream_sum_spec,
    solution=stream_sum,
    inputs=make_inputs,
    cases=[dict(M=320, N=384), dict(M=64, N=256)],
    fresh=lambda r: (
        dict(M=320, N=384) if r.integers(4) else dict(M=64 * int(r.choice([6, 33, 34, 41])), N=128)
    ),
    hints=[
        "One round is `copy_rows` without the way back. What decides which rows it copies?",
        "`x_ref.at[pl.ds(start, 64)]` names the rows; `pltpu.make_async_copy(…, rows_ref, "
        "sem)` describes the copy. `jnp.sum(…, axis=0, keepdims=True)` gives a row of column "
        "sums.",
        "Name the rows of this round, describe their copy, start it, wait for it, and only "
        "then add the column sums of the buffer to the output with `+=`.",
    ],
    explain="""A buffer of a few rows is enough, however long the array is, and each row is copied
    once. But with one buffer the copies wait for the sums and the sums for the copies: nothing
    overlaps.""",
    audit=audit,
    scale=scale,
)
