"""Rung 2: a long array through one small buffer."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from puzzles import INTERPRET

# %% [markdown]
# ## stream_sum: a long array through one buffer
#
# VMEM is small, so a large `x` stays in HBM and flows through one buffer of 64 rows. There is no grid:
# one kernel, and inside it a loop. `o_ref` has no spec, so all of it is in VMEM.
#
# ```text
# time     -->
# copies    [ rows 0 ]           [ rows 1 ]           [ rows 2 ]
# kernel              [ sum 0 ]            [ sum 1 ]            [ sum 2 ]
# ```
#
# Rows 1 may come only when the sum of rows 0 is done, and that sum needs all of its rows. So copies
# and sums take turns: this is right, and slow.
#
# `jax.lax.fori_loop(0, n, body, None)` calls `body(i, None)` for `i = 0 … n - 1`. Inside a kernel it
# is a loop of the TPU, so `i` is a traced number. Write one round of it.

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
# `show` draws your copies: one row for the buffer, time from left to right. In the reference nothing
# flies while the kernel computes.

# %% active="ipynb"
# show(stream_sum)

# %% [markdown]
# The receipt tells how many copies are in flight at each wait: in the reference, never more than the
# one that is waited for.

# %% active="ipynb"
# receipt(stream_sum, jnp.ones((512, 256)))

# %% tags=["author"]
from puzzles import Alternative, Launch, Mistake, Puzzle, array, rng
from puzzles.pipelines._audits import by_hand


def make_inputs(key, M, N):
    return (array(rng(key).normal(0.5, 1, (M, N)), jnp.float32),)


def audit(launch: Launch) -> None:
    by_hand(launch)


def scale(M=4096, N=2048):
    return (jax.ShapeDtypeStruct((M, N), jnp.float32),)


_ROWS = "        rows = x_ref.at[pl.ds(i * 64, 64)]\n"
_MADE = "        copy = pltpu.make_async_copy(rows, rows_ref, sem)\n"
_COPY = "        copy.start()\n        copy.wait()\n"
_ADD = "        o_ref[...] += jnp.sum(rows_ref[...], axis=0, keepdims=True)\n"

PUZZLE = Puzzle(
    spec=stream_sum_spec,
    solution=stream_sum,
    inputs=make_inputs,
    cases=[dict(M=320, N=384), dict(M=64, N=256)],
    fresh=lambda r: dict(M=320, N=384) if r.integers(4) else dict(M=64 * int(r.choice([6, 33, 34, 41])), N=128),
    hints=[
        "One round is `copy_rows` without the way back. What decides which rows come?",
        "`x_ref.at[pl.ds(start, 64)]` names the rows; `pltpu.make_async_copy(…, rows_ref, sem)` describes "
        "the copy. `jnp.sum(…, axis=0, keepdims=True)` gives a row of column sums.",
        "Name the rows of this round, describe their copy, start it, wait for it, and only then add the "
        "column sums of the buffer to the output with `+=`.",
    ],
    explain="""A buffer of a few rows is enough, however long the array is, and its bytes come
    once. But with one buffer the copies wait for the sums and the sums for the copies: nothing
    overlaps.""",
    mistakes=[
        Mistake(
            "returns the sum from the loop's body",
            old=_ADD,
            new="        return o_ref[...] + jnp.sum(rows_ref[...], axis=0, keepdims=True)\n",
            says="where that was None, it returns nothing",
            stage="error",
        ),
        Mistake(
            "does not wait",
            old=_COPY,
            new="        copy.start()\n",
            says="`o_ref[...] += jnp.sum(rows_ref[...], axis=0, keepdims=True)` reads `rows_ref`, and the",
            stage="memory",
        ),
        Mistake(
            "waits after the sum",
            old=_COPY + _ADD,
            new="        copy.start()\n" + _ADD + "        copy.wait()\n",
            says="On a TPU the old numbers may still be there",
            stage="memory",
        ),
        Mistake(
            "sums before the copy has been started",
            old=_COPY + _ADD,
            new=_ADD + _COPY,
            says="something was added that nobody had written (NaN here): the buffer before its rows have "
            "come, or an output that was never set to zero",
        ),
        Mistake(
            "moves on by one row in each round",
            old="pl.ds(i * 64, 64)",
            new="pl.ds(i, 64)",
            says="`pl.ds` counts rows, not blocks: round i begins at row 64 * i",
        ),
        Mistake(
            "takes the first rows in every round",
            old="pl.ds(i * 64, 64)",
            new="pl.ds(0, 64)",
            says="the same 64 rows are added in every round: `i` says which come next",
        ),
        Mistake(
            "keeps the last rows' sum only",
            old="        o_ref[...] += jnp",
            new="        o_ref[...] = jnp",
            says="each round overwrites what the rounds before it have added",
        ),
        Mistake(
            "leaves the last rows out",
            old="x_ref.shape[0] // 64, add",
            new="x_ref.shape[0] // 64 - 1, add",
            says="the last 64 rows are missing: there are M // 64 rounds",
        ),
        Mistake(
            "sums along the rows",
            old="rows_ref[...], axis=0, keepdims=True",
            new="rows_ref[...], keepdims=True",
            says="every column gets the total of all columns: sum along axis 0 only",
        ),
        Mistake(
            "adds x where it lies",
            old=_MADE + _COPY + _ADD,
            new="        o_ref[...] += jnp.sum(x_ref[pl.ds(i * 64, 64)], axis=0, keepdims=True)\n",
            says="`x_ref` stays in HBM (`memory_space=pl.ANY`), and a kernel cannot index that",
            stage="memory",
        ),
        Mistake(
            "reaches one round too far",
            old="x_ref.shape[0] // 64, add",
            new="x_ref.shape[0] // 64 + 1, add",
            says="the last 64 rows are added twice: the loop has one round too many, and beyond the "
            "end a CPU gives the last rows again",
        ),
        Mistake(
            "waits twice in each round",
            old=_COPY,
            new=_COPY + "        copy.wait()\n",
            says="waits for a copy that is not on its way",
            stage="memory",
        ),
        Mistake(
            "starts every copy twice",
            old=_COPY,
            new="        copy.start()\n" + _COPY,
            says="copy that `copy.start()` starts writes `rows_ref`, and the copy into it",
            stage="memory",
        ),
        Mistake(
            "brings all rows twice",
            old=_COPY,
            new=_COPY + _COPY,
            says="Blocks of `x_ref` are fetched 128 times, where 64 are enough",
            stage="work",
        ),
        Mistake(
            "brings the whole array in at once",
            edits=(
                (_ROWS + _MADE, "        copy = pltpu.make_async_copy(x_ref, rows_ref, sem)\n"),
                ("0, x_ref.shape[0] // 64, add", "0, 1, add"),
                ("pltpu.VMEM((64, N), x.dtype)", "pltpu.VMEM(x.shape, x.dtype)"),
            ),
            says="`rows_ref` takes 32 MiB",
            stage="work",
        ),
        Mistake(
            "takes the mean of the rows",
            old="jnp.sum(rows_ref[...]",
            new="jnp.mean(rows_ref[...]",
            says="all rows of x are added up: a sum, and no more",
        ),
    ],
    alternatives=[
        Alternative(
            "copies with sync_copy",
            old=_MADE + _COPY,
            new="        pltpu.sync_copy(rows, rows_ref)\n",
        ),
        Alternative(
            "takes 32 rows at a time",
            edits=(
                ("pl.ds(i * 64, 64)", "pl.ds(i * 32, 32)"),
                ("0, x_ref.shape[0] // 64, add", "0, x_ref.shape[0] // 32, add"),
                ("pltpu.VMEM((64, N)", "pltpu.VMEM((32, N)"),
            ),
        ),
        Alternative(
            "carries the sum in the loop",
            edits=(
                ("def add(i, _):", "def add(i, total):"),
                (_ADD, "        return total + jnp.sum(rows_ref[...], axis=0, keepdims=True)\n"),
                (
                    "    jax.lax.fori_loop(0, x_ref.shape[0] // 64, add, None)",
                    "    start = jnp.zeros_like(o_ref)\n"
                    "    o_ref[...] = jax.lax.fori_loop(0, x_ref.shape[0] // 64, add, start)",
                ),
            ),
        ),
        Alternative(
            "is already one copy ahead",
            code="""
def stream_sum(x):
    n = x.shape[0] // 64

    def kernel(x_ref, o_ref, slots_ref, sems):
        def fetch(i):
            slot = i % 2
            return pltpu.make_async_copy(x_ref.at[pl.ds(i * 64, 64)], slots_ref.at[slot], sems.at[slot])

        o_ref[...] = jnp.zeros_like(o_ref)
        fetch(0).start()

        @pl.loop(0, n)
        def _(i):
            pl.when(i + 1 < n)(lambda: fetch(i + 1).start())
            fetch(i).wait()
            o_ref[...] += slots_ref[i % 2].sum(axis=0, keepdims=True)

    return pl.pallas_call(
        kernel,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=jax.ShapeDtypeStruct((1, x.shape[1]), x.dtype),
        scratch_shapes=[pltpu.VMEM((2, 64, x.shape[1]), x.dtype), pltpu.SemaphoreType.DMA((2,))],
        interpret=INTERPRET,
    )(x)
""",
        ),
    ],
    audit=audit,
    scale=scale,
)
