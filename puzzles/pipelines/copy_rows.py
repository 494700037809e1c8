"""Puzzle 1: one copy in, one copy out."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from puzzles import INTERPRET

# %% [markdown]
# ## copy_rows: one copy by hand
#
# So far `pallas_call` copied every block. Here you do.
#
# With `memory_space=pl.ANY` an array stays where it is, usually in HBM. A kernel cannot read it
# there, only copy a piece of it to VMEM, and back:
#
# ```text
# HBM    x_ref [ ... | 64 rows | ... ]            o_ref [ 64 rows ]
#                         |                                ^
#                         | copy in                        | copy out
#                         v                                |
# VMEM            rows_ref [ 64 rows ]  -- doubled -->  rows_ref
# ```
#
# `pltpu.make_async_copy(source, target,
# semaphore)` describes a copy. `.start()` starts it and returns **at once**. `.wait()` returns when
# the copy is complete. The semaphore, a `pltpu.SemaphoreType.DMA`, signals that. Between start and
# wait, do not touch the target, and do not write to the source.
#
# `x_ref.at[...]` names a piece without reading it; `pl.ds(first, 64)` is 64 rows from `first` on.
# `start` is in `pltpu.SMEM`, the memory for scalars, and `pl.multiple_of` promises the compiler
# that it is a multiple of 8: rows are stored in tiles of 8.


# %%
def copy_rows_spec(x: Float[Array, "M N"], start: Int[Array, " 1"]) -> Float[Array, "64 N"]:
    return 2 * x[start[0] + jnp.arange(64)]


# %%
def copy_rows_kernel(start_ref, x_ref, o_ref, rows_ref, sem):
    first = pl.multiple_of(start_ref[0], 8)
    copy_in = pltpu.make_async_copy(x_ref.at[pl.ds(first, 64)], rows_ref, sem)
    # Copy the rows in, double them in place, copy them out.
    ### BEGIN SOLUTION
    copy_in.start()
    copy_in.wait()
    rows_ref[...] = 2 * rows_ref[...]
    copy_out = pltpu.make_async_copy(rows_ref, o_ref, sem)
    copy_out.start()
    copy_out.wait()
    ### END SOLUTION


def copy_rows(x: Float[Array, "M N"], start: Int[Array, " 1"]) -> Float[Array, "64 N"]:
    N = x.shape[1]
    return pl.pallas_call(
        copy_rows_kernel,
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        out_shape=jax.ShapeDtypeStruct((64, N), x.dtype),
        scratch_shapes=[pltpu.VMEM((64, N), x.dtype), pltpu.SemaphoreType.DMA],
        interpret=INTERPRET,
    )(start, x)


# %% [markdown]
# The receipt counts your copies: 64 rows in, 64 rows out, however many rows `x` has.

# %% active="ipynb"
# receipt(copy_rows, jnp.ones((8192, 1024)), jnp.array([72]))

# %% tags=["author"]
from puzzles import Launch, Puzzle, array, rng
from puzzles.pipelines._audits import by_hand


def make_inputs(key, M, N, start):
    x = array(rng(key).normal(size=(M, N)), jnp.float32)
    return x, array([start], jnp.int32)


def audit(launch: Launch) -> None:
    by_hand(launch)


def scale(M=131072, N=1024):
    return jax.ShapeDtypeStruct((M, N), jnp.float32), jnp.array([M - 72], jnp.int32)


PUZZLE = Puzzle(
    spec=copy_rows_spec,
    solution=copy_rows,
    inputs=make_inputs,
    cases=[
        dict(M=256, N=384, start=104),
        dict(M=904, N=256, start=840),
    ],
    fresh=lambda r: dict(M=320, N=128, start=8 * int(r.choice([1, 5, 17, 25, 32]))),
    hints=[
        "When may you read `rows_ref`? And when may the copy to `o_ref` start?",
        "`.start()` starts the copy, and `.wait()` returns when the rows have arrived. The way "
        "back is a second `pltpu.make_async_copy`, with `rows_ref` as its source; the semaphore "
        "can be the same.",
        "Six statements: start and wait for the rows; store the buffer's double; describe the "
        "copy back, start it, and wait for it before the kernel ends.",
    ],
    explain="""The kernel waits for each copy before it uses the data, or the buffer again. It
    must also wait for the last copy before it ends: nothing else does.""",
    audit=audit,
    scale=scale,
)
