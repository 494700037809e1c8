"""Rung 1: one copy in, one copy out."""

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
# With `memory_space=pl.ANY` an array stays where it is, mostly in HBM. A kernel cannot read it there,
# only copy a piece of it to VMEM, and back:
#
# ```text
# HBM    x_ref [ ... | 64 rows | ... ]            o_ref [ 64 rows ]
#                         |                                ^
#                         | come                           | go
#                         v                                |
# VMEM            rows_ref [ 64 rows ]  -- doubled -->  rows_ref
# ```
#
# `pltpu.make_async_copy(source, target, semaphore)` describes a copy. `.start()` starts it and returns
# **at once**. `.wait()` returns when it is over: the semaphore, a `pltpu.SemaphoreType.DMA`, tells.
# In between, do not touch the target, and do not write the source.
#
# `x_ref.at[...]` names a piece without reading it; `pl.ds(first, 64)` is 64 rows from `first` on.
# `start` lies in `pltpu.SMEM`, the memory for scalars, and `pl.multiple_of` promises the compiler
# that it is a multiple of 8: rows lie in tiles of 8.

# %%
def copy_rows_spec(x: Float[Array, "M N"], start: Int[Array, " 1"]) -> Float[Array, "64 N"]:
    return 2 * x[start[0] + jnp.arange(64)]


# %%
def copy_rows_kernel(start_ref, x_ref, o_ref, rows_ref, sem):
    first = pl.multiple_of(start_ref[0], 8)
    come = pltpu.make_async_copy(x_ref.at[pl.ds(first, 64)], rows_ref, sem)
    # Let the rows come, double them where they are, and let them go to o_ref.
    ### BEGIN SOLUTION
    come.start()
    come.wait()
    rows_ref[...] = 2 * rows_ref[...]
    go = pltpu.make_async_copy(rows_ref, o_ref, sem)
    go.start()
    go.wait()
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
# The receipt counts your copies: 64 rows in, 64 rows out, whatever else `x` holds.

# %% active="ipynb"
# receipt(copy_rows, jnp.ones((8192, 1024)), jnp.array([72]))

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.pipelines._audits import by_hand


def make_inputs(key, M, N, start):
    x = array(rng(key).normal(size=(M, N)), jnp.float32)
    return x, array([start], jnp.int32)


def audit(launch: Launch) -> None:
    by_hand(launch)


def scale(M=131072, N=1024):
    return jax.ShapeDtypeStruct((M, N), jnp.float32), jnp.array([M - 72], jnp.int32)


_COME = "    come.start()\n    come.wait()\n"
_DOUBLE = "    rows_ref[...] = 2 * rows_ref[...]\n"
_GO = "    go = pltpu.make_async_copy(rows_ref, o_ref, sem)\n    go.start()\n    go.wait()\n"

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
        "`.start()` sends for the rows, and `.wait()` returns when they are there. The way back is "
        "a second `pltpu.make_async_copy`, with `rows_ref` as its source; the semaphore can be the same.",
        "Six statements: start and wait for the rows; store the buffer's double; describe the "
        "copy back, start it, and wait for it before the kernel ends.",
    ],
    explain="""Each copy is waited for before anybody needs what it brings, or wants its buffer
    back. The kernel may not end earlier either: nobody else waits for the last copy.""",
    mistakes=[
        Mistake(
            "does not wait for the rows",
            old=_COME,
            new="    come.start()\n",
            says="reads `rows_ref`, and the copy into it, started in `come.start()`, has not been",
            stage="memory",
        ),
        Mistake(
            "waits for the rows after the use",
            old=_COME + _DOUBLE,
            new="    come.start()\n" + _DOUBLE + "    come.wait()\n",
            says="`rows_ref[...] = 2 * rows_ref[...]` reads `rows_ref`, and the copy into it",
            stage="memory",
        ),
        Mistake(
            "promises more than is true",
            old="pl.multiple_of(start_ref[0], 8)",
            new="pl.multiple_of(start_ref[0], 16)",
            says="`pl.multiple_of(..., 16)` gets 104, which is no multiple of 16",
            stage="memory",
        ),
        Mistake(
            "waits for a copy that it never started",
            old=_COME,
            new="    come.wait()\n",
            says="the rows were never sent for, or came too late: what was doubled is what lay in the "
            "buffer (NaN here). `.start()` comes first",
        ),
        Mistake(
            "starts the copy back and does not wait for it",
            old="    go.wait()\n",
            new="",
            says="ends with a copy that nobody waited for: it was started in `go.start()`",
            stage="memory",
        ),
        Mistake(
            "sends the rows back undoubled",
            old=_DOUBLE + _GO,
            new=_GO + _DOUBLE,
            says="the rows come back as they were: nothing had doubled them when they left",
        ),
        Mistake(
            "clears the buffer while the rows go back",
            old="    go.wait()\n",
            new="    rows_ref[...] = jnp.zeros_like(rows_ref)\n    go.wait()\n",
            says="writes `rows_ref`, and the copy out of it, started in `go.start()`",
            stage="memory",
        ),
        Mistake(
            "reads the array in HBM",
            old=_COME + _DOUBLE,
            new="    rows_ref[...] = 2 * x_ref[pl.ds(first, 64)]\n",
            says="`x_ref` stays in HBM (`memory_space=pl.ANY`), and a kernel cannot index that",
            stage="memory",
        ),
        Mistake(
            "writes the result straight into HBM",
            old=_DOUBLE + _GO,
            new="    o_ref[...] = 2 * rows_ref[...]\n",
            says="`o_ref` stays in HBM (`memory_space=pl.ANY`), and a kernel cannot index that",
            stage="memory",
        ),
        Mistake(
            "takes the rows that start with no regard to `start`",
            old="pl.ds(first, 64)], rows_ref",
            new="pl.ds(0, 64)], rows_ref",
            says="the rows are those from 0 on; `start` says where they begin",
        ),
        Mistake(
            "counts `start` in blocks of 64 rows",
            old="pl.ds(first, 64)], rows_ref",
            new="pl.ds(first // 64 * 64, 64)], rows_ref",
            says="the rows begin at a multiple of 64; `start` is any multiple of 8",
        ),
        Mistake(
            "waits for the way back on a copy that is half as long",
            old="    go.wait()\n",
            new="    pltpu.make_async_copy(rows_ref.at[pl.ds(0, 32)], o_ref.at[pl.ds(0, 32)], sem).wait()\n",
            says="ends with a copy that nobody waited for",
            stage="memory",
        ),
        Mistake(
            "copies all of the array to VMEM",
            edits=(
                ("x_ref.at[pl.ds(first, 64)], rows_ref, sem", "x_ref, rows_ref, sem"),
                (_DOUBLE, "    rows_ref[pl.ds(0, 64)] = 2 * rows_ref[pl.ds(first, 64)]\n"),
                ("copy(rows_ref, o_ref, sem)", "copy(rows_ref.at[pl.ds(0, 64)], o_ref, sem)"),
                ("[pltpu.VMEM((64, N), x.dtype), pltpu", "[pltpu.VMEM(x.shape, x.dtype), pltpu"),
            ),
            says="the launch needs 512 MiB of VMEM",
            stage="work",
        ),
    ],
    alternatives=[
        Alternative(
            "copies with sync_copy, which starts and waits",
            edits=(
                (_COME, "    pltpu.sync_copy(x_ref.at[pl.ds(first, 64)], rows_ref)\n"),
                (_GO, "    pltpu.sync_copy(rows_ref, o_ref)\n"),
            ),
        ),
        Alternative(
            "starts while it describes, by async_copy",
            edits=(
                (_COME, "    pltpu.async_copy(x_ref.at[pl.ds(first, 64)], rows_ref, sem).wait()\n"),
                (_GO, "    pltpu.async_copy(rows_ref, o_ref, sem).wait()\n"),
            ),
        ),
        Alternative(
            "works on two halves, each with its own semaphore",
            edits=(
                ("pltpu.SemaphoreType.DMA]", "pltpu.SemaphoreType.DMA((2,))]"),
                (
                    "    come = pltpu.make_async_copy(x_ref.at[pl.ds(first, 64)], rows_ref, sem)\n",
                    "    def half(source, target, n):\n"
                    "        rows = pl.ds(32 * n, 32)\n"
                    "        return pltpu.make_async_copy(source.at[rows], target.at[rows], sem.at[n])\n\n"
                    "    window = x_ref.at[pl.ds(first, 64)]\n",
                ),
                (
                    _COME + _DOUBLE + _GO,
                    """    for n in range(2):
        half(window, rows_ref, n).start()
    for n in range(2):
        half(window, rows_ref, n).wait()
        rows_ref[pl.ds(32 * n, 32)] *= 2
        half(rows_ref, o_ref, n).start()
    for n in range(2):
        half(rows_ref, o_ref, n).wait()
""",
                ),
            ),
        ),
        Alternative(
            "takes its buffer from run_scoped, and lets the pipeline carry the result",
            code="""
def copy_rows(x, start):
    def kernel(start_ref, x_ref, o_ref):
        first = pl.multiple_of(start_ref[0], 8)

        def body(rows_ref, sem):
            copy = pltpu.make_async_copy(x_ref.at[pl.ds(first, 64)], rows_ref, sem)
            copy.start()
            copy.wait()
            o_ref[...] = rows_ref[...] + rows_ref[...]

        pl.run_scoped(body, pltpu.VMEM(o_ref.shape, o_ref.dtype), pltpu.SemaphoreType.DMA)

    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((64, x.shape[1]), lambda i, start_ref: (0, 0)),
        ),
        out_shape=jax.ShapeDtypeStruct((64, x.shape[1]), x.dtype),
        interpret=INTERPRET,
    )(start, x)
""",
        ),
        Alternative(
            "waits by another description of the same bytes",
            old="    go.wait()\n",
            new="    come.wait()\n",
        ),
    ],
    audit=audit,
    scale=scale,
)
